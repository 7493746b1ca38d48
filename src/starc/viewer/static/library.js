// The library page: cards, search that jumps to the moment, and the way into captioning.

import { ask, clock, count, download, el, heard, icon, say, spoken } from "./dom.js";
import { startJobs } from "./jobs.js";
import { videosWithDrafts } from "./kept.js";
import { notCaptioned } from "./record.js";
import { arrange, ORDERS, SHOWN } from "./shelf.js";

const grid = document.getElementById("grid");
const search = document.getElementById("search");
const list = document.getElementById("moments");
const more = document.getElementById("more-moments");
const shelf = Object.fromEntries(["by-title", "show", "sort"].map((id) => [id, document.getElementById(id)]));
let latest = 0;
let library = { videos: [] };

function picture(video) {
  const frame = el("div", { class: "thumb", "aria-hidden": "true" }, icon("film"));
  if (video.video) {
    const image = el("img", {
      src: `/api/videos/${video.id}/thumbnail`, alt: "", loading: "lazy", decoding: "async",
      on: { error: () => image.remove() },
    });
    frame.append(image);
  }
  const tags = [video.versions ? el("span", { class: "tag" }, "corrected") : null,
    video.draft ? el("span", { class: "tag draft", title: "changes that are kept in this browser and not saved" }, "draft") : null];
  if (tags.some(Boolean)) frame.append(el("span", { class: "tags" }, ...tags));
  if (video.duration) frame.append(el("span", { class: "length" }, clock(video.duration)));
  return frame;
}

const percent = (share) => `${Math.round(share * 100)} %`;

function facts(video) {
  if (video.problem) return el("p", { class: "facts bad" }, video.problem);
  if (!video.captioned) return el("p", { class: "facts" }, "Not captioned yet");
  if (video.reason) return el("p", { class: "facts" }, notCaptioned(video));
  const parts = [count(video.events, "event")];
  if (video.sentences) parts.push(count(video.sentences, "sentence"));
  if (!video.video) parts.push("video file not here");
  if (video.score) parts.push(`F1 ${Math.round(video.score.f1 * 100)}`);
  else if (video.confidence !== null) parts.push(`${Math.round(video.confidence * 100)} % sure`);
  const title = video.score && `events that meet the reference at IoU ≥ 0.5: recall ${percent(video.score.recall)}, precision ${percent(video.score.precision)}`;
  return el("p", { class: "facts", title }, parts.join(" · "));
}

function card(video, { can_caption: canCaption, can_caption_anyway: canCaptionAnyway }) {
  const length = video.duration ? `, ${spoken(video.duration)}` : "";
  const state = `${video.versions ? ", corrected" : ""}${video.draft ? ", draft not saved" : ""}`;
  const item = el("li", { class: "card", data: { id: video.id } },
    el("a", { href: `/watch/${video.id}` }, picture(video), el("h2", { dir: "auto" }, video.title),
      heard(`${length}${state}`)),
    facts(video));
  const anyway = video.declined;
  if (video.video && (anyway ? canCaptionAnyway : canCaption && !video.captioned)) {
    item.append(el("button", {
      class: "button small", type: "button", "aria-label": `Caption ${video.title}${anyway ? " anyway" : ""}`,
      on: { click: () => captionExisting(video, anyway) },
    }, anyway ? "Caption anyway" : "Caption"));
  }
  return item;
}

async function captionExisting(video, anyway) {
  try {
    await ask(`/api/videos/${video.id}/caption${anyway ? "?anyway=true" : ""}`, { method: "POST" });
    jobs.watch();
    document.getElementById("jobs").scrollIntoView({ block: "nearest" });
  } catch (error) {
    say(error.message, { bad: true });
  }
}

/** The menus; orders and filters that would change nothing are left out. */
function fillShelf() {
  const { videos } = library;
  document.getElementById("shelf").hidden = videos.length < 2;
  const scored = videos.some((video) => video.score);
  const option = ([name, [words]]) => el("option", { value: name }, words);
  const fill = (menu, entries, chosen) => {
    menu.replaceChildren(...entries.map(option));
    menu.value = entries.some(([name]) => name === chosen) ? chosen : entries[0][0];
  };
  const asked = new URLSearchParams(location.search);
  fill(shelf.show, Object.entries(SHOWN).filter(([name, [, fits]]) => name === "all" || videos.some(fits)),
    shelf.show.value || asked.get("show"));
  fill(shelf.sort, Object.entries(ORDERS).filter(([name]) => name !== "worst" || scored),
    shelf.sort.value || asked.get("sort") || (scored ? "worst" : "title"));
}

function drawGrid() {
  const { videos } = library;
  const shown = arrange(videos, { title: shelf["by-title"].value, show: shelf.show.value, sort: shelf.sort.value });
  grid.replaceChildren(...shown.map((video) => card(video, library)));
  document.getElementById("shown").textContent =
    shown.length === videos.length ? "" : `${shown.length} of ${count(videos.length, "video")}`;
  if (shown.length) return;
  grid.append(el("li", { class: "empty" }, videos.length ? "No video is like that." : "No captioned video here yet. ",
    videos.length ? "" : library.can_upload ? "Drop one above." : "Caption one with: starc caption VIDEO -o VIDEO.json"));
}

