// Drafts kept in this browser while somebody writes, until they are saved or thrown away. Each tab writes into
// a slot of its own, so that no tab can overwrite or delete what another one is writing.

const PAUSE = 250; // milliseconds between two notes of a drag or a word
const PREFIX = "starc.draft.";

function valid({ start, end, caption } = {}) {
  return Number.isFinite(start) && Number.isFinite(end) && typeof caption === "string";
}

function read(slot) {
  try {
    const kept = JSON.parse(localStorage.getItem(slot));
    return Array.isArray(kept?.events) && kept.events.every(valid) ? kept : null;
  } catch {
    return null;
  }
}

function remove(slot) {
  try {
    localStorage.removeItem(slot);
  } catch { /* then nothing was kept */ }
}

/** All drafts of this browser: `{ slot, id, tab, draft }`, the newest first. */
function all() {
  let names = [];
  try {
    names = Object.keys(localStorage).filter((name) => name.startsWith(PREFIX));
  } catch { /* no storage: no drafts */ }
  return names.map((slot) => {
    const [id, tab = ""] = slot.slice(PREFIX.length).split("."); // before 0.3 there was one slot per video
    return { slot, id, tab, draft: read(slot) };
  }).filter(({ draft }) => draft).sort((a, b) => b.draft.at - a.draft.at);
}

/** Ids of the videos of which this browser keeps a draft. */
export function videosWithDrafts() {
  return new Set(all().map(({ id }) => id));
}

export class Kept {
  /** The draft of video `id` in the tab named `tab`. */
  constructor(id, tab) {
    this.id = id;
    this.slot = `${PREFIX}${id}.${tab}`;
    this.failed = false; // no room, or no storage at all: then leaving the page asks
    this.flush = this.flush.bind(this);
    addEventListener("pagehide", this.flush);
    document.addEventListener("visibilitychange", this.flush);
  }

  /** Drafts of this video from other tabs, open or closed. */
  others() {
    return all().filter(({ id, slot }) => id === this.id && slot !== this.slot);
  }

  /** `{ events, seen, from, at }`: the events, the versions they were made with, and when. */
  write(events, seen, from) {
    this.waiting = { events, seen, from, at: Date.now() };
    this.timer ??= setTimeout(this.flush, PAUSE);
  }

  flush() {
    clearTimeout(this.timer);
    this.timer = undefined;
    if (!this.waiting) return;
    try {
      localStorage.setItem(this.slot, JSON.stringify(this.waiting));
      this.failed = false;
    } catch {
      this.failed = true;
    }
    this.waiting = null;
  }

  clear() {
    this.waiting = null;
    remove(this.slot);
  }

  /** Forget a draft of another tab. */
  drop({ slot }) {
    remove(slot);
  }
}
