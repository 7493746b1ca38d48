// The lists beside the video: events (with the editor), segments with what they retrieved, speech.
// They hold everything that the canvas shows, so that nobody needs the canvas.

import { count, el, heard, spoken, stamp } from "./dom.js";
import { Editor } from "./editor.js";
import { evidenceBox } from "./evidence.js";
import { grade } from "./matching.js";
import { MODEL, NOT_USED, originOf, PICTURES, takesPart } from "./origin.js";
import { retrievedList } from "./timeline.js";

const TABS = ["events", "segments", "speech"];
const TOUCH = 0.005; // seconds: less is no overlap
const STEPS = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };

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
        const shown = TABS.filter((_, n) => !this.tabs[n].hidden);
        this.open(shown[(shown.indexOf(TABS[place]) + by + shown.length) % shown.length]);
        this.tabs[TABS.indexOf(this.tab)].focus();
      });
    });
    this.list.addEventListener("keydown", (event) => this.walk(event));
    this.list.addEventListener("pointerdown", () => { this.pressed = true; });
    for (const kind of ["pointerup", "pointercancel"]) {
      addEventListener(kind, () => {
        this.pressed = false;
        if (this.late) setTimeout(() => this.late && this.render());
      });
    }
    this.list.addEventListener("mousedown", (event) => {
      // The list may scroll after the first click: a double click means the row of the first.
      if (event.detail === 1) this.first = event.target.closest(".row > button")?.parentNode.dataset.key;
    });
    this.list.addEventListener("dblclick", () => this.first && this.tell("write", Number(this.first)));
    this.render();
  }

  /** Up and down the rows: the list is one stop for Tab. */
  walk(event) {
    const by = STEPS[event.key];
    const row = event.target.closest(".row > button")?.parentNode;
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" && this.state.editing && row.dataset.key) {
      event.preventDefault();
      this.tell("write", Number(row.dataset.key));
    }
    if (!by) return;
    event.preventDefault();
    const place = Math.min(Math.max(0, this.rows.indexOf(row) + by), this.rows.length - 1);
    const { key } = this.rows[place].dataset;
    if (event.shiftKey && this.state.editing && key) this.tell("select", { key: Number(key), mode: "range" });
    this.rows[place].querySelector("button").focus();
    this.scrollTo(this.rows[place]);
  }

  /** Where the caret is in the caption that is being written, `{ key, place }`; null if there is none. */
  get caret() {
    const editor = this.rows.find((row) => row.editor)?.editor;
    const field = editor?.fields.caption;
    return field && field === document.activeElement ? { key: editor.key, place: field.selectionStart } : null;
  }

  rowOf(key) {
    return this.rows.find((row) => row.dataset.key === String(key));
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
      tab.hidden = name === "segments" && !data.segments.length;
      const title = name[0].toUpperCase() + name.slice(1);
      tab.setAttribute("aria-label", `${title}, ${counts[place]}`); // or it is read as one word
      tab.replaceChildren(title, el("span", {}, String(counts[place])));
    });
    this.late = this.pressed; // leaving a field by a click on a row may move the rows, and the click would miss
    if (this.late) return;
    const items = this.items();
    if (this.tab === "events" && this.refill(items)) {
      this.placeDetails();
      return this.mark();
    }
    const make = { events: eventRow, segments: segmentRow, speech: speechRow }[this.tab];
    const refocus = this.focused();
    this.building = true; // a field that is taken away must not count as left
    this.rows = items.map((item) => make.call(this, item));
    this.drawn = this.outline(items);
    const rows = el("ol", { "aria-label": this.tab }, ...this.rows);
    const note = this.note();
    this.list.replaceChildren(...(note ? [note] : []), items.length ? rows : this.nothing());
    this.building = false;
    this.list.tabIndex = items.length ? -1 : 0;
    this.marked = null;
    this.placeDetails();
    this.mark();
    refocus();
  }

  /** In the chosen row: where the event is from and, while editing, the fields. */
  placeDetails() {
    const chosen = this.tab === "events" ? this.rowOf(this.state.chosen) : undefined;
    this.placeEditor(this.state.editing ? chosen : undefined);
    const event = chosen && this.draft.find(this.state.chosen);
    const about = event && `${event.start} ${event.end} ${originOf(event)}`;
    const old = this.list.querySelector(".evidence");
    if (old && old.parentNode === chosen && (old.dataset.about === about || this.draft.held !== null)) return;
    old?.remove();
    if (!event) return;
    const box = evidenceBox(event, this.data);
    box.dataset.about = about; // it stays until that changes
    chosen.append(box);
  }

  placeEditor(wanted) {
    const old = this.rows.find((row) => row.editor);
    if (old === wanted) return;
    if (old) {
      const { node } = old.editor;
      old.editor = null;
      node.remove();
    }
    if (!wanted) return;
    wanted.editor = new Editor(this, this.state.chosen);
    wanted.querySelector("button").after(wanted.editor.node);
    wanted.editor.fill(this.draft.find(this.state.chosen));
  }

  /** The way back for the focus when rows are built anew: same event, same field, same caret. */
  focused() {
    const { activeElement } = document;
    const row = activeElement?.closest(".row");
    if (!row || !this.list.contains(row)) return () => {};
    const { origin } = this;
    const { key } = row.dataset;
    const name = Object.keys(row.editor?.fields ?? {}).find((one) => row.editor.fields[one] === activeElement);
    const { selectionStart, selectionEnd, value } = activeElement;
    return () => {
      const now = key && this.rowOf(key);
      const field = now?.editor?.fields[name];
      if (field) {
        field.value = value;
        field.focus({ preventScroll: true });
        field.setSelectionRange(selectionStart, selectionEnd);
        this.origin = origin;
      } else now?.querySelector("button").focus({ preventScroll: true });
    };
  }

  /** What must be the same for the rows to stay: the events and their order. */
  outline(items) {
    return `${this.tab} ${items.map((item) => item.key).join()}`;
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

  /** Over events that were withheld at first, and over segments or speech that took part in none. */
  note() {
    if (this.tab === "events") return this.warning();
    const sources = { segments: PICTURES, speech: ["speech"] }[this.tab];
    if (!sources || !this.items().length || takesPart(this.data.events, sources) !== false) return null;
    return el("p", { class: "apart" }, `${NOT_USED}.`);
  }

  /** Captions that somebody asked for although there is a reason against them. */
  warning() {
    const { events, forced } = this.data;
    if (!forced || !events.length || takesPart(events, MODEL) === false) return null;
    return el("p", { class: "apart" }, `Captioned anyway; the captions are likely wrong${forced === "yes" ? "" : ` (${forced})`}.`);
  }

  nothing() {
    const words = {
      events: this.state.editing ? "No events. Add one where the playhead is." : this.data.reason || "No events.",
      segments: "No segments in this record.",
      speech: "No speech in this record.",
    }[this.tab];
    const box = el("div", { class: "none" }, words);
    const { canCaption, canCaptionAnyway } = this.data;
    if (this.tab === "events" && (canCaption || canCaptionAnyway)) {
      box.append(el("br"), el("button", {
        class: canCaption ? "button primary" : "button", type: "button",
        on: { click: () => this.tell("caption", { anyway: canCaptionAnyway }) },
      }, canCaption ? "Caption this video" : "Caption anyway"));
    }
    return box;
  }

  /** Highlight what is happening now, and keep it in sight while the video plays. */
  mark() {
    const { time } = this.state;
    const items = this.items();
    const now = items.flatMap((item, n) => (time >= item.start && time < item.end ? [n] : []));
    const key = `${this.tab}:${now.join()}:${this.state.editing}:${this.state.chosen}:${[...this.state.selected].join()}`;
    if (key === this.marked) return;
    this.marked = key;
    const { state } = this;
    const held = this.tab === "events" ? this.rowOf(state.chosen) : undefined;
    const stop = held ?? this.rows[now[0] ?? 0]; // the one row that Tab stops at
    this.rows.forEach((row, n) => {
      const current = now.includes(n);
      row.classList.toggle("current", current);
      const button = row.querySelector("button");
      if (current) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
      const chosen = state.selected.has(Number(row.dataset.key));
      row.classList.toggle("chosen", chosen);
      if (state.editing && row.dataset.key) button.setAttribute("aria-pressed", String(chosen));
      else button.removeAttribute("aria-pressed");
      button.tabIndex = row === stop ? 0 : -1;
    });
    if (held && state.editing && !this.pressed) this.keepInView(held);
    else if (now.length && state.playing && this.rows[now[0]]) this.scrollTo(this.rows[now[0]]);
  }

  /** Rows out of sight have guessed heights, which change when they come into it: look again. */
  keepInView(row, frames = 4) {
    if (!row.isConnected || this.pressed) return; // a list that moves under the pointer is a lost click
    this.scrollTo(row);
    if (frames) requestAnimationFrame(() => this.keepInView(row, frames - 1));
  }

  /** Scrolls the list alone: scrollIntoView would move the page on a phone. */
  scrollTo(row) {
    const { list } = this;
    const from = list.scrollTop;
    const place = row.offsetTop;
    if (place < from || place + row.offsetHeight > from + list.clientHeight) {
      const room = Math.max(0, list.clientHeight - row.offsetHeight);
      list.scrollTop = place - Math.min(room, list.clientHeight / 3);
    }
  }

  show(item) {
    const place = this.items().findIndex((one) => one === item || (item.key && one.key === item.key));
    if (place >= 0) this.scrollTo(this.rows[place]);
  }

  jump(item) {
    return (event) => {
      if (event.detail > 1 && item.key && this.first !== String(item.key)) return;
      const mode = event.shiftKey ? "range" : event.ctrlKey || event.metaKey ? "toggle" : null;
      if (mode && this.state.editing && item.key) return this.tell("select", { key: item.key, mode });
      const now = item.key ? this.data.events.find((one) => one.key === item.key) : item;
      this.tell("jump", now ?? item);
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
  fill.call(this, row, event);
  return row;
}

/** The words of a row, if they are not there already. */
function fill(row, event) {
  const { match } = event;
  const overlap = this.state.editing && event.overlap > TOUCH ? event.overlap.toFixed(2) : null;
  const shown = JSON.stringify([event.start, event.end, event.caption, match?.iou, match?.event.caption, event.confidence, event.times_from, event.words_from,
    overlap]);
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
    overlap ? el("span", { class: "under overlap" }, `overlaps the next event by ${overlap} s`) : null,
  ];
  button.replaceChildren(...parts.filter(Boolean));
  row.editor?.fill(event);
  row.querySelector(".evidence")?.replaceWith(evidenceBox(event, this.data));
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
