// Captioning from the page: drop or choose a video, watch the stages, cancel.

import { ask, count, el, icon, keyed, say } from "./dom.js";

const RECENT = 3; // finished ones that are still shown
const list = document.getElementById("job-list");
const uploads = new Set(); // what is on its way, or did not arrive and can be sent again
let rows = [];
let limit = Infinity;
let source = null;

/** What the server would refuse anyway is refused before gigabytes are sent. */
async function looksLikeVideo(file) {
  const head = new Uint8Array(await file.slice(0, 12).arrayBuffer());
  const text = (from, to) => String.fromCharCode(...head.slice(from, to));
  return ["ftyp", "moov", "mdat", "wide"].includes(text(4, 8))
    || (head[0] === 0x1a && head[1] === 0x45 && head[2] === 0xdf && head[3] === 0xa3)
    || (text(0, 4) === "RIFF" && text(8, 12) === "AVI ");
}

async function send(file, watch) {
  if (file.size > limit) return say(`${file.name} is larger than ${Math.round(limit / 2 ** 20)} MB`, { bad: true });
  if (!(await looksLikeVideo(file))) return say(`${file.name} is not a video`, { bad: true });
  const request = new XMLHttpRequest(); // fetch cannot tell how much has been sent
  const upload = { name: file.name, done: 0, request, failed: null };
  const drop = () => {
    uploads.delete(upload);
    draw();
  };
  upload.again = () => {
    drop();
    send(file, watch);
  };
  upload.drop = drop;
  uploads.add(upload);
  const finish = (message) => {
    upload.failed = message;
    if (message) draw();
    else drop();
    watch();
  };
  request.upload.addEventListener("progress", (event) => {
    upload.done = event.total ? event.loaded / event.total : 0;
    draw();
  });
  request.addEventListener("load", () => {
    let message = null;
    if (request.status !== 202) {
      try {
        message = JSON.parse(request.responseText).message;
      } catch {
        message = `the server answered ${request.status}`;
      }
    }
    finish(message);
  });
  request.addEventListener("error", () => finish("the upload broke off; is `starc view` still running?"));
  request.addEventListener("abort", () => finish(null));
  request.open("POST", keyed(`/api/uploads?name=${encodeURIComponent(file.name.slice(0, 400))}`));
  request.setRequestHeader("Content-Type", "application/octet-stream");
  request.send(file);
  draw();
}

function bar(label, done) {
  const meter = el("div", {
    class: "meter", role: "progressbar", "aria-label": label,
    "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(done * 100),
  }, el("i", {}));
  meter.firstChild.style.width = `${done * 100}%`;
  return meter;
}

function stages(job) {
  return el("ol", { class: "stages" }, ...job.stages.map((stage, place) => {
    const last = place === job.stages.length - 1;
    const over = stage.done >= 1 || !last;
    const state = over ? "over" : "now";
    const far = stage.words || `${Math.round(stage.done * 100)} %`;
    return el("li", { class: state }, over ? icon("check") : null, stage.name,
      over ? null : el("span", { class: "muted" }, ` ${far}`));
  }));
}

/** A row of the queue: its title, a word about it, its buttons; below, what there is to say. */
function row(state, title, words, buttons, ...below) {
  return el("li", { class: `job ${state}` },
    el("div", { class: "job-line" }, el("strong", { dir: "auto" }, title),
      el("span", { class: "state" }, words), ...buttons), ...below);
}

function small(words, label, click) {
  return el("button", { class: "button small", type: "button", "aria-label": label, on: { click } }, words);
}

function cancelButton(title, click, disabled = false) {
  return el("button", {
    class: "quiet cancel", type: "button", "aria-label": `Cancel ${title}`, title: "Cancel", disabled, on: { click },
  }, icon("close"));
}

const WORDS = { queued: "waiting", failed: "failed", cancelled: "cancelled", done: "done" };

function jobRow(job) {
  const active = job.state === "queued" || job.state === "running";
  const now = job.stages.at(-1);
  const words = job.cancelling ? "cancelling" : (job.reason ? "not captioned" : WORDS[job.state]) ?? (now ? "" : "starting");
  const buttons = [];
  if (active) buttons.push(cancelButton(job.title, () => cancel(job), job.cancelling));
  else if (job.video && job.state === "failed") buttons.push(small("Try again", `Try ${job.title} again`, () => again(job)));
  else if (job.video) buttons.push(el("a", { class: "button small", href: `/watch/${job.video}` }, "Watch"));
  const below = job.state === "running" ? [bar(`${job.title}: ${now?.name ?? "starting"}`, now?.done ?? 0), stages(job)] : [];
  if (job.reason) below.push(el("p", {}, job.reason));
  if (job.error) below.push(el("p", { class: "bad" }, job.error));
  return row(job.state, job.title, words, buttons, ...below);
}

