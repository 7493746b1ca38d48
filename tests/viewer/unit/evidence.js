import { evidenceBox, evidenceOf } from "/static/evidence.js";
import { originOf, phrase, takesPart } from "/static/origin.js";
import { layOut } from "/static/lanes.js";
import { notCaptioned } from "/static/record.js";

const SILENT = ["pictures", "datastore"];
const from = (times_from, words_from = times_from) => ({ start: 0, end: 1.5, times_from, words_from });
const segment = (start, end, kept, captions = []) => ({ start, end, kept, captions });
const data = {
  times: [0, 1, 2, 3], saliency: [0.8, 0.8, 0.2, 0.2], duration: 4,
  segments: [segment(0, 1, true, [{ caption: "chop", similarity: 0.4 }])], sentences: [{ start: 0, end: 1, text: "Chop it." }],
};
const words = (event, more = {}) => [...evidenceBox(event, { ...data, ...more }).querySelectorAll("p")].map((one) => one.textContent);
const curve = (saliency) => words(from(SILENT), { saliency, segments: [], sentences: [] })[1];
const apart = "Also computed, not used for this caption";

export const tests = {
  "sources in words": (is) => {
    is(phrase(["speech"]), "from the speech");
    is(phrase(["datastore", "pictures"]), "from the pictures and the datastore");
    is(phrase(["speech", "pictures", "datastore"]), "from the speech, the pictures and the datastore");
    is([phrase(["person"]), phrase([]), phrase()], ["by a person", "unknown", "unknown"]);
    is(originOf(from(["speech"], ["person"])), "Times: from the speech · Words: by a person");
  },
  "what took part stands before what did not": (is) => {
    const [said, level, found, retrieved] = [
      "Said here: Chop it.", "Saliency 0.80, above this video's mean of 0.50.",
      "1 segment (0:00 – 0:01), 1 looked up in the datastore.", "Retrieved captions:",
    ];
    const origin = (event) => [originOf(event)];
    const speech = from(["speech"]);
    is(words(speech), [...origin(speech), said, level, apart, found, retrieved]);
    const silent = from(SILENT);
    is(words(silent), [...origin(silent), level, found, retrieved, apart, said]);
    const moved = from(["person"], ["speech"]);
    is(words(moved), [...origin(moved), said, apart, level, found, retrieved]);
    const old = from([]);
    is(words(old), [...origin(old), "Also in the record; whether it was used is unknown", said, level, found, retrieved]);
  },
  "an event by a person has no evidence": (is) => {
    is(words(from(["person"])), ["Times: by a person · Words: by a person"]);
    const { used } = evidenceOf(from(["person"]), data);
    is([used.segments, used.sentences], [[], []]);
  },
  "saliency against the mean of the video": (is) => {
    is(curve([0.8, 0.8, 0.2, 0.2]), "Saliency 0.80, above this video's mean of 0.50.");
    is(curve([0.2, 0.2, 0.8, 0.8]), "Saliency 0.20, below this video's mean of 0.50.");
    is(curve([0.561, 0.561, 0.56, 0.56]), "Saliency 0.56, as this video's mean.");
  },
  "segments that were looked up": (is) => {
    const found = (...kept) => words(from(SILENT), {
      saliency: [], sentences: [], segments: kept.map((one, n) => segment(n * 0.5, n * 0.5 + 0.5, one)),
    })[1];
    is(found(true), "1 segment (0:00 – 0:00), 1 looked up in the datastore.");
    is(found(true, false).split("), ")[1], "1 looked up in the datastore.");
    is(found(false).split("), ")[1], "0 looked up in the datastore.");
  },
  "lanes that took part in no event come last": (is) => {
    const kinds = (...events) => layOut({ ...data, events }).lanes.map((lane) => lane.kind);
    is(takesPart([from(["speech"])], SILENT), false);
    is(takesPart([from(["speech"]), from([])], SILENT), null);
    is(takesPart([], SILENT), null);
    is(kinds(from(["speech"]), from(["person"])), ["axis", "events", "saliency", "speech", "note", "segments"]);
    for (const events of [[from(["speech"]), from(SILENT)], [from([])], []]) {
      is(kinds(...events), ["axis", "events", "saliency", "segments", "speech"]);
    }
  },
  "why a video was not captioned is a sentence": (is) => {
    is(notCaptioned({ reason: "out of domain" }), "Not captioned: out of domain.");
    is(notCaptioned({ reason: "Nothing is said." }), "Not captioned: Nothing is said.");
    is(notCaptioned({ reason: "" }), "");
  },
};
