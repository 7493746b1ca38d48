// Keys of the video page. Fields keep the keys they know, dialogs and open menus too. Elsewhere Space plays, always:
// a button is pressed by Enter.

const writing = (target) => target.matches?.("input:not([type=range]), textarea, [contenteditable]");
const typing = (target) => writing(target) || target.matches?.("select");
const pressing = (target) => target.matches?.("button, a, summary, [role=tab]");
const apart = () => document.querySelector("dialog[open], :popover-open");
const plays = (event) => event.key === " " && !event.ctrlKey && !event.metaKey && !event.altKey && !writing(event.target) && !apart();
const press = (id) => document.getElementById(id).click();

export function keyboard(page) {
  const { player, editing } = page;
  const help = document.getElementById("keys");
  document.getElementById("help").addEventListener("click", () => help.showModal());

  const plain = {
    ArrowLeft: (event) => player.seek(player.time - (event.shiftKey ? 1 : 5)),
    ArrowRight: (event) => player.seek(player.time + (event.shiftKey ? 1 : 5)),
    ",": () => player.stepFrame(-1),
    ".": () => player.stepFrame(1),
    j: () => page.step(1),
    k: () => page.step(-1),
    p: () => editing.play(),
    l: () => press("loop"),
    f: () => press("full"),
    e: () => editing.edit(),
    a: () => editing.add(),
    s: () => editing.split(),
    m: () => editing.merge(),
    "[": () => editing.edge("start"),
    "]": () => editing.edge("end"),
    "<": () => editing.nudge(-0.1),
    ">": () => editing.nudge(0.1),
    Enter: () => editing.write(),
    Escape: () => page.choose(null),
    Delete: () => editing.remove(),
    Backspace: () => editing.remove(),
    "+": () => page.zoom(2),
    "=": () => page.zoom(2),
    "-": () => page.zoom(0.5),
    0: () => page.fit(),
    "?": () => help.showModal(),
  };
  const withControl = {
    a: () => editing.everything(),
    s: () => editing.save(),
    z: (event) => (event.shiftKey ? editing.redo() : editing.undo()),
    y: () => editing.redo(),
  };

  // A button that was clicked keeps no focus, or Enter would press it again.
  document.addEventListener("click", (event) => {
    if (event.detail > 0 && !apart()) event.target.closest?.("button, summary")?.blur();
  }, true);
  document.addEventListener("keyup", (event) => {
    if (plays(event)) event.preventDefault(); // Firefox presses a button here
  });
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.altKey || apart()) return;
    if (plays(event)) {
      event.preventDefault();
      if (!event.repeat) player.toggle();
      return;
    }
    const control = event.ctrlKey || event.metaKey;
    if (typing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      if (!(control && event.key.toLowerCase() === "s")) return; // undo in a field undoes letters
    }
    if (pressing(event.target) && event.key === "Enter") return;
    const action = control ? withControl[event.key.toLowerCase()] : plain[event.key];
    if (action === withControl.a && !page.state.editing) return; // the browser's own
    if (!action || (!control && event.key.startsWith("Arrow") && event.target.matches?.("[role=tab]"))) return;
    event.preventDefault();
    action(event);
  });
}
