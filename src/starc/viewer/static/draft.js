// The events while they are being corrected: every change can be taken back.

const SHORTEST = 0.1; // seconds
const DEPTH = 300;

const round = (time) => Math.round(time * 100) / 100;

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
    this.events = events.sort((a, b) => a.start - b.start || a.end - b.end);
    if (this.held === null) this.remember(before);
    else this.changed();
  }

  update(key, patch) {
    const old = this.find(key);
    if (!old) return;
    const event = { ...old, ...patch, confidence: null };
    const span = Math.min(SHORTEST, this.duration);
    event.start = round(Math.min(Math.max(0, event.start), this.duration - span));
    event.end = Math.min(round(Math.max(event.start + span, event.end)), this.duration);
    const same = event.start === old.start && event.end === old.end && event.caption === old.caption;
    if (!same) this.put(this.events.map((one) => (one.key === key ? event : one)));
  }

  add(time, length = Math.min(8, this.duration / 4)) {
    const start = round(Math.min(Math.max(0, time), this.duration - Math.min(SHORTEST, this.duration)));
    const end = Math.min(round(start + length), this.duration);
    const event = { key: this.next++, start, end, caption: "", confidence: null, repeated: false };
    this.put([...this.events, event]);
    return event.key;
  }

  remove(key) {
    this.put(this.events.filter((event) => event.key !== key));
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

  /** What the server wants: spans and words. */
  plain() {
    return this.events.map(({ start, end, caption }) => ({ start, end, caption }));
  }
}
