// Small tools for both pages. Text reaches the page only as text nodes: nothing here parses markup.

import { clock, spoken } from "./times.js";

export { clock, spoken };

const SVG = "http://www.w3.org/2000/svg";
const ICONS = {
  play: "M8 5.5v13l11-6.5z",
  pause: "M7 5h4v14H7zM13 5h4v14h-4z",
  sound: "M4 9.5v5h3.5L12 19V5L7.5 9.5zM15 8.5a5 5 0 0 1 0 7M17.5 6a8.5 8.5 0 0 1 0 12",
  mute: "M4 9.5v5h3.5L12 19V5L7.5 9.5zM16 9.5l5 5M21 9.5l-5 5",
  full: "M4 9V4h5M15 4h5v5M20 15v5h-5M9 20H4v-5",
  loop: "M17 3.5l3 3-3 3M4 12V9.5a3 3 0 0 1 3-3h13M7 20.5l-3-3 3-3M20 12v2.5a3 3 0 0 1-3 3H4",
  caption: "M4 6h16v12H4zM7.5 14.5h9M7.5 11h5",
  speech: "M5 5h14v10h-7l-4.5 4v-4H5z",
  check: "M5 12.5l4.5 4.5L19 7.5",
  close: "M6 6l12 12M18 6L6 18",
  film: "M4 5h16v14H4zM8 5v14M16 5v14M4 9.5h4M4 14.5h4M16 9.5h4M16 14.5h4",
};
const FILLED = new Set(["play", "pause"]);

const KEY = "starc-key";
const key = readKey();

/** What our server wants besides the cookie, which the browser shows to every server on this machine.
 *  It comes once, behind the address, and is kept for this origin. */
function readKey() {
  const given = location.hash.match(/^#key=([0-9a-f]{64})$/)?.[1];
  try {
    if (!given) return localStorage.getItem(KEY);
    history.replaceState(history.state, "", location.pathname + location.search);
    localStorage.setItem(KEY, given);
  } catch {
    // Without a storage the key holds until the next page.
  }
  return given ?? null;
}

/** The address of something that our server has, with the key. */
export function keyed(path) {
  const address = new URL(path, location.origin);
  if (key && address.origin === location.origin) address.searchParams.set("key", key);
  return address.href;
}

/** An element. `on` holds listeners, `data` the dataset; other keys are attributes. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [kind, f] of Object.entries(value)) node.addEventListener(kind, f);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "src") node.setAttribute(name, keyed(value));
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Words for whoever listens; what stands beside them to be seen alone is `aria-hidden`. */
export function heard(words) {
  return el("span", { class: "sr" }, words);
}

/** A time to be seen; how it is said goes with `heard`. */
export function stamp(seconds) {
  return el("time", { "aria-hidden": "true" }, clock(seconds));
}

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", FILLED.has(name) ? "icon filled" : "icon");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

export function count(n, noun) {
  return `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
}

/** Say something to everybody: shown for a moment, and read out. */
export function say(text, { bad = false } = {}) {
  const place = document.getElementById("toast");
  place.textContent = text;
  place.classList.toggle("bad", bad);
  place.classList.add("shown");
  clearTimeout(say.timer);
  say.timer = setTimeout(() => place.classList.remove("shown"), bad ? 8000 : 3500);
}

/** An answer of our own server; an Error with its `message`, `status` and `body` otherwise. */
async function answerOf(path, options) {
  const response = await fetch(keyed(path), options).catch(() => {
    throw new Error("the server does not answer; is `starc view` still running?");
  });
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const words = response.status === 401 ? "open the address that `starc view` printed" : "";
  const error = new Error(body.message || words || `the server answered ${response.status}`);
  throw Object.assign(error, { status: response.status, body });
}

/** JSON from our own server. */
export async function ask(path, { method = "GET", body } = {}) {
  const options = { method, headers: {} };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await answerOf(path, options);
  return response.json().catch(() => ({}));
}

/** A file of our own server, kept under the name it gives; what is wrong is said. */
export async function download(path) {
  try {
    const response = await answerOf(path);
    const header = response.headers.get("content-disposition") ?? "";
    const full = header.match(/filename\*=UTF-8''([^;]+)/)?.[1];
    const name = full ? decodeURIComponent(full) : header.match(/filename="([^"]*)"/)?.[1];
    const address = URL.createObjectURL(await response.blob());
    el("a", { href: address, download: name ?? "" }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  } catch (error) {
    say(`Not exported: ${error.message}`, { bad: true });
  }
}
