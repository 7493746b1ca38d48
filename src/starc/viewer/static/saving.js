// What becomes of a draft: kept in the browser, saved as a version, held against another's, exported.

import { resolve } from "./conflict.js";
import { dialog } from "./dialog.js";
import { pairs, same } from "./differences.js";
import { ask, count, download, el, heard, say } from "./dom.js";
import { Kept } from "./kept.js";
import { entry, menu } from "./menu.js";
import { Tabs } from "./tabs.js";

const FORMATS = { // in the order of the menu
  srt: "SRT subtitles", vtt: "WebVTT captions", chapters: "WebVTT chapters", youtube: "YouTube chapters",
  ffmetadata: "ffmpeg chapters", csv: "CSV", markdown: "Markdown", transcript: "Transcript", html: "HTML page", json: "JSON",
  training: "Training annotations", predictions: "Prediction file",
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
    this.tabs = new Tabs(video.id);
    this.kept = new Kept(video.id, this.tabs.name);
    this.offered = null; // a draft of a tab that is no longer open
    this.elsewhere = 0; // the newest version that another tab told of
    this.adopt(video);
    this.draft.addEventListener("change", () => this.keep());
    for (const name of ["version", "export"]) menu($(name), $(`${name}-menu`));
    addEventListener("pageshow", (event) => event.persisted && this.keep()); // back, and its draft may have been taken over
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
    const [name, date] = versionName(video, version).split(" · ");
    $("version").replaceChildren(heard("Shown: "), name, date ? el("span", { class: "date" }, ` · ${date}`) : "");
    $("version").hidden = !saved.length;
    $("version-menu").replaceChildren(...[...saved.toReversed(), 0].map((number) =>
      entry(versionName(video, number), () => this.openVersion(number), number === version)));
    const order = [...new Set([...Object.keys(FORMATS), ...formats])].filter((format) => formats.includes(format));
    $("export-menu").replaceChildren(...order.map((format) => entry(FORMATS[format] ?? format, () => this.export(format))));
  }

  /** An older version is on the page: saving makes it the newest. */
  get old() {
    return this.state.editing && this.video.version !== this.video.newest;
  }

  keep() {
    if (this.draft.dirty) this.kept.write(this.draft.plain(), this.seen, this.from);
    else this.kept.clear();
    if (this.draft.dirty && this.offered) this.showOffer();
  }

  /** From now on the bar over the timeline tells of other drafts of this video. */
  async offer() {
    if (this.kept.others().length) await this.tabs.answered; // open tabs keep what they are writing
    this.showOffer();
    this.tabs.addEventListener("change", () => this.showOffer());
    this.tabs.addEventListener("saved", ({ detail }) => {
      this.elsewhere = Math.max(this.elsewhere, detail);
      this.showOffer();
    });
    addEventListener("storage", () => this.showOffer());
  }

  showOffer() {
    const others = this.kept.others();
    const left = this.draft.dirty ? [] : others.filter(({ tab }) => !this.tabs.open.has(tab));
    const changes = left.map(({ draft }) => pairs(this.draft.events, draft.events).filter(({ before, after }) => !same(before, after)).length);
    left.forEach((one, n) => changes[n] || this.kept.drop(one)); // the same as what is shown
    const place = changes.findIndex(Boolean);
    this.offered = left[place] ?? null;
    const lines = [];
    if (this.offered) {
      lines.push([`Not saved: ${count(changes[place], "change")} of ${day.format(this.offered.draft.at)}.`,
        ["Restore", () => this.take()], ["Discard", () => this.forget()]]);
    }
    if (others.some(({ tab }) => this.tabs.open.has(tab))) lines.push(["Another tab has changes of this video that are not saved."]);
    if (this.elsewhere > this.seen) {
      lines.push([`Version ${this.elsewhere} was saved in another tab.`, ["Show it", () => location.assign(location.pathname)]]);
    }
    const shown = JSON.stringify([this.offered?.slot, lines]);
    if ($("offer").dataset.shown === shown) return; // buttons that are built anew are lost clicks
    $("offer").dataset.shown = shown;
    $("offer").hidden = !lines.length;
    $("offer").replaceChildren(...lines.map(([words, ...buttons]) => el("p", {}, el("span", {}, words), ...buttons.map(
      ([label, click]) => el("button", { class: "button small", type: "button", on: { click } }, label)))));
  }

  take() {
    if (this.state.editing) this.restore();
    else this.page.editing.edit();
  }

  /** The offered draft onto the page, as one step that can be taken back, and into the slot of this tab. */
  restore() {
    const { offered } = this;
    if (!offered) return;
    const { events, seen, from } = offered.draft;
    this.offered = null;
    Object.assign(this, { seen, from });
    this.draft.replace(events);
    this.kept.flush();
    if (!this.kept.failed) this.kept.drop(offered);
    this.showOffer();
    say("Your changes are back; Save keeps them, Ctrl Z shows what was saved");
  }

  forget() {
    this.kept.drop(this.offered);
    this.showOffer();
  }

  /** Whether it was saved. */
  async save() {
    const { draft, page } = this;
    if (!draft.dirty && !this.old) return false;
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
      this.tabs.tell("saved", this.video.newest);
      this.showOffer();
      history.replaceState(null, "", location.pathname);
      page.editing.enable();
      say(`Saved as version ${this.video.version}`);
      return true;
    } catch (error) {
      if (error.status === 409) return this.settle();
      const place = error.body?.problems?.[0]?.event ?? null;
      if (place !== null) page.jump(page.data.events[place]);
      say(error.message, { bad: true });
      return false;
    }
  }

  /** Somebody saved in the meantime: both versions, event by event, then save what was taken. */
  async settle() {
    const path = `/api/videos/${this.video.id}`;
    try {
      const [base, theirs] = await Promise.all([ask(`${path}?version=${this.from}`), ask(path)]);
      const events = await resolve(base.record.events, this.draft.events, theirs.record.events, versionName(theirs, theirs.version));
      if (!events) {
        say("Not saved. Your changes stay here, and in this browser");
        return false;
      }
      this.draft.replace(events);
      Object.assign(this, { seen: theirs.newest, from: theirs.version });
      return await this.save();
    } catch (error) {
      say(error.message, { bad: true });
      return false;
    }
  }

  openVersion(number) {
    location.search = `?version=${number}`; // what is being written is kept, and offered there
  }

  async export(format) {
    if (this.draft.dirty) {
      const last = `Export ${versionName(this.video, this.video.version)}`;
      const answer = await dialog("Export", [el("p", {}, "What you are writing is not saved yet.")],
        [["save", "Save and export"], ["last", last]]);
      if (!answer || (answer === "save" && !(await this.save()))) return;
    }
    const { id, version } = this.video;
    download(`/api/videos/${id}/export/${encodeURIComponent(format)}?version=${version}`);
  }
}
