// The timeline: two canvases (lanes below, playhead above), pointer, wheel, touch and tooltip.

import { clock, el } from "./dom.js";
import { at, draw, drawCurve, endsOf, layOut, palette } from "./lanes.js";
import { lowerBound, Scale } from "./scale.js";
import { edgesOf, nearest, nearestMove } from "./snapping.js";
import { round, sum } from "./times.js";

const GUTTER = 108;
const CLICK = 4; // pixels a click may wander
const REACH = 7; // pixels within which an edge comes to rest at another

export class Timeline extends EventTarget {
  /** `data` is what `watch.js` prepared; `state` is shared with the rest of the page. */
  constructor(host, overview, data, state) {
    super();
    Object.assign(this, { host, overview, data, state });
    this.scale = new Scale(data.duration);
    this.lower = host.appendChild(el("canvas"));
    this.upper = host.appendChild(el("canvas"));
    this.tip = document.getElementById("tip");
    this.pointers = new Map();
    this.drag = null;
    this.guide = null;
    this.stale = true;
    this.frames = []; // milliseconds spent drawing, for the benchmark
    this.colours = palette();
    const repaint = () => {
      this.colours = palette();
      this.refresh();
    };
    document.addEventListener("themechange", repaint);
    for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
      matchMedia(query).addEventListener("change", repaint);
    }
    new ResizeObserver(() => this.resize()).observe(host);
    this.listen();
    this.resize();
  }

  tell(kind, detail) {
    this.dispatchEvent(new CustomEvent(kind, { detail }));
  }

  /** Lanes again: events were added, moved or removed. */
  refresh() {
    const layout = layOut(this.data);
    const resized = layout.height !== this.layout?.height;
    this.layout = layout;
    this.backdrop = null;
    const named = layout.lanes.filter((lane) => lane.label);
    document.getElementById("legend").replaceChildren(...named.map((lane) =>
      el("span", {}, el("i", { class: `dot-${lane.name ?? lane.kind}` }), lane.label)));
    if (resized) this.resize();
    else this.invalidate();
  }

  resize() {
    this.layout ??= layOut(this.data);
    this.backdrop = null;
    const width = this.host.clientWidth;
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    const named = width > 700; // room for the names of the lanes; else there is a legend
    document.getElementById("legend").hidden = named;
    this.scale.resize(named ? GUTTER : 6, width - (named ? GUTTER + 14 : 12));
    for (const canvas of [this.lower, this.upper]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(this.layout.height * ratio);
      canvas.style.height = `${this.layout.height}px`;
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.overview.width = Math.round(width * ratio);
    this.overview.height = Math.round(34 * ratio);
    this.overview.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    this.invalidate();
  }

  invalidate() {
    this.stale = true;
    this.wake();
  }

  /** At most one drawing per frame, however many things happen in it. */
  wake() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = null;
      const before = performance.now();
      if (this.stale) {
        this.stale = false;
        draw(this.lower.getContext("2d"), this.layout, this.scale, this.colours, this.data, this.state);
        this.drawOverview();
      }
      this.drawPlayhead();
      if (this.frames.push(performance.now() - before) > 2000) this.frames.shift();
    });
  }

  drawPlayhead() {
    const context = this.upper.getContext("2d");
    const { scale, layout } = this;
    context.clearRect(0, 0, scale.left + scale.width + 20, layout.height);
    const { time } = this.state;
    if (this.guide !== null) { // where a dragged edge has come to rest
      context.fillStyle = this.colours.text;
      context.fillRect(scale.x(this.guide) - 0.5, 20, 1, layout.height);
    }
    if (time < scale.start - 1e-6 || time > scale.end + 1e-6) return;
    const x = scale.x(time);
    context.fillStyle = this.colours.playhead;
    context.fillRect(x - 0.75, 16, 1.5, layout.height);
    context.beginPath();
    context.arc(x, 16, 4.5, 0, 7);
    context.fill();
  }

  /** The whole video in small; it changes with the events and the theme, not with the view. */
  drawBackdrop(whole) {
    const { colours, data } = this;
    const ratio = this.overview.width / Math.max(1, this.host.clientWidth);
    const canvas = el("canvas", { width: this.overview.width, height: this.overview.height });
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (data.saliency.length) drawCurve(context, data, whole, 4, 18, colours.saliency, endsOf(data));
    context.fillStyle = colours.accent;
    for (const event of data.events) {
      const [from, to] = [whole.x(event.start), whole.x(event.end)];
      context.fillRect(from, 26, Math.max(1, to - from - 0.5), 4);
    }
    return canvas;
  }

  drawOverview() {
    const context = this.overview.getContext("2d");
    const { scale, colours, data } = this;
    const width = scale.left + scale.width + (scale.left > 40 ? 14 : 6);
    const whole = new Scale(data.duration);
    whole.resize(scale.left, scale.width);
    this.backdrop ??= this.drawBackdrop(whole);
    context.clearRect(0, 0, width, 34);
    context.drawImage(this.backdrop, 0, 0, this.host.clientWidth, 34);
    const [from, to] = [whole.x(scale.start), whole.x(scale.end)];
    context.fillStyle = colours.page;
    context.globalAlpha = 0.65;
    context.fillRect(scale.left, 0, from - scale.left, 34);
    context.fillRect(to, 0, scale.left + scale.width - to, 34);
    context.globalAlpha = 1;
    context.strokeStyle = colours["line-strong"];
    context.lineWidth = 1.5;
    context.beginPath();
    context.roundRect(from + 0.75, 0.75, Math.max(6, to - from - 1.5), 32.5, 4);
    context.stroke();
  }

  zoom(factor, x) {
    this.scale.zoom(factor, x);
    this.invalidate();
  }

  /** The playhead in the middle, as far as the ends of the video allow. */
  centre(time) {
    if (this.scale.whole) return;
    this.scale.show(time - this.scale.span / 2, time + this.scale.span / 2);
    this.invalidate();
  }

  reveal(start, end) {
    if (this.scale.reveal(start, end)) this.invalidate();
  }

  place(event) {
    const box = this.host.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  listen() {
    const { host, overview } = this;
    host.addEventListener("pointerdown", (event) => this.press(event));
    host.addEventListener("pointermove", (event) => this.move(event));
    for (const kind of ["pointerup", "pointercancel"]) {
      host.addEventListener(kind, (event) => this.lift(event));
    }
    host.addEventListener("dblclick", (event) => this.double(this.place(event)));
    host.addEventListener("pointerleave", () => this.hideTip());
    host.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    const slide = (event) => {
      if (!event.buttons) return;
      const box = overview.getBoundingClientRect();
      const share = (event.clientX - box.left - this.scale.left) / this.scale.width;
      const middle = share * this.data.duration;
      this.scale.show(middle - this.scale.span / 2, middle + this.scale.span / 2);
      this.tell("moved");
      this.invalidate();
    };
    overview.addEventListener("pointerdown", (event) => {
      overview.setPointerCapture(event.pointerId);
      slide(event);
    });
    overview.addEventListener("pointermove", slide);
  }

  press(event) {
    if (event.button > 0) return;
    const point = this.place(event);
    this.pointers.set(event.pointerId, point);
    this.host.setPointerCapture(event.pointerId);
    this.hideTip();
    if (this.pointers.size === 2) { // the second finger makes it a pinch
      this.drag = null;
      this.tell("release");
      return;
    }
    const reach = event.pointerType === "touch" ? 16 : undefined;
    const hit = at(this.layout, this.scale, point.x, point.y, reach);
    this.drag = { from: point, hit, moved: false, last: point };
    const lane = this.laneAt(point);
    if (lane?.kind === "axis") { // the playhead's own lane
      this.drag.scrub = true;
      this.tell("scrub", this.inside(point.x));
    } else if (this.state.editing && lane?.name === "ours") {
      this.drag.event = hit?.item;
      this.drag.edge = hit?.edge;
      this.drag.create = !hit && event.pointerType !== "touch"; // a finger on an empty lane scrolls
    }
  }

  laneAt({ x, y }) {
    if (x < this.scale.left - CLICK) return null;
    return this.layout.lanes.find((lane) => y >= lane.y && y < lane.y + lane.height);
  }

  /** The time at `x`, within the video. */
  inside(x) {
    return Math.min(Math.max(0, this.scale.time(x)), this.data.duration);
  }

  double(point) {
    const hit = at(this.layout, this.scale, point.x, point.y);
    const ours = this.laneAt(point)?.name === "ours";
    if (ours && (hit || this.state.editing)) this.tell("write", { hit, time: this.inside(point.x) });
  }

  move(event) {
    const point = this.place(event);
    if (!this.pointers.has(event.pointerId)) return this.hover(event, point);
    if (this.pointers.size === 2) return this.pinch(event.pointerId, point);
    this.pointers.set(event.pointerId, point);
    const { drag } = this;
    if (!drag) return;
    if (!drag.moved && Math.abs(point.x - drag.from.x) < CLICK) return;
    if (!drag.moved) {
      drag.moved = true;
      if (drag.event) this.tell("hold", drag.event.key);
      this.edges = edgesOf(this.data, drag.event?.key, round(this.state.time));
    }
    if (drag.scrub) this.tell("scrub", this.inside(point.x));
    else if (drag.event || drag.create) this.shape(drag, point, event.altKey || event.ctrlKey);
    else {
      this.scale.pan(drag.last.x - point.x);
      this.tell("moved");
      this.invalidate();
    }
    drag.last = point;
  }

  /** An edge, a whole event or a new one follows the pointer in hundredths, and rests exactly at an edge that is near. */
  shape(drag, point, free) {
    const reach = free ? -1 : (REACH / this.scale.width) * this.scale.span;
    const rest = (time) => {
      this.guide = nearest(time, this.edges, reach);
      return this.guide ?? round(time);
    };
    if (drag.create) {
      const now = rest(this.inside(point.x));
      drag.anchor ??= nearest(this.inside(drag.from.x), this.edges, reach) ?? round(this.inside(drag.from.x));
      const [start, end] = [drag.anchor, now].sort((a, b) => a - b);
      if (drag.key) return this.tell("change", { key: drag.key, patch: { start, end } });
      const made = { start, end };
      this.tell("create", made);
      drag.key = made.key;
      return;
    }
    const by = this.scale.time(point.x) - this.scale.time(drag.from.x);
    const { start, end, key } = drag.event;
    if (drag.edge === "start") this.tell("change", { key, patch: { start: Math.min(rest(start + by), sum(end, -0.1)) } });
    else if (drag.edge === "end") this.tell("change", { key, patch: { end: rest(end + by) } });
    else {
      const move = nearestMove(start, end, by, this.edges, reach);
      this.guide = move.edge;
      const way = move.edge === null ? round(move.by) : move.by;
      const shift = Math.min(Math.max(way, -start), this.data.duration - end);
      this.tell("change", { key, patch: { start: sum(start, shift), end: sum(end, shift) } });
    }
  }

  pinch(id, point) {
    const [other] = [...this.pointers].filter(([one]) => one !== id).map(([, place]) => place);
    const before = this.pointers.get(id);
    this.pointers.set(id, point);
    const gap = (a, b) => Math.max(12, Math.abs(a.x - b.x));
    this.zoom(gap(point, other) / gap(before, other), (point.x + other.x) / 2);
  }

  lift(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    const { drag } = this;
    this.drag = null;
    if (!drag) return;
    this.guide = null;
    this.wake();
    if (drag.moved) this.tell("release");
    if (drag.key) this.tell("write", { hit: { item: drag } }); // the new event wants its words
    if (!drag.moved && !drag.scrub) this.tell("pick", { hit: drag.hit, time: this.inside(drag.from.x) });
  }

  wheel(event) {
    const { x } = this.place(event);
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(-Math.max(-60, Math.min(60, event.deltaY)) * 0.006), x);
      return;
    }
    const across = event.shiftKey ? event.deltaY : event.deltaX;
    if (!across || this.scale.whole) return; // up and down scrolls the page, as everywhere
    event.preventDefault();
    this.tell("moved");
    this.scale.pan(across);
    this.invalidate();
  }

  hover(event, point) {
    const hit = at(this.layout, this.scale, point.x, point.y);
    const ours = hit?.kind === "events" && hit.lane.name === "ours";
    const edge = this.state.editing && ours && hit.edge;
    const lane = this.laneAt(point);
    const empty = lane?.kind === "axis" ? "col-resize" : this.state.editing && lane?.name === "ours" ? "crosshair" : "default";
    this.host.style.cursor = edge ? "ew-resize" : !hit ? empty : hit.item ? "pointer" : "default";
    if (!hit || event.pointerType === "touch") return this.hideTip();
    this.tip.replaceChildren(...this.words(hit, this.scale.time(point.x)));
    this.tip.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    const left = Math.min(event.clientX + 14, innerWidth - width - 10);
    const below = event.clientY + 20;
    const top = below + height > innerHeight - 8 ? event.clientY - height - 14 : below;
    this.tip.style.transform = `translate(${Math.max(8, left)}px, ${Math.max(8, top)}px)`;
  }

  words(hit, time) {
    const line = (left, right) => el("div", { class: "head" }, el("span", {}, left), el("span", {}, right));
    if (hit.kind === "sound") return [line("Sound", clock(time)), el("div", { class: "body" }, "How loud it is, against the loudest moment")];
    if (hit.kind === "saliency") {
      const { times, saliency } = this.data;
      const n = Math.min(times.length - 1, lowerBound(times, time));
      return [line("Saliency", clock(times[n])), el("div", { class: "body" }, saliency[n].toFixed(2))];
    }
    const { item } = hit;
    const when = `${clock(item.start, 1)} – ${clock(item.end, 1)}`;
    if (hit.kind === "segments") {
      const head = [`Anchor ${item.anchor}`, item.kept ? "kept" : "not kept", `score ${item.score.toFixed(2)}`];
      return [line(head.join(" · "), when), retrievedList(item.captions)];
    }
    const notes = [hit.lane.label];
    if (item.confidence !== null && item.confidence !== undefined) notes.push(`${Math.round(item.confidence * 100)} % sure`);
    if (item.match) notes.push(`IoU ${item.match.iou.toFixed(2)}`);
    return [line(notes.join(" · "), when), el("div", { class: "body", dir: "auto" }, item.caption ?? item.text)];
  }

  hideTip() {
    this.tip.hidden = true;
  }
}

/** Retrieved captions with a bar for the cosine similarity, 0 to 1 in every list. */
export function retrievedList(captions) {
  return el("ul", { class: "retrieved" }, ...captions.map((one) => {
    const bar = el("i", {});
    bar.style.width = `${Math.round(Math.min(1, Math.max(0, one.similarity)) * 100)}%`;
    return el("li", {}, el("span", { class: "track", "aria-hidden": "true" }, bar), el("span", { dir: "auto" }, one.caption), el("b", {}, one.similarity.toFixed(2)));
  }));
}
