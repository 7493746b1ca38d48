// What an event rests on: the segments it lies in, the captions they retrieved, what is said there.

import { clock, count, el } from "./dom.js";
import { retrievedList } from "./timeline.js";

const MOST = 3; // retrieved captions that are shown
const SHARE = 0.15; // of the shorter one: less is a touch, not evidence

/** Whether something lies in an event's stretch, and does not only touch it. */
const meets = (event) => (one) => {
  const shared = Math.min(one.end, event.end) - Math.max(one.start, event.start);
  return shared > SHARE * Math.min(one.end - one.start, event.end - event.start);
};
const mean = (list) => list.reduce((sum, one) => sum + one, 0) / list.length;

/** Segments, the best retrieved captions, sentences and the saliency of an event's stretch. */
export function evidenceOf(event, data) {
  const segments = data.segments.filter(meets(event));
  const best = new Map();
  for (const { caption, similarity } of segments.flatMap((segment) => segment.captions)) {
    best.set(caption, Math.max(similarity, best.get(caption) ?? -1));
  }
  const captions = [...best].map(([caption, similarity]) => ({ caption, similarity }))
    .sort((a, b) => b.similarity - a.similarity).slice(0, MOST);
  const inside = data.saliency.filter((_, n) => data.times[n] >= event.start && data.times[n] <= event.end);
  const saliency = inside.length ? { here: mean(inside), all: mean(data.saliency) } : null;
  return { segments, captions, sentences: data.sentences.filter(meets(event)), saliency };
}

function found({ segments, saliency }) {
  const parts = [];
  if (segments.length) {
    const kept = segments.filter((one) => one.kept).length;
    const span = `${clock(segments[0].start)} – ${clock(Math.max(...segments.map((one) => one.end)))}`;
    const some = segments.length === 1 ? "not " : `${kept || "none"} of them `;
    const share = kept === segments.length ? "" : some;
    parts.push(`Found in this part of the video (${span}): ${count(segments.length, "segment")}, ${share}looked up in the datastore.`);
  }
  if (saliency) {
    const [here, all] = [saliency.here.toFixed(2), saliency.all.toFixed(2)];
    const level = saliency.here > saliency.all ? "above" : "below";
    parts.push(`Saliency ${here}, ${here === all ? "as this video's mean" : `${level} this video's mean of ${all}`}.`);
  }
  return parts.join(" ");
}

/** The evidence in words, for the row of the chosen event. */
export function evidenceBox(event, data) {
  const evidence = evidenceOf(event, data);
  const { captions, sentences } = evidence;
  const box = el("div", { class: "evidence", role: "group", "aria-label": "What this event rests on" });
  const words = found(evidence);
  if (words) box.append(el("p", {}, words));
  if (captions.length) box.append(el("p", {}, "Similar known steps:"), retrievedList(captions));
  if (sentences.length) {
    const more = sentences.length > 4 ? ` … (${sentences.length - 4} more)` : "";
    const said = sentences.slice(0, 4).map((one) => one.text).join(" ");
    box.append(el("p", {}, "Said here: ", el("q", { dir: "auto" }, said), more));
  }
  if (!box.childElementCount) box.append(el("p", {}, "The record holds no evidence here: it was written by hand, or in another format."));
  return box;
}

const NAMES = {
  model: "Model", weights: "Weights", encoder: "Image encoder", "encoder precision": "Its precision",
  frames: "Frames seen", windows: "Windows", speech: "Speech", search: "Decoding", unfamiliar: "Not captioned because",
  forced: "Captioned all the same", corrected: "Corrected", version: "Saved version", title: "Title", source: "Video file", content: "Its fingerprint",
  starc: "Version of starc",
};

/** The dialog "How was this made?": every step, in the words of the record. */
export function explain(dialog, provenance) {
  const known = Object.keys(NAMES).filter((key) => key in provenance);
  const rows = [...new Set([...known, ...Object.keys(provenance)])].map((key) =>
    el("div", {}, el("dt", {}, NAMES[key] ?? key), el("dd", { dir: "auto" }, provenance[key])));
  dialog.querySelector("dl").replaceChildren(...(rows.length ? rows
    : [el("div", {}, el("dt", {}, "Nothing is known"), el("dd", {}, "the record does not say"))]));
  document.getElementById("how").addEventListener("click", () => dialog.showModal());
}
