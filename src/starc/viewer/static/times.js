// Times: how they are shown, said, typed and rounded. The same rule as starc/output/chapters.py:
// to the millisecond, then cut to the digits that are shown.

/** 75.38 -> "1:15", and "1:15.3" with one digit; hours only where there are any. */
export function clock(seconds, digits = 0) {
  const ms = Math.round(Math.max(0, seconds) * 1000);
  const whole = Math.floor(ms / 1000);
  const h = Math.floor(whole / 3600);
  const m = Math.floor((whole % 3600) / 60);
  const rest = digits ? `.${String(ms % 1000).padStart(3, "0").slice(0, digits)}` : "";
  const s = `${String(whole % 60).padStart(2, "0")}${rest}`;
  return h ? `${h}:${String(m).padStart(2, "0")}:${s}` : `${m}:${s}`;
}

/** A time for a screen reader: "1 minute 15 seconds". */
export function spoken(seconds) {
  const whole = Math.floor(Math.round(seconds * 1000) / 1000);
  const parts = [
    [Math.floor(whole / 3600), "hour"],
    [Math.floor((whole % 3600) / 60), "minute"],
    [whole % 60, "second"],
  ].filter(([n]) => n > 0);
  const words = parts.map(([n, unit]) => `${n} ${unit}${n === 1 ? "" : "s"}`);
  return words.join(" ") || "0 seconds";
}

/** Seconds of "25", "21.5", "1:05", "1:02:03.4" (a comma is a point too); null if it is no time. */
export function parse(text) {
  const found = /^(?:(?:(\d+):)?(\d+):)?(\d+(?:[.,]\d*)?)$/.exec(text.trim());
  if (!found) return null;
  const [h, m, s] = found.slice(1).map((part) => Number((part ?? "0").replace(",", ".")));
  if ((found[2] !== undefined && s >= 60) || (found[1] !== undefined && m >= 60)) return null;
  return h * 3600 + m * 60 + s;
}

/** To the hundredth, for a time that was typed or pointed at: what a field shows is what is stored. */
export function round(seconds) {
  return Math.round(seconds * 100) / 100;
}

/** The sum of two times, exact as they were but without the noise of binary fractions (6.1 + 0.2 is 6.3). */
export function sum(a, b) {
  const near = Math.round((a + b) * 1e6) / 1e6;
  return Math.abs(near - a - b) < 1e-9 ? near : a + b;
}
