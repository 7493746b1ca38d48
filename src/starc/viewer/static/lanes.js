// What the timeline draws, lane by lane, on a canvas. Only what is in sight is touched.

import { clock } from "./dom.js";
import { NOT_USED, PICTURES, takesPart } from "./origin.js";
import { lowerBound } from "./scale.js";

const BAR = 24; // height of an event
const GAP = 4;
const TEXT = '500 12px Inter, system-ui, "Segoe UI", Roboto, sans-serif';
const SMALL = '500 11px Inter, system-ui, "Segoe UI", Roboto, sans-serif';
const HANDLE = 7; // pixels around an edge that take hold of it

/** The colours of the theme, as the canvas wants them. */
export function palette() {
  const probe = document.createElement("i");
  probe.style.forcedColorAdjust = "none"; // or high contrast would make one colour of all
  document.body.append(probe);
  const names = ["page", "surface", "sunken", "line", "line-strong", "text", "muted", "accent", "accent-soft",
    "on-accent", "truth", "truth-soft", "other", "other-soft", "saliency", "speech", "playhead"];
  for (let n = 0; n < 10; n += 1) names.push(`anchor-${n}`);
  const colours = {};
  for (const name of names) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return colours;
}

/** Overlapping events take rows of their own; a tenth of overlap is let pass. */
function rowsOf(events) {
  const ends = [];
  return events.map((event) => {
    const slack = (event.end - event.start) / 10;
    let row = ends.findIndex((end) => end <= event.start + slack);
    if (row < 0) row = ends.length < 4 ? ends.push(0) - 1 : 3;
    ends[row] = event.end;
    return row;
  });
}

/** The lowest and the highest saliency of the systems on the page: the curve fills its lane. */
export function endsOf({ saliency, other }) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of [...saliency, ...(other?.saliency ?? [])]) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return high - low < 1e-6 ? [low - 0.5, low + 0.5] : [low, high];
}

/** The lanes of a page, top to bottom, with the height each needs. */
export function layOut(data) {
  const lanes = [{ kind: "axis", label: "", height: 26 }];
  const events = (label, items, name) => {
    const rows = rowsOf(items);
    const count = Math.max(1, ...rows.map((row) => row + 1));
    const longest = items.reduce((most, one) => Math.max(most, one.end - one.start), 0);
    lanes.push({ kind: "events", label, items, rows, name, longest, height: count * (BAR + GAP) + GAP });
  };
  if (data.reference) events("Reference", data.reference, "truth");
  events(data.other ? data.name : "Events", data.events, "ours");
  if (data.other) events(data.other.name, data.other.events, "other");
  if (data.saliency.length) lanes.push({ kind: "saliency", label: "Saliency", height: 62, ends: endsOf(data) });
  const segments = { kind: "segments", label: "Segments", items: data.segments, height: 30 };
  const apart = takesPart(data.events, PICTURES) === false;
  if (data.segments.length && !apart) lanes.push(segments);
  if (data.sound) lanes.push({ kind: "sound", label: "Sound", height: 36 });
  if (data.sentences.length) lanes.push({ kind: "speech", label: "Speech", items: data.sentences, height: 28 });
  if (data.segments.length && apart) lanes.push({ kind: "note", label: "", words: NOT_USED, height: 24 }, segments);
  let y = 0;
  for (const lane of lanes) {
    lane.y = y;
    y += lane.height;
  }
  return { lanes, height: y + 4 };
}

const widths = new Map();

/** Width of a text; measuring is slow, so it is remembered per font. */
function widthOf(context, text) {
  const key = context.font + text;
  let width = widths.get(key);
  if (width === undefined) {
    if (widths.size > 20000) widths.clear();
    width = context.measureText(text).width;
    widths.set(key, width);
  }
  return width;
}

/** The beginning of a text that fits. */
function fitted(context, text, room) {
  const width = widthOf(context, text);
  if (width <= room) return `\u2068${text}`; // each text in its own direction
  for (let letters = Math.floor((room / width) * text.length); letters > 2; letters -= 1) {
    const cut = `\u2068${text.slice(0, letters).trimEnd()}…`;
    if (widthOf(context, cut) <= room) return cut;
  }
  return "";
}

