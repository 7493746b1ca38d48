import { Draft, refusal } from "/static/draft.js";
import { replaced } from "/static/replacing.js";
import { edgesOf, nearest, nearestMove } from "/static/snapping.js";

const spans = (draft) => draft.events.map(({ start, end, caption }) => [start, end, caption]);
const make = () => new Draft([
  { start: 1, end: 4, caption: "peel" }, { start: 5, end: 9, caption: "slice" }, { start: 10, end: 12, caption: "slice" },
], 20.005);
const origins = (draft) => draft.events.map(({ times_from, words_from }) => `${times_from} ${words_from}`);
const heard = () => new Draft([
  { start: 1, end: 4, caption: "peel", times_from: ["speech"], words_from: ["speech"] },
  { start: 5, end: 9.1234, caption: "slice", times_from: ["speech"], words_from: ["speech"] },
], 20);
const keys = (draft, ...places) => new Set(places.map((place) => draft.events[place].key));

export const tests = {
  "an event is never crushed": (is) => {
    const draft = make();
    const [{ key }] = draft.events;
    is(typeof draft.retime(key, { start: 4 }), "string");
    is(typeof draft.retime(key, { start: 17 }), "string");
    is(typeof draft.retime(key, { end: 0.5 }), "string");
    is(typeof draft.retime(key, { end: 20.02 }), "string");
    is(typeof draft.retime(key, { end: 1.04 }), "string");
    is(draft.dirty, false);
    is(draft.retime(key, { end: 20.01 }), null); // the end of the video, as far as a field shows it
    is(draft.find(key).end, 20.005);
    is(refusal({ start: 0, end: 1 }, 2), null);
  },
  "split and merge are each one step": (is) => {
    const draft = make();
    const second = draft.split(draft.events[1].key, 6.5);
    is(spans(draft), [[1, 4, "peel"], [5, 6.5, "slice"], [6.5, 9, "slice"], [10, 12, "slice"]]);
    is(draft.find(second).start, 6.5);
    is(draft.split(second, 6.55), null);
    is(draft.split(second, 9), null);
    draft.undo();
    draft.merge(keys(draft, 0, 1, 2));
    is(spans(draft), [[1, 12, "peel, slice"]]);
    draft.undo();
    is(draft.dirty, false);
    is(draft.merge(keys(draft, 0)), null);
  },
  "a caption is split at a letter, if there are words on both sides": (is) => {
    const draft = heard();
    draft.update(draft.events[0].key, { caption: "peel and wash" });
    draft.split(draft.events[0].key, 2, 8);
    is(spans(draft).slice(0, 2), [[1, 2, "peel and"], [2, 4, "wash"]]);
    draft.split(draft.events[2].key, 6, 5);
    is(spans(draft).slice(2), [[5, 6, "slice"], [6, 9.1234, "slice"]]);
    is(origins(draft), ["person person", "person person", "person speech", "person speech"]);
  },
  "what did not move is as exact as it was": (is) => {
    const draft = heard();
    draft.update(draft.events[1].key, { start: 6 });
    is(spans(draft)[1], [6, 9.1234, "slice"]);
    draft.shift(keys(draft, 1), 0.1);
    is(spans(draft)[1], [6.1, 9.2234, "slice"]);
    draft.shift(keys(draft, 1), 0.2);
    is(spans(draft)[1], [6.3, 9.4234, "slice"]);
  },
  "several events move together, within the video": (is) => {
    const draft = make();
    is(draft.shift(keys(draft, 0, 1), 0.5), 0.5);
    is(spans(draft), [[1.5, 4.5, "peel"], [5.5, 9.5, "slice"], [10, 12, "slice"]]);
    is(draft.shift(keys(draft, 0, 1), -9), -1.5);
    is(spans(draft)[1], [4, 8, "slice"]);
    is(draft.shift(keys(draft, 2), 100), 8);
    is(draft.shift(new Set(), 1), 0);
    draft.remove(keys(draft, 0, 2));
    is(spans(draft), [[4, 8, "slice"]]);
    draft.replace([{ start: 3, end: 4, caption: "b" }, { start: 0, end: 1, caption: "a" }]);
    is(spans(draft), [[0, 1, "a"], [3, 4, "b"]]);
    draft.undo();
    is(spans(draft), [[4, 8, "slice"]]);
  },
  "what a person changed is by a person": (is) => {
    const after = (change) => {
      const draft = heard();
      change(draft, draft.events[1].key);
      return origins(draft);
    };
    is(after(() => {}), ["speech speech", "speech speech"]);
    is(after((draft) => draft.add(10, 12)), ["speech speech", "speech speech", "person person"]);
    is(after((draft, key) => draft.update(key, { start: 6 })), ["speech speech", "person speech"]);
    is(after((draft, key) => draft.update(key, { caption: "dice" })), ["speech speech", "speech person"]);
    is(after((draft, key) => draft.retime(key, { end: 8 })), ["speech speech", "person speech"]);
    is(after((draft, key) => draft.split(key, 7)), ["speech speech", "person speech", "person speech"]);
    is(after((draft) => draft.merge(keys(draft, 0, 1))), ["person person"]);
    is(after((draft) => draft.shift(keys(draft, 0), 1)), ["person speech", "speech speech"]);
    is(after((draft, key) => draft.reword(new Map([[key, "dice"]]))), ["speech speech", "speech person"]);
    is(after((draft, key) => { draft.update(key, { caption: "dice" }); draft.undo(); }), ["speech speech", "speech speech"]);
    after((draft, key) => {
      draft.update(key, { caption: "dice" });
      is(draft.find(key).end, 9.1234); // other words move nothing
    });
  },
  "events of a file are known by their times and words": (is) => {
    const draft = heard();
    draft.replace(draft.recognise([
      { start: 1, end: 4, caption: "peel " }, { start: 5, end: 9.123, caption: "slice" }, { start: 5, end: 9, caption: "slice" },
    ]));
    is(origins(draft), ["speech speech", " ", "speech speech"]);
    is(draft.plain()[1], { start: 5, end: 9, caption: "slice", times_from: [], words_from: [] });
  },
  "find and replace takes words as they are": (is) => {
    const events = [{ key: 1, caption: "Add (a) $1" }, { key: 2, caption: "add b" }, { key: 3, caption: "stir" }];
    is([...replaced(events, "add", "fold in")], [[1, "fold in (a) $1"], [2, "fold in b"]]);
    is([...replaced(events, "add", "x", { matchCase: true })], [[2, "x b"]]);
    is([...replaced(events, "(a) $1", "$&")], [[1, "Add $&"]]);
    is(replaced(events, "", "x").size, 0);
    is(replaced(events, "ad", "x", { wholeWords: true }).size, 0);
    is([...replaced(events, "B", "c", { wholeWords: true })], [[2, "add c"]]);
    is(replaced(events, "stir", "stir").size, 0);
  },
  "an edge rests at speech, segments and other events": (is) => {
    const data = { sentences: [{ start: 2.2, end: 3 }], segments: [{ start: 0, end: 5 }], events: [{ key: 7, start: 8, end: 9 }, { key: 8, start: 9, end: 11 }], duration: 20 };
    const edges = edgesOf(data, 7, 6.5);
    is(edges, [0, 0, 2.2, 3, 5, 6.5, 9, 11, 20]);
    is(nearest(2.4, edges, 0.3), 2.2);
    is(nearest(2.65, edges, 0.3), null);
    is(nearest(25, edges, 10), 20);
    is(nearest(2.2, edges, -1), null);
    is(nearestMove(8, 9.4, -2.9, edges, 0.3).edge, 6.5);
    is(nearestMove(8, 9.8, -2.9, edges, 0.3).edge, 5);
    is(nearestMove(8, 9.5, -3.4, edges, 0.3), { by: -3.4, edge: null });
  },
};
