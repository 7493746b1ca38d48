// A record as the page draws it: everything in seconds, in order, with the longest of each kind.

/** In order of time; `longest` tells a drawer how far before the screen something may begin. */
export function ordered(list) {
  const sorted = [...list].sort((a, b) => a.start - b.start || a.end - b.end);
  sorted.longest = sorted.reduce((most, one) => Math.max(most, one.end - one.start), 0);
  return sorted;
}

/** Segments are ranges of frames in the file, and stretches of time on the page. */
function spans(record) {
  const times = record.frame_times;
  const gap = times.length > 1 ? times[1] - times[0] : 1;
  const after = Math.min(record.duration, (times.at(-1) ?? 0) + gap);
  const time = (frame) => times[frame] ?? after;
  const segments = record.segments.map((segment) => (
    { ...segment, start: time(segment.first), end: time(segment.stop) }));
  return {
    times,
    saliency: record.saliency,
    sentences: ordered(record.sentences),
    segments: ordered(segments),
    events: ordered(record.events),
  };
}

/** Why there are no captions, as a sentence with the record's reason; empty if it has none. */
export function notCaptioned({ reason }) {
  return reason && `Not captioned: ${reason}${/[.!?]$/.test(reason) ? "" : "."}`;
}

/** What the server sent about a video, ready for timeline, lists and comparison. */
export function prepare(video) {
  const { record, reference, other } = video;
  return {
    ...spans(record),
    duration: record.duration,
    name: (record.provenance.model || "This system").split("/").pop(),
    reference: reference && ordered(reference.record.events),
    other: other && { name: other.name, ...spans(other.record) },
    canCaption: video.can_caption,
    canCaptionAnyway: video.can_caption_anyway,
    forced: record.provenance.forced,
    reason: notCaptioned(record.reason ? record : video),
  };
}

const ROUNDED = 0.0015; // seconds that an address in milliseconds may be off

/** What a link to a time means, `{ item, tab }`: the event or sentence that starts there, or that lasts there. */
export function landing({ events, sentences }, time) {
  const starts = (within) => (one) => one.start > time - ROUNDED && one.start < time + within;
  const exact = events.find(starts(ROUNDED));
  if (exact) return { item: exact, tab: "events" };
  const said = sentences.find(starts(ROUNDED));
  if (said) return { item: said, tab: "speech" };
  // Whole seconds are cut ones: 0:12 is how 12.6 is shown.
  const shown = Number.isInteger(time) ? events.find(starts(1)) : undefined;
  const item = shown ?? events.findLast((one) => one.start <= time && time < one.end);
  return { item: item ?? null, tab: "events" };
}