/** The address holds what is asked for, so that coming back finds the same page. */
function keepAddress() {
  const asked = new URLSearchParams();
  const query = search.value.trim();
  const standard = { show: "all", sort: library.videos.some((video) => video.score) ? "worst" : "title" };
  if (query) asked.set("q", query);
  if (shelf["by-title"].value.trim()) asked.set("title", shelf["by-title"].value.trim());
  for (const name of ["show", "sort"]) {
    if (shelf[name].value && shelf[name].value !== standard[name]) asked.set(name, shelf[name].value);
  }
  history.replaceState(null, "", asked.size ? `/?${asked}` : "/");
}

/** Videos of which this browser keeps a draft are marked, and can be filtered. */
function markDrafts() {
  const kept = videosWithDrafts();
  const changed = library.videos.some((video) => Boolean(video.draft) !== kept.has(video.id));
  for (const video of library.videos) video.draft = kept.has(video.id);
  if (changed) draw();
}

function draw() {
  fillShelf();
  drawGrid();
}

async function load() {
  library = await ask("/api/library");
  const { videos } = library;
  draw();
  markDrafts();
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
const LETTER = `(?:(?!${RUN_ON.source.slice(1)})[\\p{L}\\p{N}\\p{M}])`; // no underscore: titles are file names

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

const KINDS = { said: "speech", caption: "caption", title: "film" }; // and their icons

/** One answer: a moment of a video, or a video by its title. */
function answerRow(hit, kind, words) {
  const at = kind === "title" ? "" : `?t=${hit.start}`;
  const moment = kind === "title" ? "" : `?t=${Math.round(hit.start)}`;
  return el("li", {},
    el("a", { href: `/watch/${hit.id}${at}` },
      el("span", { class: "thumb small" }, icon("film"), hit.video
        ? el("img", { src: `/api/videos/${hit.id}/thumbnail${moment}`, alt: "", loading: "lazy",
          on: { error: (event) => event.target.remove() } }) : null),
      el("span", { class: "moment" },
        marked(kind === "title" ? hit.title : hit.text, words),
        el("span", { class: "where" },
          el("span", { class: `kind ${kind}` }, icon(KINDS[kind]), kind),
          kind === "title" ? null : el("span", { dir: "auto" }, hit.title))),
      kind === "title" ? null : el("time", {}, clock(hit.start))));
}

/** Answers into the list: the first ones, or with `skip` those after so many moments. */
async function fillMoments(query, turn, skip = 0) {
  const { total, words, titles, moments } = await ask(`/api/search?q=${encodeURIComponent(query)}&skip=${skip}`);
  if (turn !== latest) return; // a later question has been asked
  const rows = [...titles.map((hit) => answerRow(hit, "title", words)),
    ...moments.map((hit) => answerRow(hit, hit.spoken ? "said" : "caption", words))];
  if (skip) list.append(...rows);
  else {
    list.replaceChildren(...rows);
    const parts = titles.length ? [count(titles.length, "title")] : [];
    if (total || !titles.length) parts.push(total ? count(total, "moment") : "no moment");
    document.getElementById("results-count").textContent = parts.join(" · ");
  }
  const shown = skip + moments.length;
  more.hidden = shown >= total || !moments.length;
  more.textContent = `Show more (${(total - shown).toLocaleString("en")})`;
  more.onclick = async ({ detail }) => {
    const old = list.children.length;
    try {
      await fillMoments(query, turn, shown);
      if (detail === 0) list.children[old]?.querySelector("a").focus(); // by a key: on with the first new one
    } catch (error) {
      say(error.message, { bad: true });
    }
  };
}

async function find() {
  const query = search.value.trim();
  const turn = ++latest;
  keepAddress();
  document.getElementById("library").hidden = Boolean(query);
  document.getElementById("results").hidden = !query;
  if (!query) return;
  try {
    await fillMoments(query, turn);
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
  if (event.key === "/" && !event.target.matches("input") && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    search.focus();
  } else if (event.key === "Escape" && event.target === search) {
    search.value = "";
    find();
  }
});

addEventListener("storage", markDrafts); // another tab writes
addEventListener("pageshow", markDrafts); // coming back from a video

document.getElementById("shelf").addEventListener("submit", (event) => event.preventDefault());
for (const field of Object.values(shelf)) {
  field.addEventListener("input", () => {
    drawGrid();
    keepAddress();
  });
}
document.getElementById("training").addEventListener("click", (event) => {
  event.preventDefault();
  download(event.currentTarget.href);
});

const jobs = startJobs({ onDone: () => load().catch((error) => say(error.message, { bad: true })) });
search.value = new URLSearchParams(location.search).get("q") || "";
shelf["by-title"].value = new URLSearchParams(location.search).get("title") || "";
if (search.value) find();
try {
  jobs.open(await load());
} catch (error) {
  grid.replaceChildren(el("li", { class: "empty" }, error.message));
}
