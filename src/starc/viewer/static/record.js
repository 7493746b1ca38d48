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
  };
}
