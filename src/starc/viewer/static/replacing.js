// Find and replace in all captions.

import { dialog } from "./dialog.js";
import { count, el } from "./dom.js";

/** Captions by key that are other ones after every `find` became `by`. Both are plain text. */
export function replaced(events, find, by, { matchCase = false, wholeWords = false } = {}) {
  const captions = new Map();
  if (!find) return captions;
  const plain = find.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const source = wholeWords ? `(?<![\\p{L}\\p{N}_])${plain}(?![\\p{L}\\p{N}_])` : plain;
  const pattern = new RegExp(source, matchCase ? "gu" : "giu");
  for (const { key, caption } of events) {
    const other = caption.replace(pattern, () => by);
    if (other !== caption) captions.set(key, other);
  }
  return captions;
}

/** Ask what to replace; the new captions, none if nothing shall be. `visit` shows an event behind the dialog. */
export async function askReplacement(events, visit) {
  const find = el("input", { type: "text", required: true, dir: "auto" });
  const by = el("input", { type: "text", dir: "auto", maxlength: 500 });
  const exact = el("input", { type: "checkbox" });
  const words = el("input", { type: "checkbox" });
  const options = () => ({ matchCase: exact.checked, wholeWords: words.checked });
  const found = el("p", { class: "muted", role: "status" });
  // By a letter that no caption has, so that every hit counts.
  const hits = () => replaced(events, find.value, "\u0000", options());
  let last = -1;
  const tell = () => {
    found.textContent = find.value ? count(hits().size, "event") : "";
  };
  const next = () => {
    const keys = [...hits().keys()];
    if (!keys.length) return;
    last = (last + 1) % keys.length;
    const event = events.find((one) => one.key === keys[last]);
    visit(event);
    found.textContent = `${last + 1} of ${count(keys.length, "event")}: ${event.caption}`;
  };
  for (const field of [find, exact, words]) field.addEventListener("input", tell);
  const body = [
    el("label", {}, "Find", find), el("label", {}, "Replace with", by),
    el("label", { class: "check" }, exact, "Match case"), el("label", { class: "check" }, words, "Whole words"),
    el("div", { class: "group" }, el("button", { class: "button small", type: "button", on: { click: next } }, "Show next"), found),
  ];
  const answer = await dialog("Find and replace", body, [["all", "Replace all"]]);
  return answer ? replaced(events, find.value, by.value, options()) : new Map();
}
