// Which part of the video the timeline shows, and where a time lies on the screen.

const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200];
const CLOSEST = 2; // seconds across the screen, at the most zoomed in

export class Scale {
  constructor(duration) {
    this.duration = duration;
    this.start = 0;
    this.end = duration;
    this.left = 0;
    this.width = 1;
  }

  /** Pixels that the time axis covers. */
  resize(left, width) {
    this.left = left;
    this.width = Math.max(1, width);
  }

  get span() {
    return this.end - this.start;
  }

  get whole() {
    return this.span >= this.duration - 1e-9;
  }

  x(time) {
    return this.left + ((time - this.start) / this.span) * this.width;
  }

  time(x) {
    return this.start + ((x - this.left) / this.width) * this.span;
  }

  show(start, end) {
    const span = Math.min(this.duration, Math.max(Math.min(CLOSEST, this.duration), end - start));
    this.start = Math.min(Math.max(0, start), this.duration - span);
    this.end = this.start + span;
  }

  /** Zoom by a factor; the time under `x` stays where it is. */
  zoom(factor, x = this.left + this.width / 2) {
    const fixed = this.time(x);
    const share = (fixed - this.start) / this.span;
    const span = Math.min(this.duration, Math.max(Math.min(CLOSEST, this.duration), this.span / factor));
    this.show(fixed - share * span, fixed + (1 - share) * span);
  }

  pan(pixels) {
    const by = (pixels / this.width) * this.span;
    this.show(this.start + by, this.end + by);
  }

  /** Move just enough that a stretch is in sight. */
  reveal(start, end = start) {
    if (start >= this.start && end <= this.end) return false;
    const middle = (start + Math.min(end, start + this.span)) / 2;
    this.show(middle - this.span / 2, middle + this.span / 2);
    return true;
  }

  ticks(apart = 84) {
    const wanted = (this.span / this.width) * apart;
    const step = STEPS.find((one) => one >= wanted) ?? STEPS.at(-1);
    const times = [];
    for (let n = Math.ceil(this.start / step); n * step <= this.end + 1e-9; n += 1) times.push(n * step);
    return { step, times };
  }
}

/** First place in `list`, which is in order of `key`, that is not before `value`. */
export function lowerBound(list, value, key = (one) => one) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(list[middle]) < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
