// What changed between two versions of a video.

import { dialog } from "./dialog.js";
import { pairs, same } from "./differences.js";
import { ask, count, el } from "./dom.js";
import { versionName } from "./saving.js";
import { clock } from "./times.js";

const DRAFT = "draft";

function span(event) {
  return `${clock(event.start, 2)} – ${clock(event.end, 2)}`;
}

function line({ before, after }) {
  const kind = !before ? "added" : !after ? "removed" : "changed";
  const moved = before && after && span(before) !== span(after);
  const part = (tag, event) => el(tag, {}, moved ? `${span(event)} ` : "", event.caption || "(no caption)");
  const reworded = before?.caption !== after?.caption || moved;
  return el("li", {}, el("time", {}, clock((after ?? before).start)), el("span", { class: `chip ${kind}` }, kind),
    el("span", { dir: "auto" }, before && reworded ? part("del", before) : "", " ", after ? part("ins", after) : ""));
}

/** The dialog: two menus and the list of what differs; what is being written counts as a version. */
export async function compareVersions(video, draft) {
  const events = async (number) => (number === DRAFT ? draft.plain()
    : (await ask(`/api/videos/${video.id}?version=${number}`)).record.events);
  const numbers = [0, ...video.saved].map((number) => [String(number), versionName(video, number)]);
  if (draft.dirty) numbers.push([DRAFT, "What you are writing"]);
  const menu = (label, place) => {
    const options = numbers.map(([value, name], n) => el("option", { value, selected: n === place }, name));
    return el("label", {}, label, el("select", { on: { change: () => show() } }, ...options));
  };
  const [from, to] = [menu("From", numbers.length - 2), menu("To", numbers.length - 1)];
  const sum = el("p", { class: "muted", role: "status" });
  const list = el("ol", { class: "changes", tabindex: "0", "aria-label": "Changes" });
  const show = async () => {
    try {
      const [before, after] = await Promise.all([from, to].map((one) => events(one.querySelector("select").value)));
      const rows = pairs(before, after).filter((row) => !same(row.before, row.after));
      sum.textContent = rows.length ? count(rows.length, "change") : "No change.";
      list.replaceChildren(...rows.map(line));
    } catch (error) {
      sum.textContent = error.message;
    }
  };
  show();
  await dialog("Versions", [el("div", { class: "pair" }, from, to), sum, list], [], { wide: true, cancel: "Close" });
}
