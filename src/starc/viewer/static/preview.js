// A video that this browser cannot play: the server makes a small copy, and the page plays that.

import { ask, keyed } from "./dom.js";

const POLL = 1000;

/** Watch for a video without a picture; `player` then plays the copy as soon as there is one. */
export function previewIfNeeded(player, id) {
  const { video } = player;
  const note = document.getElementById("no-video");
  let asked = false;

  async function make() {
    if (asked) return;
    asked = true;
    const tell = (words) => {
      note.hidden = false;
      note.textContent = words;
    };
    try {
      for (;;) {
        const preview = await ask(`/api/videos/${id}/preview`, { method: "POST" });
        if (preview.state === "ready") break;
        if (preview.state === "failed") throw new Error(preview.message);
        tell(`This browser cannot play the video. A small copy is being made: ${Math.round(preview.done * 100)} %. The timeline works meanwhile.`);
        await new Promise((done) => setTimeout(done, POLL));
      }
      const at = player.time;
      video.pause();
      player.imagined = false;
      video.src = keyed(`/api/videos/${id}/preview`);
      player.seek(at);
      note.hidden = true;
      document.getElementById("preview-note").hidden = false;
    } catch (error) {
      tell(`This browser cannot play the video, and there is no copy of it: ${error.message}`);
    }
  }
  video.addEventListener("error", make);
  // HEVC in a browser that has none: the sound plays, and there is no picture.
  video.addEventListener("loadedmetadata", () => {
    if (!video.videoWidth) make();
  });
}