/** Items in sight; `longest` says how far before the screen one may begin. */
function* inSight(items, scale, longest) {
  for (let n = lowerBound(items, scale.start - longest, (one) => one.start); n < items.length; n += 1) {
    if (items[n].start > scale.end) return;
    if (items[n].end >= scale.start) yield n;
  }
}

const STYLES = {
  ours: { fill: "accent-soft", edge: "accent", text: "text" },
  truth: { fill: "truth-soft", edge: "truth", text: "text" },
  other: { fill: "other-soft", edge: "other", text: "text" },
};

function drawEvents(context, lane, scale, colours, state) {
  const style = STYLES[lane.name];
  context.font = TEXT;
  for (const n of inSight(lane.items, scale, lane.longest)) {
    const event = lane.items[n];
    const x = Math.max(scale.left - 4, scale.x(event.start));
    const width = Math.max(2, Math.min(scale.left + scale.width + 4, scale.x(event.end)) - x);
    const y = lane.y + GAP + lane.rows[n] * (BAR + GAP);
    const chosen = lane.name === "ours" && state.selected.has(event.key);
    const current = state.time >= event.start && state.time < event.end;
    if (width <= 6) { // too narrow for an outline: a plain bar, which is much cheaper to paint
      context.fillStyle = colours[style.edge];
      context.globalAlpha = current || chosen ? 1 : 0.55;
      context.fillRect(x, y, Math.max(1, width - 1), BAR);
      context.globalAlpha = 1;
    } else {
      context.fillStyle = colours[current ? style.edge : style.fill];
      context.beginPath();
      context.roundRect(x, y, width, BAR, 5);
      context.fill();
      context.strokeStyle = colours[style.edge];
      context.lineWidth = chosen ? 2.5 : 1;
      context.stroke();
    }
    const from = Math.max(x, scale.left);
    const room = x + width - from - 12;
    if (room > 14) {
      context.fillStyle = current ? colours["on-accent"] : colours[style.text];
      context.fillText(fitted(context, event.caption || "(no caption)", room), from + 7, y + BAR / 2 + 0.5);
    }
    if (chosen && state.editing && width > 12) {
      context.fillStyle = current ? colours["on-accent"] : colours[style.edge];
      for (const edge of [x + 3, x + width - 5]) context.fillRect(edge, y + 6, 2, BAR - 12);
    }
  }
}

/** The highest saliency of each pixel column that is in sight; bins stay with their frames. */
function columns({ times, saliency }, scale, share) {
  const heights = new Float32Array(Math.ceil(scale.width)).fill(-1);
  const stop = Math.min(times.length, lowerBound(times, scale.end) + 1);
  for (let n = Math.max(0, lowerBound(times, scale.start) - 1); n < stop; n += 1) {
    const column = Math.min(heights.length - 1, Math.max(0, Math.floor(scale.x(times[n]) - scale.left)));
    heights[column] = Math.max(heights[column], share(saliency[n]));
  }
  let last = 0;
  return heights.map((value) => {
    if (value >= 0) last = value;
    return last; // a column without a frame goes on as the one before
  });
}

/** Many frames: a bar per column. A path of thousands of points takes the browser ten times longer. */
function denseCurve(context, data, scale, top, height, filled, share) {
  const bottom = top + height;
  let before = null;
  columns(data, scale, share).forEach((value, column) => {
    const x = scale.left + column;
    const y = bottom - value * height;
    if (filled) {
      context.globalAlpha = 0.22;
      context.fillRect(x, y, 1, bottom - y);
      context.globalAlpha = 1;
    }
    const from = Math.min(y, before ?? y);
    context.fillRect(x, from - 0.6, 1, Math.max(y, before ?? y) - from + 1.2);
    before = y;
  });
}

/** Few frames: a curve through their points. */
function sparseCurve(context, { times, saliency }, scale, top, height, filled, share) {
  const first = Math.max(0, lowerBound(times, scale.start) - 1);
  const stop = Math.min(times.length, lowerBound(times, scale.end) + 1);
  const y = (value) => top + height * (1 - share(value));
  context.beginPath();
  for (let n = first; n < stop; n += 1) context.lineTo(scale.x(times[n]), y(saliency[n]));
  context.lineWidth = filled ? 1.5 : 1;
  context.stroke();
  if (!filled) return;
  context.lineTo(scale.x(times[stop - 1]), top + height);
  context.lineTo(scale.x(times[first]), top + height);
  context.globalAlpha = 0.22;
  context.fill();
  context.globalAlpha = 1;
}

