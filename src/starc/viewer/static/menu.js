// A menu of buttons that opens from a button. Arrows walk along it; nothing happens before a button is pressed.

import { el } from "./dom.js";
import { toolbar } from "./toolbar.js";

/** `host` is the popover that `opener` opens: it lies below the opener, or above where there is no room. */
export function menu(opener, host) {
  const stop = toolbar(host);
  host.addEventListener("toggle", (event) => {
    if (event.newState !== "open") return;
    const box = opener.getBoundingClientRect();
    host.style.left = `${Math.max(8, Math.min(box.left, innerWidth - host.offsetWidth - 8))}px`;
    const below = box.bottom + 4;
    host.style.top = `${below + host.offsetHeight > innerHeight ? Math.max(8, box.top - host.offsetHeight - 4) : below}px`;
    const first = host.querySelector("[aria-checked=true]") ?? host.querySelector("button");
    stop(first);
    first?.focus();
  });
  // Before the entry acts: a dialog that it opens gives the focus back to the opener.
  host.addEventListener("click", (event) => event.target.closest("button") && host.hidePopover(), true);
}

/** One entry; `checked` (true or false) for one of several of which one is in force. */
export function entry(words, action, checked) {
  return el("button", {
    type: "button", role: checked === undefined ? "menuitem" : "menuitemradio",
    "aria-checked": checked === undefined ? null : String(checked), on: { click: action },
  }, words);
}
