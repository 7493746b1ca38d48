// Where an edge that is dragged comes to rest: starts and ends of speech, segments and other events.

import { lowerBound } from "./scale.js";

const BESIDE = 0.02; // seconds

/** Times worth resting at, in order; `except` is the key of the event that moves. */
export function edgesOf({ sentences, segments, events, duration }, except, playhead) {
  const spans = [...sentences, ...segments, ...events.filter((event) => event.key !== except)];
  const times = [0, ...spans.flatMap(({ start, end }) => [start, end]), duration];
  const beside = times.some((time) => Math.abs(time - playhead) < BESIDE); // it was sent to that edge
  return [...times, ...(beside ? [] : [playhead])].sort((a, b) => a - b);
}

/** The edge nearest to a time, if it is within reach; null otherwise. */
export function nearest(time, edges, reach) {
  const place = lowerBound(edges, time);
  const near = [edges[place - 1], edges[place]].filter((edge) => Math.abs(edge - time) <= reach);
  return near.sort((a, b) => Math.abs(a - time) - Math.abs(b - time))[0] ?? null;
}

/** The move that brings start or end of a span to an edge, whichever is nearer, and that edge. */
export function nearestMove(start, end, by, edges, reach) {
  const moves = [start, end].flatMap((time) => {
    const edge = nearest(time + by, edges, reach);
    return edge === null ? [] : [{ by: edge - time, edge }];
  });
  return moves.sort((a, b) => Math.abs(a.by - by) - Math.abs(b.by - by))[0] ?? { by, edge: null };
}
