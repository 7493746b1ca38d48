// Where events are from, as their record says. The words are those of starc/output/origin.py.

const PHRASES = { speech: "from the speech", pictures: "from the pictures", datastore: "from the datastore", person: "by a person" };
export const NOT_USED = "Also computed, not used for these captions";
export const MODEL = ["speech", "pictures", "datastore"]; // what captions are made from, unless by a person
export const PICTURES = ["pictures", "datastore"]; // in which segments take part

/** ["pictures", "datastore"] as "from the pictures and the datastore". */
export function phrase(sources = []) {
  const [first, ...rest] = Object.keys(PHRASES).filter((one) => sources.includes(one)).map((one) => PHRASES[one]);
  if (!first) return "unknown";
  const others = first.startsWith("from ") ? rest.map((words) => words.replace(/^from /, "")) : rest;
  const last = others.pop();
  return [[first, ...others].join(", "), last].filter(Boolean).join(" and ");
}

/** "Times: from the speech · Words: by a person". */
export function originOf(event) {
  return `Times: ${phrase(event.times_from)} · Words: ${phrase(event.words_from)}`;
}

export const sourcesOf = (event) => new Set([...event.times_from ?? [], ...event.words_from ?? []]);
export const isKnown = (event) => Boolean(event.times_from?.length && event.words_from?.length);

/** Whether any of `sources` took part in any event; null if the record does not say. */
export function takesPart(events, sources) {
  if (events.some((event) => sources.some((one) => sourcesOf(event).has(one)))) return true;
  return events.length && events.every(isKnown) ? false : null;
}
