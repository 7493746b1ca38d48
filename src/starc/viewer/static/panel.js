// The lists beside the video: events (with the editor), segments with what they retrieved, speech.
// They hold everything that the canvas shows, so that nobody needs the canvas.

import { count, el, heard, spoken, stamp } from "./dom.js";
import { evidenceBox } from "./evidence.js";
import { grade } from "./matching.js";
import { retrievedList } from "./timeline.js";

const TABS = ["events", "segments", "speech"];

export class Panel extends EventTarget {
  constructor(data, state, draft) {
    super();
    Object.assign(this, { data, state, draft });
    this.list = document.getElementById("list");
    this.tabs = TABS.map((name) => document.getElementById(`tab-${name}`));
    this.tab = "events";
    this.tabs.forEach((tab, place) => {
      tab.addEventListener("click", () => this.open(TABS[place]));
      tab.addEventListener("keydown", (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!by) return;
        event.stopPropagation();
        this.open(TABS[(place + by + TABS.length) % TABS.length]);
        this.tabs[TABS.indexOf(this.tab)].focus();
      });
    });
    this.render();
  }

  tell(kind, detail) {
    this.dispatchEvent(new CustomEvent(kind, { detail }));
  }

  open(name) {
    this.tab = name;
    this.tabs.forEach((tab, place) => {
      const chosen = TABS[place] === name;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
    });
    this.list.setAttribute("aria-labelledby", `tab-${name}`);
    this.render();
  }

  items() {
    return { events: this.data.events, segments: this.data.segments, speech: this.data.sentences }[this.tab];
  }

  render() {
    const { data } = this;
    const counts = [data.events, data.segments, data.sentences].map((items) => items.length);
    this.tabs.forEach((tab, place) => {
      const name = TABS[place];
      tab.replaceChildren(name[0].toUpperCase() + name.slice(1), el("span", {}, String(counts[place])));
    });
    const items = this.items();
    if (this.tab === "events" && this.refill(items)) return this.mark();
    const make = { events: eventRow, segments: segmentRow, speech: speechRow }[this.tab];
    this.rows = items.map((item) => make.call(this, item));
    this.drawn = this.outline(items);
    const rows = el("ol", { "aria-label": this.tab }, ...this.rows);
    this.list.replaceChildren(items.length ? rows : this.nothing());
    this.marked = null;
    this.mark();
  }

  /** What must be the same for the rows to stay: the events, their order, and where the editor is. */
  outline(items) {
    const { editing, chosen } = this.state;
    return `${this.tab} ${editing} ${chosen} ${items.map((item) => item.key).join()}`;
  }

  /** New words in old rows: a row that is built anew under a finger or a caret is a lost click. */
  refill(items) {
    const same = this.drawn === this.outline(items);
    if (!same && this.draft.held === null) return false;
    if (!items.length) return same;
    const rows = new Map(this.rows.map((row) => [row.dataset.key, row]));
    for (const event of items) {
      const row = rows.get(String(event.key));
      if (row) fill.call(this, row, event);
    }
    if (same) this.marked = null;
    return true;
  }

  nothing() {
    const words = {
      events: this.state.editing ? "No events. Add one where the playhead is." : this.data.unfamiliar || "No events.",
      segments: "No segments in this record.",
      speech: "No speech in this record.",
    }[this.tab];
    const box = el("div", { class: "none" }, words);
    if (this.tab === "events" && this.data.canCaption) {
      box.append(el("br"), el("button", {
        class: "button primary", type: "button", on: { click: () => this.tell("caption") },
      }, "Caption this video"));
    }
    return box;
  }

  /** Highlight what is happening now, and keep it in sight while the video plays. */
  mark() {
    const { time } = this.state;
    const items = this.items();
    const now = items.flatMap((item, n) => (time >= item.start && time < item.end ? [n] : []));
    const key = `${this.tab}:${now.join()}:${this.state.chosen}`;
    if (key === this.marked) return;
    this.marked = key;
    this.rows.forEach((row, n) => {
      const current = now.includes(n);
      row.classList.toggle("current", current);
      const button = row.querySelector("button");
      if (current) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
      row.classList.toggle("chosen", this.tab === "events" && items[n].key === this.state.chosen);
    });
    if (now.length && this.state.playing) this.scrollTo(this.rows[now[0]]);
  }

  /** Scrolls the list alone: scrollIntoView would move the page on a phone. */
  scrollTo(row) {
    const { list } = this;
    const top = row.offsetTop - list.offsetTop;
    const from = list.scrollTop;
    const inset = getComputedStyle(list).position === "static" ? top : row.offsetTop;
    if (inset < from || inset + row.offsetHeight > from + list.clientHeight) {
      list.scrollTop = inset - list.clientHeight / 3;
    }
  }

  show(item) {
    const place = this.items().findIndex((one) => one === item || (item.key && one.key === item.key));
    if (place >= 0) this.scrollTo(this.rows[place]);
  }

  jump(item) {
    return (event) => {
      const now = item.key ? this.data.events.find((one) => one.key === item.key) : item;
      this.tell("jump", now ?? item);
      if (event.detail > 0) event.currentTarget.blur(); // so that Space plays again after a click
    };
  }
}

