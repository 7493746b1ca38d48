import { evidenceBox } from "/static/evidence.js";

const segment = (start, end, kept) => ({ start, end, kept, captions: [] });
const words = (saliency, segments = []) => {
  const data = { times: [0, 1, 2, 3], saliency, segments, sentences: [] };
  return evidenceBox({ start: 0, end: 1.5 }, data).textContent;
};

export const tests = {
  "saliency against the mean of the video": (is) => {
    is(words([0.8, 0.8, 0.2, 0.2]), "Saliency 0.80, above this video's mean of 0.50.");
    is(words([0.2, 0.2, 0.8, 0.8]), "Saliency 0.20, below this video's mean of 0.50.");
    is(words([0.561, 0.561, 0.56, 0.56]), "Saliency 0.56, as this video's mean.");
  },
  "segments that were looked up": (is) => {
    const found = (...kept) => words([], kept.map((one, n) => segment(n * 0.5, n * 0.5 + 0.5, one)));
    is(found(true), "Found in this part of the video (0:00 – 0:00): 1 segment, looked up in the datastore.");
    is(found(true, false).split("): ")[1], "2 segments, 1 of them looked up in the datastore.");
    is(found(false).split("): ")[1], "1 segment, not looked up in the datastore.");
    is(found(false, false).split("): ")[1], "2 segments, none of them looked up in the datastore.");
  },
};
