// The page of one video: loads the record and lets player, timeline, lists and editing work together.

import { markCompare, renderCompare } from "./compare.js";
import { ask, clock, el, keyed, say } from "./dom.js";
import { Draft } from "./draft.js";
import { Editing } from "./editing.js";
import { evidenceOf, explain } from "./evidence.js";
import { keyboard } from "./keyboard.js";
import { match } from "./matching.js";
import { Panel } from "./panel.js";
import { controls, Player } from "./player.js";
import { previewIfNeeded } from "./preview.js";
import { landing, ordered, prepare } from "./record.js";
import { Timeline } from "./timeline.js";
import { toolbar } from "./toolbar.js";

const $ = (id) => document.getElementById(id);
/** Seconds past a start to seek to: at the start itself the event before may still be current. */
const INSIDE = 0.001;
const at = (time) => (span) => time >= span.start && time < span.end;

class Page {
  constructor(video) {
    this.data = prepare(video);
    document.body.dataset.hours = clock(this.data.duration).split(":").at(-3)?.length ?? 0; // digits of the hours
    this.state = { time: 0, playing: false, editing: false, chosen: null, selected: new Set(), segment: null };
    this.draft = new Draft(this.data.events, this.data.duration);
    this.player = new Player($("video"), this.data.duration);
    this.timeline = new Timeline($("canvas"), $("overview"), this.data, this.state);
    this.panel = new Panel(this.data, this.state, this.draft);
    this.editing = new Editing(this, video);
    this.compare = $("compare");
    this.draft.addEventListener("change", () => this.adopt());
    this.player.addEventListener("tick", () => this.tick());
    this.listenToTimeline();
    this.panel.addEventListener("jump", ({ detail }) => this.jump(detail));
    this.panel.addEventListener("select", ({ detail: { key, mode } }) => this.select(key, mode));
    this.panel.addEventListener("write", ({ detail }) => this.editing.write(detail));
    this.panel.addEventListener("split", ({ detail }) => this.editing.splitWords(detail));
    this.panel.addEventListener("caption", ({ detail }) => this.caption(video.id, detail));
    $("zoom-in").addEventListener("click", () => this.zoom(2));
    $("zoom-out").addEventListener("click", () => this.zoom(0.5));
    $("zoom-fit").addEventListener("click", () => this.fit());
    toolbar($("zoom"));
    $("follow").addEventListener("click", () => this.follow(!this.following));
    this.timeline.addEventListener("moved", () => this.follow(false)); // whoever scrolls wants to stay
  }

  /** Events again, after any change of the draft. */
  adopt() {
    const { data, draft } = this;
    const events = ordered(draft.events.map((event) => ({ ...event })));
    if (data.reference) {
      match(events, data.reference).forEach((best, n) => {
        events[n].match = best;
      });
    }
    for (const [n, event] of events.entries()) event.overlap = event.end - (events[n + 1]?.start ?? Infinity);
    data.events = events;
    for (const key of this.state.selected) if (!draft.find(key)) this.state.selected.delete(key);
    if (!this.state.selected.has(this.state.chosen)) this.state.chosen = [...this.state.selected].at(-1) ?? null;
    this.player.loop(draft.find(this.state.chosen));
    this.showEvidence();
    this.timeline.refresh();
    this.panel.render();
    // Not with every step of a drag: the table is large.
    if (draft.held === null) renderCompare(this.compare, data, (event) => this.jump(event));
    this.overlay();
    this.editing.enable();
  }

  /** One event and no other; null for none. */
  choose(key) {
    if (this.state.chosen === key && this.state.selected.size < 2) return;
    this.draft.release();
    this.mark(key, key === null ? [] : [key]);
  }

  /** Several events: `toggle` adds or takes one, `range` goes from the chosen one to this. */
  select(key, mode) {
    const { state, data } = this;
    if (state.chosen === null) return this.choose(key);
    if (mode === "range") {
      const places = [state.chosen, key].map((one) => data.events.findIndex((event) => event.key === one));
      const [from, to] = places.sort((a, b) => a - b);
      return this.mark(state.chosen, data.events.slice(from, to + 1).map((event) => event.key));
    }
    const keys = new Set(state.selected);
    if (!keys.delete(key)) keys.add(key);
    this.mark(keys.has(state.chosen) ? state.chosen : [...keys].at(-1) ?? null, keys);
  }

  mark(chosen, keys) {
    this.state.chosen = chosen;
    this.state.selected = new Set(keys);
    this.player.loop(chosen === null ? null : this.draft.find(chosen));
    this.showEvidence();
    this.panel.render();
    this.timeline.invalidate();
    this.editing.enable();
  }

  /** The segments and sentences that took part in the chosen event stand out on the timeline. */
  showEvidence() {
    const event = this.data.events.find((one) => one.key === this.state.chosen);
    const used = event && evidenceOf(event, this.data).used;
    this.state.evidence = event ? new Set([...used.segments, ...used.sentences]) : null;
  }

  jump(item) {
    this.player.seek(item.start + INSIDE);
    this.timeline.reveal(item.start, item.end);
    if (item.key) this.choose(item.key);
    this.state.segment = item.anchor === undefined ? null : item;
    this.timeline.invalidate();
    // The address leads back to here, after a reload or for somebody else.
    const address = new URL(location);
    address.searchParams.set("t", Math.round(item.start * 1000) / 1000);
    history.replaceState(null, "", address);
  }

