// A modal dialog that is made when it is needed and gone afterwards.

import { el } from "./dom.js";

let made = 0;

/**
 * `buttons` are `[value, words]`, the first one the usual answer; resolves with the value of the one that
 * closed it, or "" for Cancel and Escape. The focus goes back to where it was.
 */
export function dialog(title, body, buttons, { wide = false, cancel = "Cancel" } = {}) {
  made += 1;
  const name = `dialog-${made}`;
  const form = el("form", { method: "dialog" }, ...body, el("div", { class: "answers" },
    ...buttons.map(([value, words], place) =>
      el("button", { class: place ? "button" : "button primary", value }, words)),
    el("button", { class: "button", type: "button", on: { click: () => box.close("") } }, cancel)));
  const box = el("dialog", { class: wide ? "wide" : null, "aria-labelledby": name },
    el("h2", { id: name }, title), form);
  document.body.append(box);
  box.showModal();
  return new Promise((resolve) => {
    box.addEventListener("close", () => {
      resolve(box.returnValue);
      box.remove();
    }, { once: true });
  });
}
