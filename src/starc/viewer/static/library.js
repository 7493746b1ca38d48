// The library page: cards, search that jumps to the moment, and the way into captioning.

import { ask, clock, count, download, el, icon, say, spoken } from "./dom.js";
import { startJobs } from "./jobs.js";

const grid = document.getElementById("grid");
const search = document.getElementById("search");
let latest = 0;

function picture(video) {
  const frame = el("div", { class: "thumb" }, icon("film"));
  if (video.video) {
    const image = el("img", {
      src: `/api/videos/${video.id}/thumbnail`, alt: "", loading: "lazy", decoding: "async",
      on: { error: () => image.remove() },
    });
    frame.append(image);
  }
  if (video.versions) frame.append(el("span", { class: "tag" }, "corrected"));
  if (video.duration) frame.append(el("span", { class: "length" }, clock(video.duration)));
  return frame;
}

function facts(video) {
  if (video.problem) return el("p", { class: "facts bad" }, video.problem);
  if (!video.captioned) return el("p", { class: "facts" }, "Not captioned yet");
  const parts = [count(video.events, "event")];
  if (video.sentences) parts.push(count(video.sentences, "sentence"));
  if (!video.video) parts.push("video file not here");
  return el("p", { class: "facts" }, parts.join(" · "));
}

function card(video, canCaption) {
  const length = video.duration ? `, ${spoken(video.duration)}` : "";
  const state = video.versions ? ", corrected" : "";
  const item = el("li", { class: "card", data: { id: video.id } },
    el("a", { href: `/watch/${video.id}`, "aria-label": `${video.title}${length}${state}` },
      picture(video), el("h2", { dir: "auto" }, video.title)),
    facts(video));
  if (!video.captioned && video.video && canCaption) {
    item.append(el("button", {
      class: "button small", type: "button", "aria-label": `Caption ${video.title}`,
      on: { click: () => captionExisting(video) },
    }, "Caption"));
  }
  return item;
}

async function captionExisting(video) {
  try {
    await ask(`/api/videos/${video.id}/caption`, { method: "POST" });
    jobs.watch();
    document.getElementById("jobs").scrollIntoView({ block: "nearest" });
  } catch (error) {
    say(error.message, { bad: true });
  }
}

async function load() {
  const library = await ask("/api/library");
  const { videos } = library;
  grid.replaceChildren(...videos.map((video) => card(video, library.can_caption)));
  if (!videos.length) {
    grid.append(el("li", { class: "empty" }, "No captioned video here yet. ",
      library.can_upload ? "Drop one above." : "Caption one with: starc caption VIDEO -o VIDEO.json"));
  }
  grid.removeAttribute("aria-busy");
  const events = videos.reduce((sum, video) => sum + video.events, 0);
  const corrected = videos.filter((video) => video.versions).length;
  const parts = [count(videos.length, "video"), count(events, "event")];
  if (corrected) parts.push(`${corrected} corrected`);
  if (library.links_out) parts.push(`${count(library.links_out, "link")} out of the folder not shown`);
  document.getElementById("totals").textContent = parts.join(" · ");
  document.getElementById("training").hidden = !corrected;
  return library;
}

// Scripts without spaces between words, in which a word may stand anywhere (as in search.py).
const SCRIPTS = ["Han", "Hiragana", "Katakana", "Thai", "Lao", "Myanmar", "Khmer"];
const RUN_ON = new RegExp(`^[${SCRIPTS.map((name) => `\\p{Script=${name}}`).join("")}]`, "u");
const LETTER = `(?:(?!${RUN_ON.source.slice(1)})[\\p{L}\\p{N}\\p{M}_])`;

/** The text with the words that were looked for marked, as elements. */
function marked(text, words) {
  const line = el("span", { class: "words", dir: "auto" });
  const patterns = words.map((word) => {
    const plain = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    return RUN_ON.test(word) ? plain : `(?<!${LETTER})${plain}${LETTER}*`;
  });
  const pattern = new RegExp(patterns.join("|") || "(?!)", "giu");
  let from = 0;
  for (const match of text.matchAll(pattern)) {
    line.append(text.slice(from, match.index), el("mark", {}, match[0]));
    from = match.index + match[0].length;
  }
  line.append(text.slice(from));
  return line;
}

function moment(hit, words) {
  const kind = hit.spoken ? "said" : "shown";
  return el("li", {},
    el("a", { href: `/watch/${hit.id}?t=${hit.start}` },
      el("span", { class: "thumb small" }, icon("film"), hit.video
        ? el("img", { src: `/api/videos/${hit.id}/thumbnail?t=${Math.round(hit.start)}`, alt: "", loading: "lazy",
          on: { error: (event) => event.target.remove() } }) : null),
      el("span", { class: "moment" },
        marked(hit.text, words),
        el("span", { class: "where" },
          el("span", { class: `kind ${kind}` }, icon(hit.spoken ? "speech" : "caption"), kind),
          el("span", { dir: "auto" }, hit.title))),
      el("time", {}, clock(hit.start))));
}

async function find() {
  const query = search.value.trim();
  const turn = ++latest;
  history.replaceState(null, "", query ? `/?q=${encodeURIComponent(query)}` : "/");
  document.getElementById("library").hidden = Boolean(query);
  document.getElementById("results").hidden = !query;
  if (!query) return;
  try {
    const answer = await ask(`/api/search?q=${encodeURIComponent(query)}`);
    if (turn !== latest) return; // a later question has been asked
    document.getElementById("results-count").textContent =
      answer.total ? count(answer.total, "moment") : "no moment";
    document.getElementById("moments").replaceChildren(
      ...answer.moments.map((hit) => moment(hit, answer.words)));
  } catch (error) {
    say(error.message, { bad: true });
  }
}

let waiting;
search.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(find, 120);
});
document.getElementById("search-form").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(waiting);
  find();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && event.target !== search && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    search.focus();
  } else if (event.key === "Escape" && event.target === search) {
    search.value = "";
    find();
  }
});

document.getElementById("training").addEventListener("click", (event) => {
  event.preventDefault();
  download(event.currentTarget.href);
});

const jobs = startJobs({ onDone: () => load().catch((error) => say(error.message, { bad: true })) });
search.value = new URLSearchParams(location.search).get("q") || "";
if (search.value) find();
try {
  jobs.open(await load());
} catch (error) {
  grid.replaceChildren(el("li", { class: "empty" }, error.message));
}
