// One clock for the page: the video, or, where the browser has none to play, time itself.

import { clock, icon, keyed, spoken } from "./dom.js";

const ASSUMED = 25; // frames a second, where there is no video or it does not say

export class Player extends EventTarget {
  constructor(video, duration) {
    super();
    this.video = video;
    this.length = duration;
    this.imagined = false; // no picture: a clock that runs by itself
    this.at = 0;
    this.since = 0;
    this.running = false;
    this.rate = 1;
    this.fps = ASSUMED;
    this.span = null; // what plays alone, or round and round
    this.looping = false;
    for (const kind of ["play", "pause", "seeked", "timeupdate", "ended"]) {
      video.addEventListener(kind, () => this.tick());
    }
  }

  open(address) {
    this.video.addEventListener("error", () => this.imagine("This browser cannot play the video."));
    this.video.src = keyed(address);
  }

  imagine(words) {
    this.at = this.time;
    this.imagined = true;
    const note = document.getElementById("no-video");
    note.textContent = `${words} The timeline works all the same.`;
    note.hidden = false;
    this.tick();
  }

  tick() {
    const { span } = this;
    const going = this.imagined ? this.running : !this.video.paused || this.video.ended;
    // The file may end a little before the record says: that is the end of an event too.
    const over = span && (this.time >= Math.min(span.end, this.length) - 1e-3 || (!this.imagined && this.video.ended));
    if (over && going) {
      if (this.looping) {
        this.seek(span.start + 1e-3);
        if (!this.playing) this.toggle();
        return;
      }
      this.span = null;
      if (this.playing) this.toggle(); // at the end of the video it has stopped by itself
    }
    this.dispatchEvent(new Event("tick"));
  }

  /** Play a stretch from its start, and stop at its end. */
  playSpan(span) {
    this.seek(span.start + 1e-3);
    this.span = span;
    if (!this.playing) this.toggle();
  }

  /** The event that goes round while looping is on; null for the whole video. */
  loop(span) {
    if (this.looping) this.span = span;
  }

  setLooping(on, span) {
    this.looping = on;
    this.span = on ? span : null;
  }

  /** One picture back (-1) or ahead (1). */
  stepFrame(by) {
    if (this.playing) this.toggle();
    const frame = Math.floor(this.time * this.fps + 1e-2);
    this.seek((frame + by) / this.fps + 1e-3);
  }

  get duration() {
    return this.length;
  }

  get time() {
    if (!this.imagined) return this.wanted ?? this.video.currentTime;
    const run = this.running ? ((performance.now() - this.since) / 1000) * this.rate : 0;
    return Math.min(this.length, this.at + run);
  }

  get playing() {
    return this.imagined ? this.running && this.time < this.length : !this.video.paused;
  }

  seek(time) {
    const to = Math.min(Math.max(0, time), this.length);
    if (!this.looping) this.span = null;
    if (this.imagined) {
      this.at = to;
      this.since = performance.now();
    } else if (this.video.readyState > 0) {
      this.video.currentTime = to;
    } else {
      this.wanted = to; // before the metadata a video ignores where it is sent
      const go = () => {
        if (this.wanted === undefined) return;
        this.video.currentTime = this.wanted;
        this.wanted = undefined;
      };
      this.video.addEventListener("loadedmetadata", go, { once: true });
    }
    this.tick();
  }

  toggle() {
    if (this.imagined) {
      this.at = this.time >= this.length ? 0 : this.time;
      this.since = performance.now();
      this.running = !this.running;
      this.tick();
    } else if (this.video.paused) {
      this.video.play().catch(() => this.imagine("The video cannot be played."));
    } else {
      this.video.pause();
    }
  }

  speed(rate) {
    this.at = this.time;
    this.since = performance.now();
    this.rate = rate;
    this.video.playbackRate = rate;
  }
}

/** The buttons below the picture; `chosen` gives the event that loops. */
export function controls(player, chosen) {
  const [play, mute, full, time, seek, loop] = ["play", "mute", "full", "time", "seek", "loop"]
    .map((id) => document.getElementById(id));
  const { video } = player;
  const whole = clock(player.duration);
  const now = document.createElement("b");
  time.replaceChildren(now, ` / ${whole}`);
  mute.replaceChildren(icon("sound"));
  full.replaceChildren(icon("full"));
  loop.replaceChildren(icon("loop"));
  seek.max = player.duration;
  let drawn = null;
  player.addEventListener("tick", () => {
    const at = clock(player.time);
    if (now.textContent !== at) {
      now.textContent = at;
      seek.setAttribute("aria-valuetext", `${spoken(player.time)} of ${spoken(player.duration)}`);
    }
    seek.value = player.time;
    if (drawn === player.playing) return;
    drawn = player.playing;
    play.replaceChildren(icon(drawn ? "pause" : "play"));
    play.setAttribute("aria-label", drawn ? "Pause" : "Play");
  });
  play.addEventListener("click", () => player.toggle());
  video.addEventListener("click", () => player.toggle());
  seek.addEventListener("input", () => player.seek(Number(seek.value)));
  loop.addEventListener("click", () => {
    player.setLooping(!player.looping, chosen());
    loop.setAttribute("aria-pressed", String(player.looping));
  });
  mute.addEventListener("click", () => {
    video.muted = !video.muted;
    mute.replaceChildren(icon(video.muted ? "mute" : "sound"));
    mute.setAttribute("aria-label", video.muted ? "Sound on" : "Mute");
  });
  full.addEventListener("click", () => {
    if (document.fullscreenElement) document.exitFullscreen();
    else document.querySelector(".stage").requestFullscreen?.().catch(() => {});
  });
  document.getElementById("speed").addEventListener("change", (event) => {
    player.speed(Number(event.target.value));
  });
  player.tick();
}
