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
        ArrowRight: () => move(1), ArrowLeft: () => move(-1), ArrowDown: () => moveRow(1), ArrowUp: () => moveRow(-1),
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
const visible = () => [...document.querySelectorAll(".card h3 a")].filter((link) => link.checkVisibility());

function move(by) {
  const links = visible();
  const at = links.indexOf(document.activeElement);
  links[at < 0 ? 0 : Math.min(links.length - 1, Math.max(0, at + by))]?.focus();
}

// To the nearest card of the next row: rows hold as many cards as their shapes allow.
function moveRow(by) {
  const here = document.activeElement?.closest(".card")?.getBoundingClientRect();
  if (!here) { move(1); return; }
  const boxes = visible().map((link) => ({ link, box: link.closest(".card").getBoundingClientRect() }));
  const beyond = boxes.filter(({ box }) => (box.top - here.top) * by > 1);
  const top = by > 0 ? Math.min(...beyond.map(({ box }) => box.top)) : Math.max(...beyond.map(({ box }) => box.top));
  const middle = ({ left, right }) => (left + right) / 2;
  const away = ({ box }) => Math.abs(middle(box) - middle(here));
  beyond.filter(({ box }) => Math.abs(box.top - top) < 1).sort((a, b) => away(a) - away(b))[0]?.link.focus();
}
