// Where an event is from, as its record says: what took part in its times and words, and what did not.

import { clock, count, el } from "./dom.js";
import { isKnown, NOT_USED, originOf, PICTURES, sourcesOf, takesPart } from "./origin.js";
import { retrievedList } from "./timeline.js";

const MOST = 3; // retrieved captions that are shown
const SHARE = 0.15; // of the shorter one: less is a touch
const NOTHING = { segments: [], captions: [], sentences: [], saliency: null };

/** Whether something lies in an event's stretch, and does not only touch it. */
const meets = (event) => (one) => {
  const shared = Math.min(one.end, event.end) - Math.max(one.start, event.start);
  return shared > SHARE * Math.min(one.end - one.start, event.end - event.start);
};
const mean = (list) => list.reduce((sum, one) => sum + one, 0) / list.length;

/** The best of what some segments retrieved, each caption once. */
function retrieved(segments) {
  const best = new Map();
  for (const { caption, similarity } of segments.flatMap((segment) => segment.captions)) {
    best.set(caption, Math.max(similarity, best.get(caption) ?? -1));
  }
  return [...best].map(([caption, similarity]) => ({ caption, similarity }))
    .sort((a, b) => b.similarity - a.similarity).slice(0, MOST);
}

/** What the record has of an event's stretch: `used` took part in it, `apart` did not. An event by a person has neither. */
export function evidenceOf(event, data) {
  const sources = sourcesOf(event);
  const evidence = { used: { ...NOTHING }, apart: { ...NOTHING } };
  if (sources.size === 1 && sources.has("person")) return evidence;
  const put = (name, value, from) => {
    evidence[from.some((one) => sources.has(one)) ? "used" : "apart"][name] = value;
  };
  const segments = data.segments.filter(meets(event));
  const inside = data.saliency.filter((_, n) => data.times[n] >= event.start && data.times[n] <= event.end);
  put("segments", segments, PICTURES);
  put("captions", retrieved(segments), ["datastore"]);
  put("sentences", data.sentences.filter(meets(event)), ["speech"]);
  // The model that found the times made this curve for it, from whatever it had.
  put("saliency", inside.length ? { here: mean(inside), all: mean(data.saliency) } : null,
    (event.times_from ?? []).filter((one) => one !== "person"));
  return evidence;
}

function stretch(segments) {
  const kept = segments.filter((one) => one.kept).length;
  const span = `${clock(segments[0].start)} – ${clock(Math.max(...segments.map((one) => one.end)))}`;
  return `${count(segments.length, "segment")} (${span}), ${kept} looked up in the datastore.`;
}

function level(saliency) {
  const [here, all] = [saliency.here.toFixed(2), saliency.all.toFixed(2)];
  const word = saliency.here > saliency.all ? "above" : "below";
  return `Saliency ${here}, ${here === all ? "as this video's mean" : `${word} this video's mean of ${all}`}.`;
}

function inWords({ segments, captions, sentences, saliency }) {
  const lines = [];
  if (sentences.length) {
    const more = sentences.length > 4 ? ` … (${sentences.length - 4} more)` : "";
    const said = sentences.slice(0, 4).map((one) => one.text).join(" ");
    lines.push(el("p", {}, "Said here: ", el("q", { dir: "auto" }, said), more));
  }
  if (saliency) lines.push(el("p", {}, level(saliency)));
  if (segments.length) lines.push(el("p", {}, stretch(segments)));
  if (captions.length) lines.push(el("p", {}, "Retrieved captions:"), retrievedList(captions));
  return lines;
}

/** For the row of the chosen event: where it is from, and what the record has of that stretch. */
export function evidenceBox(event, data) {
  const { used, apart } = evidenceOf(event, data);
  const box = el("div", { class: "evidence", role: "group", "aria-label": "Where this event is from" },
    el("p", { class: "origin" }, originOf(event)), ...inWords(used));
  const rest = inWords(apart);
  if (rest.length) {
    const title = isKnown(event) ? "Also computed, not used for this caption" : "Also in the record; whether it was used is unknown";
    box.append(el("p", { class: "apart" }, title), ...rest);
  }
  return box;
}

const NAMES = {
  model: "Model", weights: "Weights", encoder: "Image encoder", "encoder precision": "Its precision",
  frames: "Frames", windows: "Windows", speech: "Speech", search: "Decoding", "times by": "Times by", "words by": "Words by",
  unfamiliar: "Out of domain", forced: "Captioned anyway, despite", corrected: "Corrected", version: "Saved version", title: "Title", source: "Video file", content: "Its fingerprint",
  starc: "Version of starc",
};

/** How many events are from where, and what the lanes of this record mean. */
function summary({ events, segments, saliency, reason }) {
  const groups = new Map();
  for (const event of events) groups.set(originOf(event), (groups.get(originOf(event)) ?? 0) + 1);
  const lines = [...groups].map(([origin, n]) => `${count(n, "event")}. ${origin}.`);
  if (!events.length) lines.push(reason || "No events.");
  if (saliency.length) lines.push("Saliency is how likely something happens at a moment.");
  if (segments.length) {
    const apart = takesPart(events, PICTURES) === false ? ` ${NOT_USED}.` : "";
    lines.push(`Segments are stretches of frames that belong together; for each that was kept, similar captions were looked up in a datastore.${apart}`);
  }
  if (events.some((event) => typeof event.confidence === "number")) lines.push("Confidence is how sure the model is of an event.");
  return lines.map((line) => el("p", {}, line));
}

/** The dialog "How was this made?": where the events are from, and every step in the words of the record. */
export function explain(dialog, provenance, data) {
  const known = Object.keys(NAMES).filter((key) => key in provenance);
  const rows = [...new Set([...known, ...Object.keys(provenance)])].map((key) =>
    el("div", {}, el("dt", {}, NAMES[key] ?? key), el("dd", { dir: "auto" }, provenance[key])));
  dialog.querySelector("dl").replaceChildren(...(rows.length ? rows
    : [el("div", {}, el("dt", {}, "Nothing is known"), el("dd", {}, "the record does not say"))]));
  document.getElementById("how").addEventListener("click", () => {
    dialog.querySelector(".origins").replaceChildren(...summary(data)); // events may have changed
    dialog.showModal();
  });
}
