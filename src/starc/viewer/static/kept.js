// A draft kept in this browser while somebody writes, until it is saved or thrown away.

const PAUSE = 250; // milliseconds between two notes of a drag or a word

function valid({ start, end, caption } = {}) {
  return Number.isFinite(start) && Number.isFinite(end) && typeof caption === "string";
}

export class Kept {
  constructor(id) {
    this.name = `starc.draft.${id}`;
    this.failed = false; // no room, or no storage at all: then leaving the page asks
    this.flush = this.flush.bind(this);
    addEventListener("pagehide", this.flush);
    document.addEventListener("visibilitychange", this.flush);
  }

  /** `{ events, seen, from, at }`: the events, the versions they were made with, and when. */
  read() {
    try {
      const kept = JSON.parse(localStorage.getItem(this.name));
      return Array.isArray(kept?.events) && kept.events.every(valid) ? kept : null;
    } catch {
      return null;
    }
  }

  write(events, seen, from) {
    this.waiting = { events, seen, from, at: Date.now() };
    this.timer ??= setTimeout(this.flush, PAUSE);
  }

  flush() {
    clearTimeout(this.timer);
    this.timer = undefined;
    if (!this.waiting) return;
    try {
      localStorage.setItem(this.name, JSON.stringify(this.waiting));
      this.failed = false;
    } catch {
      this.failed = true;
    }
    this.waiting = null;
  }

  clear() {
    this.waiting = null;
    try {
      localStorage.removeItem(this.name);
    } catch { /* then nothing was kept */ }
  }
}
