// Keys of the video page. Fields and buttons keep the keys they know.

const typing = (target) => target.matches?.("input, textarea, select, [contenteditable]");
const pressing = (target) => target.matches?.("button, a, summary, [role=tab]");

export function keyboard(page) {
  const { player, editing } = page;
  const dialog = document.getElementById("keys");
  document.getElementById("help").addEventListener("click", () => dialog.showModal());

  const plain = {
    ArrowLeft: (event) => player.seek(player.time - (event.shiftKey ? 1 : 5)),
    ArrowRight: (event) => player.seek(player.time + (event.shiftKey ? 1 : 5)),
    j: () => page.step(1),
    k: () => page.step(-1),
    e: () => editing.edit(),
    a: () => editing.add(),
    "[": () => editing.edge("start"),
    "]": () => editing.edge("end"),
    Delete: () => editing.remove(),
    Backspace: () => editing.remove(),
    "+": () => page.zoom(2),
    "=": () => page.zoom(2),
    "-": () => page.zoom(0.5),
    0: () => page.fit(),
    "?": () => dialog.showModal(),
  };
  const withControl = {
    s: () => editing.save(),
    z: (event) => (event.shiftKey ? editing.redo() : editing.undo()),
    y: () => editing.redo(),
  };

  document.addEventListener("keydown", (event) => {
    if (dialog.open || event.altKey) return;
    const control = event.ctrlKey || event.metaKey;
    if (typing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      if (!(control && event.key.toLowerCase() === "s")) return; // undo in a field undoes letters
    }
    if (event.key === " " && !control) {
      if (pressing(event.target)) return;
      event.preventDefault();
      player.toggle();
      return;
    }
    const action = control ? withControl[event.key.toLowerCase()] : plain[event.key];
    if (!action || (!control && event.key.startsWith("Arrow") && event.target.matches?.("[role=tab]"))) return;
    event.preventDefault();
    action(event);
  });
}
