// What differs between lists of events: two versions of a video, or two people's corrections of one.

import { match } from "./matching.js";

/** Same span and words; two absent events are the same too. */
export function same(a, b) {
  return a === b || Boolean(a && b && a.start === b.start && a.end === b.end && a.caption === b.caption);
}

/** Take the pairs that `found` names out of both lists, into `rows`. */
function draw(rows, left, right, found) {
  const used = new Set();
  const rest = left.filter((event) => {
    const partner = found(event, (one) => !used.has(one));
    if (!partner) return true;
    used.add(partner);
    rows.push({ before: event, after: partner });
    return false;
  });
  return [rest, right.filter((event) => !used.has(event))];
}

/** `{ before, after }` in order of time: equals first, then the best overlaps, then equal words; null where one is alone. */
export function pairs(before, after) {
  const rows = [];
  let [left, right] = draw(rows, before, after, (event, free) => after.find((one) => free(one) && same(event, one)));
  const best = match(left, right);
  [left, right] = draw(rows, left, right, (event) => best[left.indexOf(event)]?.event);
  const others = right;
  [left, right] = draw(rows, left, right, (event, free) => others.find((one) => free(one) && one.caption === event.caption));
  for (const event of left) rows.push({ before: event, after: null });
  for (const event of right) rows.push({ before: null, after: event });
  const start = (row) => (row.after ?? row.before).start;
  return rows.sort((a, b) => start(a) - start(b));
}

/**
 * Two corrections of one list: rows `{ base, mine, theirs, take }` in order of time. Who changed an
 * event is taken; where both did, mine. An event that is gone from a list is null there.
 */
export function threeWay(base, mine, theirs) {
  const [ours, others] = [pairs(base, mine), pairs(base, theirs)];
  const answer = (rows, event) => rows.find((row) => row.before === event).after;
  const rows = base.map((event) => ({ base: event, mine: answer(ours, event), theirs: answer(others, event) }));
  const fresh = (list) => list.filter((row) => !row.before).map((row) => row.after);
  for (const { before, after } of pairs(fresh(ours), fresh(others))) rows.push({ base: null, mine: before, theirs: after });
  for (const row of rows) row.take = same(row.mine, row.base) ? "theirs" : "mine";
  const start = (row) => (row.mine ?? row.theirs).start;
  return rows.filter((row) => row.mine || row.theirs).sort((a, b) => start(a) - start(b));
}
