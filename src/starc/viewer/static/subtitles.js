// Events from an SRT or WebVTT file.

const CUE = /^\s*((?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3})\s+-->\s+((?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3})/;
const NAMED = { amp: "&", lt: "<", gt: ">", nbsp: " ", lrm: "\u200e", rlm: "\u200f", quot: '"' };

function seconds(stamp) {
  return stamp.replace(",", ".").split(":").reduce((sum, part) => sum * 60 + Number(part), 0);
}

/** One line of words: tags, styles and escapes of both formats go. */
function words(lines) {
  return lines.join(" ").replace(/<[^>]*>|\{\\[^}]*\}/g, "")
    .replace(/&(\w+);/g, (whole, name) => NAMED[name] ?? whole).replace(/\s+/g, " ").trim();
}

/** Events of the cues that lie in the video, and how many cues were left out. */
export function readSubtitles(text, duration) {
  const blocks = text.replace(/^\ufeff/, "").replace(/\r\n?/g, "\n").split(/\n[ \t]*\n/);
  const events = [];
  let skipped = 0;
  for (const block of blocks) {
    const lines = block.split("\n");
    const place = lines.findIndex((line) => CUE.test(line));
    if (place < 0) continue; // a header, a note, a style
    const [start, end] = CUE.exec(lines[place]).slice(1).map(seconds);
    const event = { start, end: Math.min(end, duration), caption: words(lines.slice(place + 1)) };
    if (event.caption && event.start < event.end) events.push(event);
    else skipped += 1;
  }
  return { events, skipped };
}
