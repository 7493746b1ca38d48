// Ground truth and systems side by side: a row per reference event, with who predicted it and how well.

import { count, el, heard, spoken, stamp } from "./dom.js";
import { figures, grade, match } from "./matching.js";

const percent = (share) => `${Math.round(share * 100)} %`;

/** Rows `{ start, cells }`; a cell is `{ event, iou }` or null, a column per list. */
function align(base, systems) {
  const rows = base.map((event) => ({ start: event.start, event, cells: [] }));
  const place = new Map(base.map((event, n) => [event, n]));
  systems.forEach((events, column) => {
    match(events, base).forEach((best, n) => {
      const found = { event: events[n], iou: best ? best.iou : null };
      if (best) rows[place.get(best.event)].cells[column] = found;
      else rows.push({ start: events[n].start, event: null, cells: Object.assign([], { [column]: found }) });
    });
  });
  return rows.sort((a, b) => a.start - b.start);
}

function cell(item, jump, missing) {
  if (!item) return el("td", {}, el("span", { class: "missing" }, missing));
  const { event, iou } = item;
  const chip = iou === null ? el("span", { class: "chip" }, "alone")
    : iou === undefined ? null : el("span", { class: `chip ${grade(iou)}` }, `IoU ${iou.toFixed(2)}`);
  return el("td", {}, el("button", { type: "button", on: { click: () => jump(event) } },
    heard(`${spoken(event.start)}: `), stamp(event.start), el("span", { dir: "auto" }, event.caption), chip));
}

function heading(dot, name, extra) {
  return el("th", { scope: "col" }, el("i", { class: dot }), name, extra ? el("span", { class: "muted" }, ` · ${extra}`) : null);
}

function summary(name, events, references) {
  const { precision, recall, mean } = figures(match(events, references), references.length);
  const figure = (label, value) => el("span", {}, `${label} `, el("b", {}, value));
  return el("span", { class: "figures-of" }, el("b", {}, name), " — ",
    figure("recall", percent(recall)), " · ", figure("precision", percent(precision)), " · ", figure("mean IoU", mean.toFixed(2)));
}

/** Draws the table into `section`, or hides it when there is nothing to compare with. */
export function renderCompare(section, data, jump) {
  const { reference, other, events } = data;
  section.hidden = !reference && !other;
  if (section.hidden) return;
  const systems = [{ name: data.name, events, dot: "dot-ours" }];
  if (other) systems.push({ name: other.name, events: other.events, dot: "dot-other" });
  const base = reference ?? systems[0].events;
  const columns = reference ? systems : systems.slice(1);
  const rows = align(base, columns.map((system) => system.events));
  const head = el("tr", {}, reference
    ? heading("dot-truth", "Reference", count(reference.length, "event"))
    : heading("dot-ours", data.name, count(events.length, "event")),
  ...columns.map((system) => heading(system.dot, system.name, count(system.events.length, "event"))));
  const body = rows.map((row) => {
    const line = el("tr", {}, cell(row.event && { event: row.event }, jump, reference ? "not in the reference" : "nothing here"),
      ...columns.map((_, column) => cell(row.cells[column], jump, row.event && reference ? "missed" : "nothing here")));
    const spans = [row.event, ...row.cells.map((one) => one?.event)].filter(Boolean);
    line.start = Math.min(...spans.map((event) => event.start));
    line.end = Math.max(...spans.map((event) => event.end));
    return line;
  });
  const sums = reference ? systems.map((system) => summary(system.name, system.events, reference)) : [];
  section.replaceChildren(
    el("div", { class: "top" }, el("h2", { id: "compare-title" }, "Side by side"),
      el("div", { class: "figures" }, ...sums, reference ? el("span", { class: "muted" }, "at IoU ≥ 0.5") : null)),
    el("div", { class: "scroll", tabindex: "0", "aria-label": "Comparison table" },
      el("table", {}, el("thead", {}, head), el("tbody", {}, ...body))));
  section.lines = body;
}

/** Mark the rows of the moment. */
export function markCompare(section, time) {
  for (const line of section.lines ?? []) {
    line.classList.toggle("current", time >= line.start && time < line.end);
  }
}
