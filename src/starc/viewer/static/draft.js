// The events while they are being corrected: every change can be taken back.

import { clock, round, sum } from "./times.js";

const SHORTEST = 0.1; // seconds
const DEPTH = 300;
const PERSON = ["person"]; // where the times or the words of an event come from, once somebody changed them

const inOrder = (a, b) => a.start - b.start || a.end - b.end;

/** Why an event cannot lie there, in a word; null if it can. */
export function refusal({ start, end }, duration) {
  if (start < 0) return "the video starts at 0:00";
  if (end > duration) return `the video ends at ${clock(duration, 2)}`;
  if (end <= start) return `the end (${clock(end, 2)}) must come after the start (${clock(start, 2)})`;
  if (end - start < Math.min(SHORTEST, duration) - 1e-6) return `an event lasts ${SHORTEST} s at least`;
  return null;
}

export class Draft extends EventTarget {
  /** `events` as the record has them; each gets a key that survives changes. */
  constructor(events, duration) {
    super();
    this.duration = duration;
    this.next = 1;
    this.load(events);
  }

  load(events) {
    this.events = events.map((event) => ({ ...event, key: this.next++ }));
    this.past = [];
    this.future = [];
    this.saved = this.events;
    this.held = null;
    this.changed();
  }

  changed() {
    this.dispatchEvent(new Event("change"));
  }

  get dirty() {
    return this.events !== this.saved;
  }

  find(key) {
    return this.events.find((event) => event.key === key) ?? null;
  }

  /** Everything until `release` is one step: a drag, or the typing in one field. */
  hold() {
    if (this.held === null) this.held = this.events;
  }

  release() {
    const before = this.held;
    this.held = null;
    if (before !== null && before !== this.events) this.remember(before);
  }

  remember(before) {
    this.past.push(before);
    if (this.past.length > DEPTH) this.past.shift();
    this.future = [];
    this.changed();
  }

  put(events) {
    const before = this.events;
    this.events = events.toSorted(inOrder);
    if (this.held === null) this.remember(before);
    else this.changed();
  }

  make(start, end, caption = "") {
    return { key: this.next++, start, end: Math.min(end, this.duration), caption, confidence: null, repeated: false, times_from: PERSON, words_from: PERSON };
  }

  set(event) {
    const old = this.find(event.key);
    const moved = event.start !== old.start || event.end !== old.end;
    const reworded = event.caption !== old.caption;
    if (!moved && !reworded) return;
    const made = { ...event, confidence: null };
    if (moved) made.times_from = PERSON;
    if (reworded) made.words_from = PERSON;
    this.put(this.events.map((one) => (one.key === event.key ? made : one)));
  }

  /** Change an event as far as it goes: what a drag does at the edges of the video. Times are taken exactly. */
  update(key, patch) {
    const old = this.find(key);
    if (!old) return;
    const event = { ...old, ...patch };
    if ("start" in patch || "end" in patch) { // other words leave the times as exact as they were
      const span = Math.min(SHORTEST, this.duration);
      event.start = Math.min(Math.max(0, event.start), this.duration - span);
      event.end = Math.min(Math.max(sum(event.start, span), event.end), this.duration);
    }
    this.set(event);
  }

  /** Move start or end exactly there; the word of refusal if that cannot be. */
  retime(key, patch) {
    const event = { ...this.find(key), ...patch };
    for (const name of Object.keys(patch)) event[name] = round(event[name]);
    if (event.end < this.duration + 0.011) event.end = Math.min(event.end, this.duration);
    const word = refusal(event, this.duration);
    if (!word) this.set(event);
    return word;
  }

  add(time, end = round(time + Math.min(8, this.duration / 4))) {
    const span = Math.min(SHORTEST, this.duration);
    const start = Math.min(Math.max(0, time), this.duration - span);
    const event = this.make(start, Math.max(end, sum(start, span)));
    this.put([...this.events, event]);
    return event.key;
  }

  remove(keys) {
    this.put(this.events.filter((event) => !keys.has(event.key)));
  }

  /**
   * Two events that meet at `time`; the key of the second, or null. Both have the caption, or, with `place`,
   * the words before and after that letter of it.
   */
  split(key, time, place = 0) {
    const event = this.find(key);
    const middle = round(time);
    const whole = (start, end) => !refusal({ start, end }, this.duration);
    if (!event || !whole(event.start, middle) || !whole(middle, event.end)) return null;
    const halves = [event.caption.slice(0, place).trim(), event.caption.slice(place).trim()];
    const cut = halves.every(Boolean);
    const [before, after] = cut ? halves : [event.caption, event.caption];
    const words_from = cut ? PERSON : event.words_from;
    const second = { ...this.make(middle, event.end, after), words_from };
    const rest = this.events.filter((one) => one.key !== key);
    this.put([...rest, { ...event, end: middle, caption: before, confidence: null, times_from: PERSON, words_from }, second]);
    return second.key;
  }

  /** One event from the first start to the last end, with the captions in order, each once. */
  merge(keys) {
    const parts = this.events.filter((event) => keys.has(event.key));
    if (parts.length < 2) return null;
    const captions = [...new Set(parts.map((event) => event.caption.trim()).filter(Boolean))];
    const end = Math.max(...parts.map((event) => event.end));
    const whole = { ...parts[0], end, caption: captions.join(", "), confidence: null, times_from: PERSON };
    if (captions.length > 1) whole.words_from = PERSON;
    this.put([...this.events.filter((event) => !keys.has(event.key)), whole]);
    return whole.key;
  }

  /** Move events in time; as far as the video goes, all by the same. Seconds they moved by. */
  shift(keys, by) {
    const moved = this.events.filter((event) => keys.has(event.key));
    if (!moved.length) return 0;
    const first = Math.min(...moved.map((event) => event.start));
    const last = Math.max(...moved.map((event) => event.end));
    const way = round(Math.min(Math.max(by, -first), Math.floor((this.duration - last) * 100 + 1e-6) / 100));
    if (!way) return 0;
    this.put(this.events.map((event) => (keys.has(event.key) ? {
      ...event, start: Math.max(0, sum(event.start, way)), end: Math.min(sum(event.end, way), this.duration), confidence: null,
      times_from: PERSON,
    } : event)));
    return way;
  }

  /** Other captions for some events, by key: one step. */
  reword(captions) {
    this.put(this.events.map((event) => (captions.has(event.key)
      ? { ...event, caption: captions.get(event.key), confidence: null, words_from: PERSON } : event)));
  }

  /** Other events altogether (a file, a kept draft, a merged conflict): one step. */
  replace(events) {
    this.release();
    this.put(events.map((event) => ({ confidence: null, repeated: false, ...event, key: this.next++ })));
  }

  /** Events of a file: those that are here already, to the millisecond, are these; of others nothing is known. */
  recognise(events) {
    const name = ({ start, end, caption }) => [Math.round(start * 1000), Math.round(end * 1000), caption.trim()].join(" ");
    const here = new Map(this.events.map((event) => [name(event), event]));
    return events.map((event) => here.get(name(event)) ?? { ...event, times_from: [], words_from: [] });
  }

  undo() {
    this.release();
    if (!this.past.length) return false;
    this.future.push(this.events);
    this.events = this.past.pop();
    this.changed();
    return true;
  }

  redo() {
    if (!this.future.length) return false;
    this.past.push(this.events);
    this.events = this.future.pop();
    this.changed();
    return true;
  }

  /** What the server wants: spans and words, and where they come from. */
  plain() {
    return this.events.map(({ start, end, caption, times_from, words_from }) => ({ start, end, caption, times_from, words_from }));
  }
}