function chipOf(event, reference) {
  const { match, confidence } = event;
  if (reference && match) {
    const title = "overlap with the matched reference";
    return el("span", { class: `chip ${grade(match.iou)}`, title }, `IoU ${match.iou.toFixed(2)}`);
  }
  if (reference) return el("span", { class: "chip" }, "no match");
  if (confidence === null || confidence === undefined) return null;
  return el("span", { class: "chip", title: "how sure the model is" }, `${Math.round(confidence * 100)} %`);
}

function eventRow(event) {
  const row = el("li", { class: "row", data: { key: event.key } },
    el("button", { type: "button", on: { click: this.jump(event) } }));
  if (this.state.editing && event.key === this.state.chosen) row.append(editor(row, event, this.draft));
  if (event.key === this.state.chosen) row.append(evidenceBox(event, this.data));
  fill.call(this, row, event);
  return row;
}

/** The words of a row, if they are not there already. */
function fill(row, event) {
  const { match } = event;
  const shown = JSON.stringify([event.start, event.end, event.caption, match?.iou, match?.event.caption, event.confidence]);
  if (row.shown === shown) return;
  row.shown = shown;
  const button = row.querySelector("button");
  const parts = [
    heard(`${spoken(event.start)} to ${spoken(event.end)}: `),
    stamp(event.start),
    el("span", { class: "words", dir: "auto" }, event.caption || "(no caption)"),
    chipOf(event, this.data.reference),
    match && match.event.caption !== event.caption
      ? el("span", { class: "under" }, el("b", {}, "Reference"), el("span", { dir: "auto" }, match.event.caption)) : null,
    event.repeated ? el("span", { class: "under" }, "said before about this moment") : null,
  ];
  button.replaceChildren(...parts.filter(Boolean));
  row.querySelector(".evidence")?.replaceWith(evidenceBox(event, this.data));
  for (const [name, field] of Object.entries(row.fields ?? {})) {
    if (field === document.activeElement) continue; // never under the caret
    field.value = name === "caption" ? event.caption : event[name].toFixed(2);
  }
}

/** Fields for one event. What is typed in one field is one step of undo. */
function editor(row, event, draft) {
  const number = () => el("input", { type: "number", min: 0, max: draft.duration, step: "any" });
  const fields = { caption: el("textarea", { rows: 2, maxlength: 2000, dir: "auto" }), start: number(), end: number() };
  row.fields = fields;
  for (const [name, field] of Object.entries(fields)) {
    field.addEventListener("focus", () => draft.hold());
    field.addEventListener("blur", () => draft.release());
    field.addEventListener("input", () => {
      const value = name === "caption" ? field.value : field.valueAsNumber;
      if (name === "caption" || Number.isFinite(value)) draft.update(event.key, { [name]: value });
    });
  }
  return el("div", { class: "editor", role: "group", "aria-label": "Correct this event" },
    el("label", { class: "wide" }, "Caption", fields.caption),
    el("label", {}, "Start (s)", fields.start), el("label", {}, "End (s)", fields.end));
}

function segmentRow(segment) {
  const dot = el("i", { class: "dot" });
  dot.style.background = `var(--anchor-${((segment.anchor % 10) + 10) % 10})`;
  const name = `Anchor ${segment.anchor}`;
  const state = segment.kept ? "kept" : "not kept";
  const retrieved = count(segment.captions.length, "retrieved caption");
  return el("li", { class: "row" },
    el("button", { type: "button", on: { click: this.jump(segment) } },
      heard(`${spoken(segment.start)} to ${spoken(segment.end)}, `), stamp(segment.start),
      el("span", { class: "words" }, dot, name),
      el("span", { class: segment.kept ? "chip good" : "chip" }, state), heard(`, ${retrieved}`)),
    segment.captions.length ? inset(retrievedList(segment.captions)) : null);
}

function inset(list) {
  list.classList.add("inset");
  return list;
}

function speechRow(sentence) {
  return el("li", { class: "row" },
    el("button", { type: "button", on: { click: this.jump(sentence) } },
      heard(`${spoken(sentence.start)}: `), stamp(sentence.start), el("span", { class: "words", dir: "auto" }, sentence.text)));
}