export function drawCurve(context, data, scale, top, height, colour, [low, high], filled = true) {
  const share = (value) => Math.min(1, Math.max(0, (value - low) / (high - low)));
  context.fillStyle = context.strokeStyle = colour;
  const inSightCount = lowerBound(data.times, scale.end) - lowerBound(data.times, scale.start);
  const curve = inSightCount > scale.width / 3 ? denseCurve : sparseCurve;
  curve(context, data, scale, top, height, filled, share);
}

function drawSaliency(context, lane, scale, colours, data) {
  const [top, height] = [lane.y + 6, lane.height - 12];
  drawCurve(context, data, scale, top, height, colours.saliency, lane.ends);
  if (data.other?.saliency.length) drawCurve(context, data.other, scale, top, height, colours.other, lane.ends, false);
}

/** What the top and the bottom of the saliency lane stand for. */
function drawEnds(context, lane, scale, colours) {
  const [low, high] = lane.ends;
  const digits = high - low < 0.05 ? 3 : 2;
  const aside = scale.left >= 40;
  context.font = SMALL;
  context.fillStyle = colours.muted;
  context.textAlign = aside ? "right" : "left";
  context.strokeStyle = colours.surface; // legible where the curve passes, too
  context.lineWidth = 3;
  const x = aside ? scale.left - 8 : scale.left + 3;
  for (const [value, y] of [[high, lane.y + 9], [low, lane.y + lane.height - 9]]) {
    context.strokeText(value.toFixed(digits), x, y);
    context.fillText(value.toFixed(digits), x, y);
  }
  context.textAlign = "left";
}

function drawSegments(context, lane, scale, colours, state) {
  const y = lane.y + 5;
  const height = lane.height - 10;
  for (const n of inSight(lane.items, scale, lane.items.longest)) {
    const segment = lane.items[n];
    const x = scale.x(segment.start);
    const width = Math.max(1, scale.x(segment.end) - x - 1);
    context.fillStyle = colours[`anchor-${((segment.anchor % 10) + 10) % 10}`];
    context.globalAlpha = segment.kept ? 1 : 0.28;
    if (width > 8) {
      context.beginPath();
      context.roundRect(x, y, width, height, 3);
      context.fill();
    } else context.fillRect(x, y, width, height);
    context.globalAlpha = 1;
    if (segment.kept && width > 9) { // a kept segment carries a dot
      context.fillStyle = colours.surface;
      context.beginPath();
      context.arc(x + Math.min(9, width / 2), y + height / 2, 3, 0, 7);
      context.fill();
    }
    if (segment === state.segment || state.evidence?.has(segment)) {
      context.strokeStyle = colours.text;
      context.lineWidth = 2;
      context.strokeRect(x, y - 1, width, height + 2);
    }
  }
}

/** Peaks about a middle line, a bar per pixel: the loudest of what falls into it. */
function drawSound(context, lane, scale, colours, { sound: { every, peaks } }) {
  const middle = lane.y + lane.height / 2;
  const most = lane.height / 2 - 4;
  const from = Math.max(0, Math.floor(scale.left));
  context.fillStyle = colours.speech;
  for (let x = from; x < scale.left + scale.width; x += 1) {
    const first = Math.floor(scale.time(x) / every);
    const stop = Math.max(first + 1, Math.ceil(scale.time(x + 1) / every));
    let peak = 0;
    for (let n = Math.max(0, first); n < stop && n < peaks.length; n += 1) peak = Math.max(peak, peaks[n]);
    const height = Math.max(0.5, (peak / 255) * most);
    context.fillRect(x, middle - height, 1, 2 * height);
  }
}

