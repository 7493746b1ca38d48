// The tabs of this browser that show one video: they tell each other that they are open, and when they save.

const PATIENCE = 200; // milliseconds in which an open tab answers

/** A name for this tab. (`randomUUID` is not available over plain HTTP from another machine.) */
function newName() {
  return [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Fires "change" when another tab comes or goes, "saved" (detail: the version) when one saves. */
export class Tabs extends EventTarget {
  constructor(id) {
    super();
    this.name = newName();
    this.open = new Set();
    this.channel = new BroadcastChannel(`starc.video.${id}`);
    this.channel.addEventListener("message", ({ data }) => this.hear(data));
    addEventListener("pagehide", () => this.tell("gone"));
    addEventListener("pageshow", (event) => event.persisted && this.tell("hello"));
    this.tell("hello");
    this.answered = new Promise((resolve) => { setTimeout(resolve, PATIENCE); });
  }

  tell(kind, version = null) {
    this.channel.postMessage({ kind, name: this.name, version });
  }

  hear({ kind, name, version }) {
    if (kind === "hello") this.tell("here");
    if (kind === "gone") this.open.delete(name);
    else this.open.add(name);
    if (kind === "saved") this.dispatchEvent(new CustomEvent("saved", { detail: version }));
    this.dispatchEvent(new Event("change"));
  }
}