  /** To the next event (by = 1) or the one before (-1). */
  step(by) {
    const { events } = this.data;
    const { time } = this.state;
    const next = by > 0 ? events.find((event) => event.start > time + 0.05)
      : events.findLast((event) => event.start < time - 0.05);
    if (next) this.visit(next, "events");
  }

  visit(item, tab) {
    if (this.panel.tab !== tab) this.panel.open(tab);
    this.jump(item);
    this.panel.show(item);
  }

  /** While the video plays, the timeline moves along under the playhead. */
  follow(on) {
    this.following = on;
    $("follow").setAttribute("aria-pressed", String(on));
    if (on) this.tick(true);
  }

  zoom(factor) {
    const { scale } = this.timeline;
    const held = Math.min(Math.max(this.state.time, scale.start), scale.end);
    this.timeline.zoom(factor, scale.x(held));
  }

  fit() {
    this.timeline.scale.show(0, this.data.duration);
    this.timeline.invalidate();
  }

  tick(again = false) {
    const { state, player, timeline, data } = this;
    const moved = again || state.time !== player.time;
    state.time = player.time;
    state.playing = player.playing;
    if (!moved) return;
    this.overlay();
    this.panel.mark();
    markCompare(this.compare, state.time);
    if (this.following) timeline.centre(state.time);
    else if (state.playing && state.time > timeline.scale.end) timeline.reveal(state.time);
    const current = data.events.findLastIndex(at(state.time));
    if (current !== state.current) timeline.invalidate();
    state.current = current;
    timeline.wake();
  }

  /** The current event as a caption over the video. */
  overlay() {
    const now = this.data.events.filter(at(this.state.time));
    const words = now.slice(0, 2).map((event) => event.caption).filter(Boolean);
    if (words.join("\n") === this.shown) return;
    this.shown = words.join("\n");
    $("caption").replaceChildren(...words.map((text) => el("span", { dir: "auto" }, text)));
  }

  listenToTimeline() {
    const { timeline, draft } = this;
    timeline.addEventListener("pick", ({ detail: { hit, time } }) => {
      const item = hit?.item;
      if (!item) this.player.seek(time);
      else if (hit.kind === "segments") this.visit(item, "segments");
      else if (hit.lane.name === "ours") this.visit(item, "events");
      else this.jump(item);
    });
    timeline.addEventListener("hold", ({ detail }) => {
      this.choose(detail);
      draft.hold();
    });
    timeline.addEventListener("change", ({ detail }) => draft.update(detail.key, detail.patch));
    timeline.addEventListener("release", () => draft.release());
    timeline.addEventListener("scrub", ({ detail }) => this.player.seek(detail));
    timeline.addEventListener("create", ({ detail }) => {
      draft.hold();
      detail.key = draft.add(detail.start, detail.end);
      this.mark(detail.key, [detail.key]);
    });
    timeline.addEventListener("write", ({ detail: { hit, time } }) => {
      if (hit?.item) this.editing.write(hit.item.key);
      else this.editing.add(time);
    });
  }

  async caption(id, { anyway }) {
    try {
      await ask(`/api/videos/${id}/caption${anyway ? "?anyway=true" : ""}`, { method: "POST" });
      location.href = "/"; // the library shows the queue
    } catch (error) {
      say(error.message, { bad: true });
    }
  }
}

/** One more lane, as soon as the server has listened. */
async function showSound({ data, timeline }, id) {
  const sound = await ask(`/api/videos/${id}/peaks`).catch(() => null); // a lane less, no more
  if (!sound?.peaks.length) return;
  data.sound = sound;
  timeline.refresh();
}

async function start() {
  const id = location.pathname.split("/").pop();
  const asked = new URLSearchParams(location.search);
  const version = /^\d+$/.test(asked.get("version") ?? "") ? `?version=${asked.get("version")}` : "";
  const video = await ask(`/api/videos/${id}${version}`);
  $("title").textContent = video.title;
  document.title = `${video.title} · starc`;
  const page = new Page(video);
  const { player, timeline, data, draft } = page;
  keyboard(page);
  explain($("made"), video.record.provenance, data);
  controls(player, () => draft.find(page.state.chosen));
  if (video.fps) player.fps = video.fps;
  if (video.video) {
    $("video").poster = keyed(`/api/videos/${id}/thumbnail`);
    previewIfNeeded(player, id);
    player.open(`/api/videos/${id}/media`);
    showSound(page, id);
  } else player.imagine(video.missing);
  page.adopt();
  const from = Number(asked.get("t"));
  if (from > 0) {
    const { item, tab } = landing(data, from);
    if (item) page.visit(item, tab);
    if (!item || from > item.start) player.seek(from + INSIDE);
    timeline.reveal(from);
  }
  await page.editing.offer();
  const run = () => {
    if (player.playing) player.tick();
    requestAnimationFrame(run);
  };
  run();
  // For the benchmark and the tests: they look, they do not touch.
  window.starc = { timeline, draft, player, data };
  document.body.dataset.ready = "true";
}

start().catch((error) => {
  $("title").textContent = "This video cannot be shown";
  for (const tool of document.querySelectorAll(".tools button:not(#theme)")) tool.hidden = true;
  document.querySelector(".skip").remove(); // there is no list to skip to
  document.querySelector("main").replaceChildren(el("section", { class: "trouble", "aria-label": "What is wrong" },
    el("p", {}, error.message), el("p", {}, el("a", { class: "button", href: "/" }, "Back to the library"))));
});
