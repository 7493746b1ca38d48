// What can be done to events: buttons, keys, saving, versions and export.

import { ask, download, el, say } from "./dom.js";

const FORMATS = {
  training: "Training annotations", json: "JSON", predictions: "Prediction file", vtt: "WebVTT captions",
  chapters: "WebVTT chapters", srt: "SRT", youtube: "YouTube chapters", ffmetadata: "ffmpeg chapters",
  csv: "CSV", markdown: "Markdown", html: "HTML page",
};
const $ = (id) => document.getElementById(id);

export class Editing {
  /** `page` is the video page; the draft, the lists and the timeline are its parts. */
  constructor(page, video) {
    Object.assign(this, { page, video, draft: page.draft, state: page.state });
    for (const name of ["edit", "add", "remove", "undo", "redo", "save"]) {
      $(name).addEventListener("click", () => this[name]());
    }
    $("version").addEventListener("change", (event) => this.openVersion(event.target));
    $("export").addEventListener("change", (event) => this.export(event.target));
    addEventListener("beforeunload", (event) => {
      if (this.draft.dirty) event.preventDefault();
    });
    this.fillMenus();
  }

  fillMenus() {
    const { saved, version, formats } = this.video;
    const named = (number) => (number ? `Version ${number}` : "Original");
    const numbers = [...saved.toReversed(), 0];
    $("version").replaceChildren(...numbers.map((number) =>
      el("option", { value: number, selected: number === version }, named(number))));
    $("version").closest("label").hidden = !saved.length;
    $("export").replaceChildren(el("option", { value: "" }, "Export…"), ...formats.map((format) =>
      el("option", { value: format }, FORMATS[format] ?? format)));
  }

  /** An older version is on the page: saving makes it the newest. */
  get old() {
    return this.state.editing && this.video.version !== this.video.newest;
  }

  /** Buttons as the moment allows. */
  enable() {
    const { draft, state } = this;
    $("edit-tools").hidden = !state.editing;
    $("edit").setAttribute("aria-pressed", String(state.editing));
    $("undo").disabled = !draft.past.length && !(draft.held && draft.held !== draft.events);
    $("redo").disabled = !draft.future.length;
    $("save").disabled = !draft.dirty && !this.old;
    $("remove").disabled = state.chosen === null || !draft.find(state.chosen);
    let hint = state.editing ? "Drag an edge or the whole event; write in the list." : "";
    if (this.old) hint = "An older version: save to make it the newest.";
    $("hint").textContent = draft.dirty ? "Not saved yet." : hint;
  }

  edit() {
    const { draft, state, page } = this;
    draft.release();
    state.editing = !state.editing;
    if (state.editing && page.panel.tab !== "events") page.panel.open("events");
    else page.panel.render();
    page.timeline.invalidate();
    this.enable();
  }

  add() {
    const { draft, page } = this;
    if (!this.state.editing) this.edit();
    page.panel.open("events");
    const key = draft.add(page.player.time);
    page.choose(key);
    page.panel.show({ key });
    document.querySelector(".editor textarea")?.focus();
  }

  remove() {
    const { draft, state } = this;
    if (!state.editing || state.chosen === null) return;
    draft.release();
    draft.remove(state.chosen);
    this.page.choose(null);
    say("Event deleted; Ctrl Z brings it back");
  }

  undo() {
    if (this.state.editing) this.draft.undo();
  }

  redo() {
    if (this.state.editing) this.draft.redo();
  }

  /** Start or end of the chosen event to where the playhead is. */
  edge(name) {
    const { state, draft } = this;
    if (state.editing && state.chosen !== null) draft.update(state.chosen, { [name]: this.page.player.time });
  }

  async save() {
    const { draft, page } = this;
    if (!this.state.editing || (!draft.dirty && !this.old)) return;
    if (document.activeElement?.closest(".editor")) document.activeElement.blur();
    draft.release();
    const events = draft.events;
    try {
      const body = { seen: this.video.newest, events: draft.plain() };
      await ask(`/api/videos/${this.video.id}/versions`, { method: "POST", body });
      this.video = await ask(`/api/videos/${this.video.id}`);
      draft.saved = events;
      history.replaceState(null, "", location.pathname);
      this.fillMenus();
      this.enable();
      say(`Saved as version ${this.video.version}`);
    } catch (error) {
      const place = error.body?.problems?.[0]?.event ?? null;
      if (place !== null) page.jump(page.data.events[place]);
      say(error.message, { bad: true });
    }
  }

  openVersion(menu) {
    if (this.draft.dirty && !confirm("Leave without saving your changes?")) {
      menu.value = String(this.video.version);
      return;
    }
    this.draft.saved = this.draft.events; // the question has been answered; do not ask again
    location.search = `?version=${menu.value}`;
  }

  export(menu) {
    const format = encodeURIComponent(menu.value);
    menu.value = "";
    if (!format) return;
    if (this.draft.dirty) say("The export has what was saved last, not what you are writing");
    const { id, version } = this.video;
    download(`/api/videos/${id}/export/${format}?version=${version}`);
  }
}
