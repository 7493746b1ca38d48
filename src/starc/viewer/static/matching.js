// Which prediction answers which reference: pairs of the highest overlap first, each used once.

/** Temporal intersection over union of two spans. */
export function iou(a, b) {
  const shared = Math.min(a.end, b.end) - Math.max(a.start, b.start);
  if (shared <= 0) return 0;
  return shared / (Math.max(a.end, b.end) - Math.min(a.start, b.start));
}

/** For each of `ours`, `{ event, iou }` of the one among `theirs` it is matched with, or null. */
export function match(ours, theirs) {
  const order = theirs.map((_, place) => place).sort((a, b) => theirs[a].start - theirs[b].start);
  const longest = theirs.reduce((most, one) => Math.max(most, one.end - one.start), 0);
  const pairs = [];
  ours.forEach((one, i) => {
    for (const j of order) {
      if (theirs[j].start >= one.end) break;
      if (theirs[j].start + longest <= one.start) continue;
      const overlap = iou(one, theirs[j]);
      if (overlap > 0) pairs.push([overlap, i, j]);
    }
  });
  pairs.sort((a, b) => b[0] - a[0] || a[1] - b[1] || a[2] - b[2]);
  const matches = ours.map(() => null);
  const used = new Set();
  for (const [overlap, i, j] of pairs) {
    if (matches[i] || used.has(j)) continue;
    used.add(j);
    matches[i] = { event: theirs[j], iou: overlap };
  }
  return matches;
}

/** Figures of a matching against the reference, at the overlap where people usually look. */
export function figures(matches, references, threshold = 0.5) {
  const good = matches.filter((one) => one && one.iou >= threshold).length;
  const total = matches.reduce((sum, one) => sum + (one ? one.iou : 0), 0);
  return {
    precision: matches.length ? good / matches.length : 0,
    recall: references ? good / references : 0,
    mean: matches.length ? total / matches.length : 0,
  };
}

/** Colour class of an overlap. */
export function grade(overlap) {
  return overlap >= 0.5 ? "good" : overlap >= 0.3 ? "fair" : "poor";
}
