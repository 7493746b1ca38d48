import { pairs, same, threeWay } from "/static/differences.js";
import { iou, match } from "/static/matching.js";
import { readSubtitles } from "/static/subtitles.js";

const e = (start, end, caption) => ({ start, end, caption });
const base = [e(0, 5, "peel"), e(6, 10, "slice"), e(11, 15, "fry"), e(16, 20, "serve")];
const taken = (rows) => rows.map((row) => row[row.take]).filter(Boolean);
const brief = (row) => [row.mine?.caption ?? null, row.theirs?.caption ?? null, row.take];

export const tests = {
  "matching is one to one, by overlap": (is) => {
    const ours = [e(0, 10), e(1, 9), e(20, 30), e(50, 60)];
    const theirs = [e(21, 31), e(0, 9), e(0, 11)];
    is(match(ours, theirs).map((one) => one && [theirs.indexOf(one.event), one.iou]),
      [[2, 10 / 11], [1, 8 / 9], [0, 9 / 11], null]);
    is([iou(e(0, 1), e(1, 2)), iou(e(0, 4), e(2, 4))], [0, 0.5]);
  },
  "two versions are paired event by event": (is) => {
    const after = [e(0, 5, "peel"), e(6.5, 10, "slice it"), e(30, 34, "fry"), e(40, 41, "new")];
    const rows = pairs(base, after);
    is(rows.filter((row) => !same(row.before, row.after)).map((row) => [row.before?.caption, row.after?.caption]),
      [["slice", "slice it"], ["serve", undefined], ["fry", "fry"], [undefined, "new"]]);
    is(pairs(base, base).every((row) => row.before === row.after), true);
    is(pairs([], []), []);
  },
  "two corrections join where they do not meet": (is) => {
    const mine = [e(0, 5, "peel the onion"), e(6, 10, "slice"), e(11, 15, "fry"), e(16, 20, "serve")];
    const theirs = [e(0, 5, "peel"), e(6, 9, "slice"), e(11, 15, "fry"), e(21, 24, "wash up")];
    is(taken(threeWay(base, mine, theirs)),
      [mine[0], theirs[1], base[2], theirs[3]]);
  },
  "where both changed an event mine is proposed, and both are there": (is) => {
    const mine = [e(0, 5, "peel A"), ...base.slice(1, 3)]; // and deleted the last
    const theirs = [e(0, 5, "peel B"), ...base.slice(1, 3), e(16, 20, "serve hot"), e(22, 24, "more")];
    const open = threeWay(base, mine, theirs).filter((row) => !same(row.mine, row.theirs));
    is(open.map(brief), [["peel A", "peel B", "mine"], [null, "serve hot", "mine"], [null, "more", "theirs"]]);
  },
  "both deleted, both added the same": (is) => {
    const both = [base[0], e(30, 31, "x")];
    is(taken(threeWay(base, both, both.map((event) => ({ ...event })))), both);
  },
  "subtitles of both kinds": (is) => {
    const srt = "\ufeff1\r\n00:00:01,500 --> 00:00:04,000\r\n<i>Peel</i> the\r\nonion {\\an8}\r\n\r\n2\r\n00:01:05,000 --> 00:01:06,000\r\nlate\r\n\r\n3\r\n00:00:05,000 --> 00:00:06,000\r\n\r\n";
    is(readSubtitles(srt, 60), { events: [e(1.5, 4, "Peel the onion")], skipped: 2 });
    const vtt = "WEBVTT - x\n\nNOTE a --> note\n\nSTYLE\n::cue { }\n\nid\n00:07.000 --> 00:09.000 align:start\n<v Ann>1 &lt; 2 &amp; more</v>\n\n01:00:00.000 --> 01:00:01.000\nfar";
    is(readSubtitles(vtt, 4000), { events: [e(7, 9, "1 < 2 & more"), e(3600, 3601, "far")], skipped: 0 });
    is(readSubtitles("just words", 60).events, []);
    is(readSubtitles("00:00:58,000 --> 00:01:10,000\nend", 60).events, [e(58, 60, "end")]);
  },
};
