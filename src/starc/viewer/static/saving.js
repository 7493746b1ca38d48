// What becomes of a draft: kept in the browser, saved as a version, held against another's, exported.

import { resolve } from "./conflict.js";
import { ask, count, download, el, say } from "./dom.js";
import { pairs, same } from "./differences.js";
import { Kept } from "./kept.js";

const FORMATS = {
  training: "Training annotations", json: "JSON", predictions: "Prediction file", vtt: "WebVTT captions",
  chapters: "WebVTT chapters", srt: "SRT", youtube: "YouTube chapters", ffmetadata: "ffmpeg chapters",
  csv: "CSV", markdown: "Markdown", transcript: "Transcript", html: "HTML page",
};
const $ = (id) => document.getElementById(id);
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** A version as people call it: "Version 2 · 17 Nov 2026, 14:03". */
export function versionName({ saved, dates }, number) {
  const date = number ? Date.parse(dates[saved.indexOf(number)]) : NaN;
  const name = number ? `Version ${number}` : "Original";
  return Number.isNaN(date) ? name : `${name} · ${day.format(date)}`;
}

export class Saving {
  constructor(page, video) {
    Object.assign(this, { page, draft: page.draft, state: page.state });
    this.kept = new Kept(video.id);
    this.offered = this.kept.read();
    this.adopt(video);
    this.draft.addEventListener("change", () => this.keep());
    $("version").addEventListener("change", (event) => this.openVersion(event.target));
    $("export").addEventListener("change", (event) => this.export(event.target));
    addEventListener("beforeunload", (event) => {
      this.kept.flush();
      if (this.draft.dirty && this.kept.failed) event.preventDefault();
    });
  }

  /** `seen` is the newest version known here; `from` the one that the draft began with. */
  adopt(video) {
    this.video = video;
    this.seen = video.newest;
    this.from = video.version;
    const { saved, version, formats } = video;
    $("version").replaceChildren(...[...saved.toReversed(), 0].map((number) =>
      el("option", { value: number, selected: number === version }, versionName(video, number))));
    $("version").closest("label").hidden = !saved.length;
    $("export").replaceChildren(el("option", { value: "" }, "Export…"), ...formats.map((format) =>
      el("option", { value: format }, FORMATS[format] ?? format)));
  }

  /** An older version is on the page: saving makes it the newest. */
  get old() {
    return this.state.editing && this.video.version !== this.video.newest;
  }

  keep() {
    if (this.offered) return; // nothing is written over before it was asked for
    if (this.draft.dirty) this.kept.write(this.draft.plain(), this.seen, this.from);
    else this.kept.clear();
  }

  /** Tell that a draft is here from before. */
  offer() {
    if (!this.offered) return;
    const changes = pairs(this.draft.events, this.offered.events).filter(({ before, after }) => !same(before, after));
    if (!changes.length) return this.forget();
    const words = `Not saved: ${count(changes.length, "change")} of ${day.format(this.offered.at)}.`;
    const button = (label, action) => el("button", { class: "button small", type: "button", on: { click: action } }, label);
    const take = () => {
      if (this.state.editing) this.restore();
      else this.page.editing.edit();
    };
    $("offer").hidden = false;
    $("offer").replaceChildren(el("span", {}, words), button("Restore", take), button("Discard", () => this.forget()));
  }

  /** The kept draft onto the page, as one step that can be taken back. */
  restore() {
    if (!this.offered) return;
    const { events, seen, from } = this.offered;
    this.hideOffer();
    Object.assign(this, { seen, from });
    this.draft.replace(events);
    say("Your changes are back; Save keeps them, Ctrl Z shows what was saved");
  }

  forget() {
    this.hideOffer();
    this.kept.clear();
  }

  hideOffer() {
    this.offered = null;
    $("offer").hidden = true;
  }

  async save() {
    const { draft, page } = this;
    if (!draft.dirty && !this.old) return;
    if (document.activeElement?.closest(".editor")) document.activeElement.blur();
    draft.release();
    const { events } = draft;
    const { id } = this.video;
    try {
      const body = { seen: this.seen, events: draft.plain() };
      await ask(`/api/videos/${id}/versions`, { method: "POST", body });
      this.adopt(await ask(`/api/videos/${id}`));
      draft.saved = events;
      this.keep();
      history.replaceState(null, "", location.pathname);
      page.editing.enable();
      say(`Saved as version ${this.video.version}`);
    } catch (error) {
      if (error.status === 409) return this.settle();
      const place = error.body?.problems?.[0]?.event ?? null;
      if (place !== null) page.jump(page.data.events[place]);
      say(error.message, { bad: true });
    }
  }

  /** Somebody saved in the meantime: both versions, event by event, then save what was taken. */
  async settle() {
    const path = `/api/videos/${this.video.id}`;
    try {
      const [base, theirs] = await Promise.all([ask(`${path}?version=${this.from}`), ask(path)]);
      const events = await resolve(base.record.events, this.draft.events, theirs.record.events, versionName(theirs, theirs.version));
      if (!events) return say("Not saved. Your changes stay here, and in this browser");
      this.draft.replace(events);
      Object.assign(this, { seen: theirs.newest, from: theirs.version });
      await this.save();
    } catch (error) {
      say(error.message, { bad: true });
    }
  }

  openVersion(menu) {
    location.search = `?version=${menu.value}`; // what is being written is kept, and offered there
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
