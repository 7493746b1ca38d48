// What can be done to events: buttons, keys and the menu. What becomes of them is in saving.js.

import { dialog } from "./dialog.js";
import { count, el, say } from "./dom.js";
import { menu } from "./menu.js";
import { askReplacement } from "./replacing.js";
import { Saving } from "./saving.js";
import { readSubtitles } from "./subtitles.js";
import { clock, round } from "./times.js";
import { toolbar } from "./toolbar.js";
import { compareVersions } from "./versions.js";

const MOST_EVENTS = 5000; // as the server has it
const $ = (id) => document.getElementById(id);
const within = (event, time) => time > event.start && time < event.end;

export class Editing {
  /** `page` is the video page; the draft, the lists and the timeline are its parts. */
  constructor(page, video) {
    Object.assign(this, { page, draft: page.draft, state: page.state });
    this.saving = new Saving(page, video);
    for (const name of ["edit", "add", "split", "merge", "remove", "undo", "redo", "save"]) {
      $(name).addEventListener("click", () => this[name]());
    }
    $("split").addEventListener("pointerdown", () => { this.caret = page.panel.caret; }); // before the field is left
    this.stop = toolbar($("correct"));
    menu($("more"), $("menu"));
    this.fillMenu();
  }

  fillMenu() {
    for (const name of ["find", "shift", "everything", "import", "history"]) {
      $(name).addEventListener("click", () => this[name]());
    }
    $("subtitles").addEventListener("change", (event) => this.read(event.target));
  }

  /** Buttons as the moment allows. */
  enable() {
    const { draft, state, saving } = this;
    const { size } = state.selected;
    $("edit-tools").hidden = !state.editing;
    $("edit").setAttribute("aria-pressed", String(state.editing));
    $("undo").disabled = !draft.past.length && !(draft.held && draft.held !== draft.events);
    $("redo").disabled = !draft.future.length;
    $("remove").disabled = $("merge").disabled = !size;
    $("shift").disabled = !size;
    $("history").disabled = !saving.video.saved.length && !draft.dirty;
    $("save").hidden = !state.editing && !draft.dirty;
    $("save").disabled = !draft.dirty && !saving.old;
    this.stop(document.activeElement);
    let hint = state.editing ? "Drag edges, events, or along the empty lane; write in the list." : "";
    if (saving.old) hint = "An older version: save to make it the newest.";
    if (size > 1) hint = `${count(size, "event")} chosen.`;
    $("hint").textContent = draft.dirty ? `${size > 1 ? `${hint} ` : ""}Not saved yet.` : hint;
  }

  edit() {
    const { draft, state, page } = this;
    draft.release();
    state.editing = !state.editing;
    if (state.editing) this.saving.restore();
    if (state.editing && page.panel.tab !== "events") page.panel.open("events");
    else page.panel.render();
    page.timeline.invalidate();
    this.enable();
  }

  /** On, for something that was asked for. */
  begin() {
    if (!this.state.editing) this.edit();
    if (this.page.panel.tab !== "events") this.page.panel.open("events");
  }

  add(time = this.page.player.time) {
    this.begin();
    this.write(this.draft.add(round(time)));
  }

  /** The chosen event, or the one that is on. */
  get subject() {
    const { draft, state, page } = this;
    return draft.find(state.chosen) ?? page.data.events.findLast((event) => within(event, page.player.time)) ?? null;
  }

  /** Into the caption of an event. */
  write(key = this.subject?.key) {
    if (key === undefined) return;
    this.begin();
    const { page } = this;
    if (!this.draft.find(key)) return; // a kept draft has taken the place of what was there
    page.choose(key);
    const row = page.panel.rowOf(key);
    if (!row) return;
    page.panel.keepInView(row);
    row.editor?.fields.caption.focus();
  }

  play() {
    const event = this.subject;
    if (event) this.page.player.playSpan(event);
    else say("Choose an event to play");
  }

  /** At the playhead; from within a caption also its words, at the caret. */
  split() {
    if (!this.state.editing) return;
    const { caret } = this;
    this.caret = null;
    if (caret) return this.splitWords(caret);
    const { page, draft } = this;
    const { time } = page.player;
    const chosen = draft.find(this.state.chosen);
    const event = chosen && within(chosen, time) ? chosen : page.data.events.findLast((one) => within(one, time));
    if (!event) return say("The playhead is in no event: nothing to split");
    const key = draft.split(event.key, time);
    if (key === null) return say(`Too close to an edge of the event (${clock(event.start, 2)} to ${clock(event.end, 2)})`);
    page.choose(key);
  }

