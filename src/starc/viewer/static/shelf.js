// Which cards the library shows, and in which order: find by title, filter, sort.

const UNSURE = 0.5; // median confidence below which a video is worth a second look

export const SHOWN = {
  all: ["All videos", () => true],
  corrected: ["Corrected", (video) => video.versions > 0],
  draft: ["With a draft", (video) => Boolean(video.draft)],
  untouched: ["Not corrected", (video) => video.captioned && !video.reason && !video.versions],
  unsure: ["Low confidence", (video) => video.confidence !== null && video.confidence < UNSURE],
  empty: ["No events", (video) => video.captioned && !video.reason && !video.problem && !video.events],
  bare: ["Not captioned", (video) => !video.captioned || Boolean(video.reason)],
  problem: ["With a problem", (video) => Boolean(video.problem)],
};

const last = (value) => value ?? Infinity;
const by = (key) => (a, b) => last(key(a)) - last(key(b));
export const ORDERS = {
  title: ["By title", null], // as the server sends them
  worst: ["Worst score first", by((video) => video.score?.f1)],
  unsure: ["Least sure first", by((video) => video.confidence)],
  longest: ["Longest first", by((video) => -(video.duration ?? 0))],
  fewest: ["Fewest events first", by((video) => (video.captioned ? video.events : null))],
};

const folded = (text) => text.normalize("NFKC").toLocaleLowerCase();

/** The videos to show, in order; `title` is what their titles must hold. */
export function arrange(videos, { title = "", show = "all", sort = "title" }) {
  const wanted = folded(title.trim());
  const [, fits] = SHOWN[show] ?? SHOWN.all;
  const [, order] = ORDERS[sort] ?? ORDERS.title;
  const found = videos.filter((video) => fits(video) && folded(video.title).includes(wanted));
  return order ? found.toSorted(order) : found;
}
