// Everything by keyboard.

import { $ } from "./dom.js";

export function bindKeys({ shown, similar, step, opened, why, toggleWhy }) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA|VIDEO)$/.test(event.target.tagName)) return;
    const isOpen = $("viewer").open;
    const hit = isOpen ? opened() : event.target.closest?.(".card")?.hit;
    const at = hit ? shown.hits.indexOf(hit) : -1;
    const keys = isOpen
      ? { n: () => step(at + 1), p: () => step(at - 1), s: () => hit && similar(hit), w: toggleWhy }
      : {
        "/": () => { $("q").focus(); $("q").select(); }, "?": () => $("help").showModal(),
        w: () => hit && why(hit), s: () => hit && similar(hit),
        ArrowRight: () => move(1), ArrowLeft: () => move(-1), ArrowDown: () => move(perRow()), ArrowUp: () => move(-perRow()),
      };
    if (!keys[event.key] || (document.querySelector("dialog[open]") && !isOpen)) return;
    if (event.key.startsWith("Arrow") && !hit && event.key !== "ArrowDown") return;
    event.preventDefault();
    keys[event.key]();
  });
  $("q").addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" && shown.hits.length && !$("q").value.startsWith(" ")) { event.preventDefault(); move(1); }
    if (event.key === "Escape") $("q").blur();
  });
  $("keys").addEventListener("click", () => $("help").showModal());
}

// In the order of the page, folded cards left out.
function move(by) {
  const links = [...document.querySelectorAll(".card h3 a")].filter((link) => link.checkVisibility());
  const at = links.indexOf(document.activeElement);
  links[at < 0 ? 0 : Math.min(links.length - 1, Math.max(0, at + by))]?.focus();
}

function perRow() {
  const grid = document.activeElement?.closest(".grid") ?? $("results");
  return getComputedStyle(grid).gridTemplateColumns.split(" ").length;
}