function uploadRow(upload) {
  const { name, done, failed } = upload;
  if (failed) {
    const buttons = [small("Try again", `Try ${name} again`, upload.again), small("Forget", `Forget ${name}`, upload.drop)];
    return row("failed", name, "not uploaded", buttons, el("p", { class: "bad" }, failed));
  }
  return row("running", name, `uploading ${Math.round(done * 100)} %`,
    [cancelButton(name, () => upload.request.abort())], bar(`${name}: uploading`, done));
}

let pressed = false;
let waiting = false;
list.addEventListener("pointerdown", () => { pressed = true; });
for (const end of ["pointerup", "pointercancel"]) {
  window.addEventListener(end, () => {
    pressed = false;
    if (waiting) setTimeout(draw); // after the click that this ends
  });
}

/**
 * Progress arrives several times a second: whoever stands on "Cancel" must not lose the place, and
 * whoever is pressing it not the button, or the click would go nowhere.
 */
function draw() {
  waiting = pressed;
  if (pressed) return;
  const focused = document.activeElement?.getAttribute("aria-label");
  let over = 0; // what waits, runs or failed is there; of the others the last ones
  const shown = [...rows].reverse().filter(({ state }) => !["done", "cancelled"].includes(state) || (over += 1) <= RECENT);
  list.replaceChildren(...[...uploads].map(uploadRow), ...shown.map(jobRow));
  if (focused && !document.activeElement?.closest("#job-list")) {
    [...list.querySelectorAll("button")].find(
      (button) => button.getAttribute("aria-label") === focused)?.focus();
  }
}

/** A job that failed goes into the queue again, under the title it had. */
async function again(job) {
  try {
    await ask(`/api/videos/${job.video}/caption${job.anyway ? "?anyway=true" : ""}`, { method: "POST" });
    document.dispatchEvent(new Event("jobschange"));
  } catch (error) {
    say(error.message, { bad: true });
  }
}

async function cancel(job) {
  try {
    await ask(`/api/jobs/${job.id}`, { method: "DELETE" });
  } catch (error) {
    say(error.message, { bad: true });
  }
}

export function startJobs({ onDone }) {
  const section = document.getElementById("jobs");
  const drop = document.getElementById("drop");
  const input = document.getElementById("file");
  let finished = new Set();

  function take(jobs) {
    const done = jobs.filter((job) => job.state === "done");
    const fresh = done.filter((job) => !finished.has(job.id));
    finished = new Set(done.map((job) => job.id));
    rows = jobs;
    draw();
    if (fresh.length) {
      const declined = fresh.filter((job) => job.reason).length;
      const parts = [[fresh.length - declined, "captioned"], [declined, "not captioned"]];
      say(parts.filter(([n]) => n).map(([n, words]) => `${count(n, "video")} ${words}`).join(", "));
      onDone();
    }
  }

  function watch() {
    source?.close();
    source = new EventSource(keyed("/api/jobs/events"));
    source.addEventListener("message", (event) => {
      const { jobs, idle } = JSON.parse(event.data);
      take(jobs);
      if (idle) source.close();
    });
  }

  document.addEventListener("jobschange", watch);
  const accept = (files) => [...files].forEach((file) => send(file, watch));
  input.addEventListener("change", () => {
    accept(input.files);
    input.value = "";
  });
  for (const kind of ["dragenter", "dragover"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
  }
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) drop.classList.remove("over");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault(); // or the browser leaves the page to play the file
    drop.classList.remove("over");
    if (!section.hidden && !drop.hidden) accept(event.dataTransfer.files);
  });

  async function open(library) {
    limit = library.upload_limit;
    section.hidden = !library.can_caption;
    drop.hidden = !library.can_upload;
    if (!library.can_caption) return;
    const { jobs } = await ask("/api/jobs");
    finished = new Set(jobs.filter((job) => job.state === "done").map((job) => job.id));
    rows = jobs;
    draw();
    if (jobs.some((job) => ["queued", "running"].includes(job.state))) watch();
  }
  return { watch, open };
}
