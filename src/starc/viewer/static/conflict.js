// Two people corrected one video: what differs, side by side, and a choice for each event.

import { dialog } from "./dialog.js";
import { same, threeWay } from "./differences.js";
import { el } from "./dom.js";
import { clock } from "./times.js";

const words = (event) => (event ? `${clock(event.start, 2)} – ${clock(event.end, 2)} ${event.caption || "(no caption)"}` : "no such event");

/** The events that were taken, or null if nothing shall be saved. `name` is what the other version is called. */
export async function resolve(base, mine, theirs, name) {
  const rows = threeWay(base, mine, theirs);
  const open = rows.filter((row) => !same(row.mine, row.theirs));
  const option = (row, n, side, owner) => {
    const label = same(row[side], row.base) ? `${owner} (as before)` : owner;
    const field = el("input", { type: "radio", name: `row-${n}`, value: side, on: { change: () => { row.take = side; } } });
    field.checked = row.take === side;
    return el("label", {}, field, el("span", {}, el("b", {}, label), words(row[side])));
  };
  const choices = open.map((row, n) => el("fieldset", {},
    el("legend", { class: "sr" }, `At ${clock((row.mine ?? row.theirs).start)}`),
    option(row, n, "mine", "Yours"), option(row, n, "theirs", "Theirs")));
  const list = el("div", { class: "choices", tabindex: "0", role: "group", "aria-label": "What differs" }, ...choices);
  const all = (side) => el("button", { class: "button small", type: "button", on: { click: () => {
    for (const field of list.querySelectorAll(`[value=${side}]`)) field.click();
  } } }, side === "mine" ? "All yours" : "All theirs");
  const body = [
    el("p", {}, `${name} was saved in the meantime. Choose what to keep; the rest is the same in both.`),
    el("div", { class: "group" }, all("mine"), all("theirs")), list,
  ];
  const answer = await dialog("Two corrections of this video", body, [["save", "Save these"]], { wide: true, cancel: "Not now" });
  return answer ? rows.map((row) => row[row.take]).filter(Boolean) : null;
}
