// A row of buttons that is one stop for Tab; arrows walk along it.

const KEYS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };

/** Keys for `host`; the function that it returns puts the stop on a button that can be pressed. */
export function toolbar(host) {
  const usable = () => [...host.querySelectorAll("button")].filter((one) => !one.disabled && !one.closest("[hidden]"));
  const stop = (at) => {
    const buttons = usable();
    const chosen = buttons.includes(at) ? at : buttons.find((one) => one.tabIndex === 0) ?? buttons[0];
    for (const one of host.querySelectorAll("button")) one.tabIndex = one === chosen ? 0 : -1;
  };
  host.addEventListener("focusin", (event) => stop(event.target));
  host.addEventListener("keydown", (event) => {
    const by = KEYS[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const buttons = usable();
    const next = buttons.indexOf(document.activeElement) + by;
    buttons[Math.min(Math.max(0, next), buttons.length - 1)]?.focus();
  });
  stop();
  return stop;
}
