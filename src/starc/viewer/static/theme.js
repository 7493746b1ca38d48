// Runs before anything is painted, so that a chosen theme never flashes the other one.
"use strict";

(() => {
  const root = document.documentElement;
  const stored = () => {
    try {
      return localStorage.getItem("starc-theme");
    } catch {
      return null; // storage may be switched off
    }
  };
  const dark = () => {
    const chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  if (["light", "dark"].includes(stored())) root.dataset.theme = stored();

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => {
      const text = dark() ? "Use the light theme" : "Use the dark theme";
      button.setAttribute("aria-label", text);
      button.title = text;
    };
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      try {
        localStorage.setItem("starc-theme", root.dataset.theme);
      } catch {
        // the choice then lasts until the page is left
      }
      label();
      document.dispatchEvent(new CustomEvent("themechange"));
    });
    label();
  });
})();
