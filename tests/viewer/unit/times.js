import { landing } from "/static/record.js";
import { clock, parse, round, spoken } from "/static/times.js";

const near = (a, b) => Math.abs(a - b) < 1e-9;

export const tests = {
  "a time is cut, never rounded up": (is) => {
    is(clock(7.63), "0:07");
    is(clock(59.9994), "0:59");
    is(clock(59.9996), "1:00"); // to the millisecond first
    is(clock(75.38, 1), "1:15.3");
    is(clock(75.38, 2), "1:15.38");
    is(clock(1.1 + 2.2, 2), "0:03.30");
    is(clock(3725), "1:02:05");
    is(clock(-1), "0:00");
    is(spoken(75.9), "1 minute 15 seconds");
    is(spoken(0.2), "0 seconds");
  },
  "a time is typed as it is read": (is) => {
    const read = { "35": 35, "0:21": 21, "1:05": 65, "1:05.5": 65.5, "65,25": 65.25, "1:02:03.4": 3723.4, " 7 ": 7, "90": 90, "75:10": 4510 };
    for (const [text, seconds] of Object.entries(read)) is(near(parse(text), seconds), true, text);
    for (const text of ["", "abc", "1:75", "1:60:00", "-3", "1:", ":5", "1:2:3:4", "1e3", "NaN"]) is(parse(text), null, text);
    for (const seconds of [0, 21.07, 65, 3723.45]) is(parse(clock(seconds, 2)), seconds, seconds);
    is(round(1.005 + 1e-9), 1.01);
  },
  "a link lands on the event that starts there": (is) => {
    const events = [{ start: 0, end: 4.32401 }, { start: 4.32401, end: 9 }, { start: 12.6, end: 20 }];
    const sentences = [{ start: 12.1, end: 13 }];
    const at = (time) => landing({ events, sentences }, time).item;
    is(at(4.324), events[1]);
    is(at(4.3), events[0]);
    is(at(12), events[2]); // 12.6 is shown as 0:12
    is(at(12.1), sentences[0]);
    is(landing({ events, sentences }, 12.1).tab, "speech");
    is(at(15.5), events[2]);
    is(at(11), null);
  },
};
