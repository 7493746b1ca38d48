// The video beside the page: a click on a time or a bar plays from there; what is on is marked.
const player = document.querySelector("video");
const rows = [...document.querySelectorAll("[data-from]")];

document.addEventListener("click", (click) => {
  const link = click.target.closest("[data-seek]");
  if (!link || player.error) return; // the link still leads to the file, or to its row
  if (!link.getAttribute("href").startsWith("#")) click.preventDefault();
  player.currentTime = Number(link.dataset.seek);
  player.play().catch(() => {});
});
player.addEventListener("timeupdate", () => {
  const now = player.currentTime;
  for (const { classList, dataset } of rows)
    classList.toggle("now", Number(dataset.from) <= now && now < Number(dataset.to));
});
const missing = () => {
  player.hidden = true;
  document.querySelector(".missing").hidden = false;
};
player.addEventListener("error", missing);
if (player.error) missing();
