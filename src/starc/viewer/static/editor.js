// The fields of one event in the list. Words count as they are typed; a time counts with Enter or on leaving.

import { el } from "./dom.js";
import { clock, parse } from "./times.js";

const NUDGE = { ArrowUp: 0.1, ArrowDown: -0.1 };

/** What a field shows of an event. */
const shownOf = (event, name) => (name === "caption" ? event.caption : clock(event[name], 2));

export class Editor {
  /** `panel` is the list; `key` names the event of the draft. */
  constructor(panel, key) {
    Object.assign(this, { panel, key, draft: panel.draft });
    const time = () => el("input", { type: "text", autocomplete: "off", spellcheck: "false", "aria-describedby": "refusal" });
    this.fields = { caption: el("textarea", { rows: 2, maxlength: 2000, dir: "auto" }), start: time(), end: time() };
    this.word = el("p", { class: "refusal bad wide", id: "refusal", role: "alert" });
    for (const [name, field] of Object.entries(this.fields)) this.listen(name, field);
    this.node = el("div", { class: "editor", role: "group", "aria-label": "Correct this event" },
      el("label", { class: "wide" }, "Caption", this.fields.caption),
      el("label", {}, "Start", this.fields.start), el("label", {}, "End", this.fields.end), this.word);
  }

  listen(name, field) {
    field.addEventListener("focus", (event) => {
      if (!event.relatedTarget?.closest(".editor")) this.panel.origin = event.relatedTarget;
      this.draft.hold();
    });
    field.addEventListener("blur", () => {
      if (this.panel.building) return;
      if (name !== "caption" && !this.commit(name)) this.fields[name].value = this.shown[name];
      this.draft.release();
    });
    field.addEventListener("input", () => {
      this.refuse("");
      if (name === "caption") this.draft.update(this.key, { caption: field.value });
    });
    field.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      const by = name === "caption" ? undefined : NUDGE[event.key];
      if (by) {
        event.preventDefault();
        this.refuse(this.draft.retime(this.key, { [name]: this.draft.find(this.key)[name] + by }) ?? "", name);
        field.value = shownOf(this.draft.find(this.key), name);
      } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && name === "caption") {
        event.preventDefault();
        this.panel.tell("split", { key: this.key, place: field.selectionStart });
      } else if (event.key === "Enter") {
        event.preventDefault();
        if (name === "caption" || this.commit(name)) this.leave();
      } else if (event.key === "Escape") {
        if (name !== "caption") field.value = this.shown[name];
        this.refuse("");
        this.leave();
      } else return;
      event.stopPropagation();
    });
  }

  /** A time as it was typed, into the draft; false, with a word, if that cannot be. */
  commit(name) {
    const { value } = this.fields[name];
    if (value === this.shown[name]) return true;
    const time = parse(value);
    const word = time === null ? `“${value}” is no time; write 1:05 or 65.5`
      : this.draft.retime(this.key, { [name]: time });
    this.refuse(word ?? "", name);
    if (!word) this.fields[name].value = shownOf(this.draft.find(this.key), name);
    return !word;
  }

  refuse(word, name = null) {
    this.word.textContent = word ? `Not taken: ${word}.` : "";
    for (const one of ["start", "end"]) {
      if (word && one === name) this.fields[one].setAttribute("aria-invalid", "true");
      else this.fields[one].removeAttribute("aria-invalid");
    }
  }

  /** Back to where the focus was before. */
  leave() {
    const { panel } = this;
    const { origin } = panel;
    document.activeElement.blur();
    if (origin?.isConnected) origin.focus();
    else if (origin) panel.rowOf(this.key)?.querySelector("button").focus();
  }

  /** New values in the fields, but never under the caret. */
  fill(event) {
    this.shown = { start: shownOf(event, "start"), end: shownOf(event, "end") };
    for (const [name, field] of Object.entries(this.fields)) {
      if (field !== document.activeElement) field.value = shownOf(event, name);
    }
  }
}