  /** A caption at a letter. The times meet at the playhead, or, where it is not in the event, as the letters do. */
  splitWords({ key, place }) {
    const { draft, page } = this;
    document.activeElement.blur();
    draft.release();
    const event = draft.find(key);
    const share = event.start + ((event.end - event.start) * place) / Math.max(1, event.caption.length);
    const second = (within(event, page.player.time) ? draft.split(key, page.player.time, place) : null) ?? draft.split(key, share, place);
    if (second === null) return say(`Too short to split (${clock(event.start, 2)} to ${clock(event.end, 2)})`);
    this.write(second);
  }

  /** The chosen events, or the chosen one and the next. */
  merge() {
    const { state, draft, page } = this;
    if (!state.editing || state.chosen === null) return;
    const keys = new Set(state.selected);
    if (keys.size < 2) {
      const next = draft.events[draft.events.findIndex((event) => event.key === state.chosen) + 1];
      if (!next) return say("No event comes after this one");
      keys.add(next.key);
    }
    const n = keys.size;
    page.choose(draft.merge(keys));
    say(`${count(n, "event")} merged; Ctrl Z takes it back`);
  }

  remove() {
    const { draft, state } = this;
    if (!state.editing || !state.selected.size) return;
    const n = state.selected.size;
    const { panel } = this.page;
    if (panel.tab !== "events") { // nothing is deleted out of sight
      panel.open("events");
      return say(`${n === 1 ? "This event is" : `These ${n} events are`} chosen; press again to delete`);
    }
    draft.release();
    draft.remove(state.selected);
    this.page.choose(null);
    say(`${n === 1 ? "Event" : count(n, "event")} deleted; Ctrl Z brings ${n === 1 ? "it" : "them"} back`);
  }

  undo() {
    this.travel("undo");
  }

  redo() {
    this.travel("redo");
  }

  /** Undo or redo; if no chosen event is left, what came back is chosen. */
  travel(way) {
    const { draft, state, page } = this;
    if (!state.editing) return;
    draft.release();
    const before = new Set(draft.events);
    if (!draft[way]() || state.selected.size) return;
    const back = draft.events.filter((event) => !before.has(event)).map((event) => event.key);
    if (back.length && back.length < draft.events.length) page.mark(back[0], back);
  }

  /** Start or end of the chosen event to where the playhead is. */
  edge(name) {
    const { state, draft } = this;
    if (!state.editing || state.chosen === null) return;
    const word = draft.retime(state.chosen, { [name]: this.page.player.time });
    if (word) say(`The ${name} stays: ${word}`, { bad: true });
  }

  nudge(by) {
    const { state, draft } = this;
    if (state.editing && state.selected.size) draft.shift(state.selected, by);
  }

  everything() {
    this.begin();
    const keys = this.draft.events.map((event) => event.key);
    this.page.mark(keys.includes(this.state.chosen) ? this.state.chosen : keys[0] ?? null, keys);
  }

  async shift() {
    const { draft, state } = this;
    this.begin();
    const keys = new Set(state.selected);
    const field = el("input", { type: "number", step: "0.1", value: "0.5", required: true });
    const words = `${count(keys.size, "event")}: seconds later (with − before: earlier)`;
    const answer = await dialog("Move in time", [el("label", {}, words, field)], [["move", "Move"]]);
    if (!answer || !Number.isFinite(field.valueAsNumber)) return;
    const by = draft.shift(keys, field.valueAsNumber);
    say(by === field.valueAsNumber ? `Moved by ${by} s` : `Moved by ${by} s: the video goes no further`);
  }

  async find() {
    this.begin();
    const captions = await askReplacement(this.page.data.events, (event) => this.page.visit(event, "events"));
    if (!captions.size) return;
    this.draft.reword(captions);
    say(`${count(captions.size, "caption")} changed; Ctrl Z takes it back`);
  }

  import() {
    $("subtitles").click();
  }

  async read(input) {
    const [file] = input.files;
    if (!file) return;
    const { events, skipped } = readSubtitles(await file.text(), this.draft.duration);
    input.value = "";
    if (!events.length) return say(`${file.name}: no subtitles in it; SRT and WebVTT can be read`, { bad: true });
    if (events.length > MOST_EVENTS) return say(`${file.name}: ${events.length} subtitles; at most ${MOST_EVENTS}`, { bad: true });
    this.begin();
    this.draft.replace(this.draft.recognise(events));
    const rest = skipped ? `, ${skipped} left out (no words, or after the video)` : "";
    say(`${count(events.length, "event")} from ${file.name}${rest}. Save keeps them, Ctrl Z takes them back`);
  }

  history() {
    compareVersions(this.saving.video, this.draft);
  }

  offer() {
    return this.saving.offer();
  }

  save() {
    return this.saving.save();
  }
}