function drawSpeech(context, lane, scale, colours, state) {
  const y = lane.y + 4;
  context.font = SMALL;
  let filled = -1;
  for (const n of inSight(lane.items, scale, lane.items.longest)) {
    const sentence = lane.items[n];
    const x = Math.max(scale.left, scale.x(sentence.start));
    const end = scale.x(sentence.end);
    if (end < filled + 1) continue; // several sentences within one pixel
    filled = end;
    context.fillStyle = colours.speech;
    context.globalAlpha = 0.22;
    context.fillRect(x, y, Math.max(1, end - x - 1), 19);
    context.globalAlpha = 1;
    if (state.evidence?.has(sentence)) {
      context.strokeStyle = colours.text;
      context.lineWidth = 1.5;
      context.strokeRect(x + 0.5, y + 0.5, Math.max(1, end - x - 2), 18);
    }
    if (end - x > 30) {
      context.fillStyle = colours.muted;
      context.fillText(fitted(context, sentence.text, end - x - 10), x + 5, y + 10);
    }
  }
}

function drawAxis(context, lane, scale, colours, height) {
  const { step, times } = scale.ticks();
  context.font = SMALL;
  context.textAlign = "center";
  for (const time of times) {
    const x = Math.round(scale.x(time)) + 0.5;
    context.fillStyle = colours.line;
    context.fillRect(x - 0.5, lane.height - 5, 1, height);
    context.fillStyle = colours.muted;
    const label = clock(time, step < 1 ? 1 : 0);
    const half = label.length * 3 + 2;
    context.fillText(label, Math.min(Math.max(x, scale.left + half), scale.left + scale.width - half), 11);
  }
  context.textAlign = "left";
}

/** What stands over the lanes below it. */
function drawNote(context, lane, scale, colours) {
  context.fillStyle = colours.line;
  context.fillRect(scale.left, lane.y + 3, scale.width, 1);
  context.font = SMALL;
  context.fillStyle = colours.muted;
  context.fillText(fitted(context, lane.words, scale.width - 8), scale.left + 4, lane.y + 15);
}

const DRAW = { events: drawEvents, segments: drawSegments, speech: drawSpeech, note: drawNote };

/** The whole timeline without the playhead. */
export function draw(context, { lanes, height }, scale, colours, data, state) {
  context.clearRect(0, 0, scale.left + scale.width, height);
  context.textBaseline = "middle";
  context.save();
  context.beginPath();
  context.rect(scale.left, 0, scale.width, height);
  context.clip();
  drawAxis(context, lanes[0], scale, colours, height);
  for (const lane of lanes) {
    if (lane.kind === "saliency") drawSaliency(context, lane, scale, colours, data);
    else if (lane.kind === "sound") drawSound(context, lane, scale, colours, data);
    else DRAW[lane.kind]?.(context, lane, scale, colours, state);
  }
  context.restore();
  for (const lane of lanes) if (lane.ends) drawEnds(context, lane, scale, colours);
  if (scale.left < 40) return; // a phone has no room for names
  context.font = TEXT;
  context.fillStyle = colours.muted;
  for (const lane of lanes) {
    context.fillText(fitted(context, lane.label, scale.left - (lane.ends ? 56 : 22)), 14, lane.y + Math.min(lane.height, 30) / 2 + 1);
  }
}

/** What lies under a point: `{ kind, item, lane, edge }`, or null. */
export function at(layout, scale, x, y, reach = HANDLE) {
  const lane = layout.lanes.find((one) => y >= one.y && y < one.y + one.height);
  if (!lane || lane.kind === "axis" || lane.kind === "note" || x < scale.left - reach) return null;
  if (!lane.items) return { kind: lane.kind, lane };
  const row = lane.kind === "events" ? Math.floor((y - lane.y - GAP / 2) / (BAR + GAP)) : 0;
  let best = null;
  lane.items.forEach((item, n) => {
    if (lane.rows && lane.rows[n] !== row) return;
    const [from, to] = [scale.x(item.start), scale.x(item.end)];
    if (x < from - reach || x > to + reach) return;
    // Grabbing an edge from outside is allowed, but lying inside another event counts for more.
    const outside = Math.max(from - x, x - to, 0);
    if (best && best.outside <= outside) return;
    const grip = Math.min(reach, (to - from) / 3);
    const edge = Math.abs(x - from) <= Math.max(grip, outside) ? "start" : Math.abs(x - to) <= Math.max(grip, outside) ? "end" : null;
    best = { kind: lane.kind, item, lane, edge, outside };
  });
  return best;
}
