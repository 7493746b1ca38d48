// One clock for the page: the video, or, where the browser has none to play, time itself.

import { clock, icon } from "./dom.js";

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
    for (const kind of ["play", "pause", "seeked", "timeupdate", "ended"]) {
      video.addEventListener(kind, () => this.tick());
    }
  }

  open(address) {
    this.video.addEventListener("error", () => this.imagine("This browser cannot play the video."));
    this.video.src = address;
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
    this.dispatchEvent(new Event("tick"));
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

/** The buttons below the picture. */
export function controls(player) {
  const [play, mute, full, time] = ["play", "mute", "full", "time"].map((id) => document.getElementById(id));
  const { video } = player;
  const whole = clock(player.duration);
  const now = document.createElement("b");
  time.replaceChildren(now, ` / ${whole}`);
  mute.replaceChildren(icon("sound"));
  full.replaceChildren(icon("full"));
  let drawn = null;
  player.addEventListener("tick", () => {
    now.textContent = clock(player.time);
    if (drawn === player.playing) return;
    drawn = player.playing;
    play.replaceChildren(icon(drawn ? "pause" : "play"));
    play.setAttribute("aria-label", drawn ? "Pause" : "Play");
  });
  play.addEventListener("click", () => player.toggle());
  video.addEventListener("click", () => player.toggle());
  mute.addEventListener("click", () => {
    video.muted = !video.muted;
    mute.replaceChildren(icon(video.muted ? "mute" : "sound"));
    mute.setAttribute("aria-label", video.muted ? "Sound on" : "Mute");
  });
  full.addEventListener("click", () => {
    if (document.fullscreenElement) document.exitFullscreen();
    else document.getElementById("screen").requestFullscreen?.().catch(() => {});
  });
  document.getElementById("speed").addEventListener("change", (event) => {
    player.speed(Number(event.target.value));
  });
  player.tick();
}
