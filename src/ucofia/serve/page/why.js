// The drawer: what each word looked at, which moments counted, and the numbers for who wants them.

import { matchWord } from "./cards.js";
import { clock, icon, make, percent, svg } from "./dom.js";

const HEAVY = 0.1; // weight from which a frame is marked

export function drawWhy(place, why, { hit, about, parts, choose: chooseText }, seek, onclose) {
  const lens = makeLens(hit, why);
  const looked = make("p", { class: "looked", role: "status" });
  const best = why.frames.reduce((most, frame, at) => (frame.weight > why.frames[most].weight ? at : most), 0);
  const most = Math.max(...why.words.map((word) => word.weight), 1e-9);
  const rest = () => {
    if (row.children.length === 1) { choose(why.words[0], row.firstElementChild); return; } // there is nothing else to point at
    for (const other of row.children) other.classList.remove("on");
    lens.show(best, []);
    looked.textContent = why.words.some((word) => word.patches.length) ? `${matchMedia("(hover: none)").matches ? "Tap" : "Point at"} a word to see what it looked at.` : "";
  };
  const choose = (word, chip) => {
    for (const other of row.children) other.classList.toggle("on", other === chip);
    const [first] = word.patches;
    if (!first) { looked.textContent = `“${word.word}” chose no part of a picture.`; return; }
    // What fits best may be the frame as a whole; then no part of it is marked.
    const isWhole = first.row === null;
    lens.show(first.frame, isWhole ? [] : word.patches.filter((patch) => patch.frame === first.frame));
    looked.textContent = isWhole ? `“${word.word}” fits the picture at ${clock(first.second)} as a whole, more than any part of it.`
      : `“${word.word}” looked at the bright part at ${clock(first.second)}.`;
  };
  const row = make("div", { class: "words-row", onmouseleave: rest }, ...why.words.map((word) => {
    const chip = make("button", { type: "button", class: "word", style: { "--share": `${Math.round((55 * word.weight) / most)}%` } }, word.word);
    for (const kind of ["mouseenter", "focus", "click"]) chip.addEventListener(kind, () => choose(word, chip));
    return chip;
  }));
  const frames = why.frames.map((frame, at) => make("button", {
    type: "button", class: frame.weight >= HEAVY ? "heavy" : "",
    title: `${clock(frame.second)}: ${percent(frame.weight)}`, "aria-label": `play from ${clock(frame.second)}`,
    onclick: () => { seek(frame.second); lens.show(at, []); },
  },
  make("img", { src: frame.picture, alt: "", onload: () => middle() }),
  make("div", {}, make("i", { style: { width: `${100 * frame.weight}%` } })),
  make("span", {}, clock(frame.second))));
  const strip = make("div", { class: "frames" }, ...frames);
  const middle = () => { strip.scrollLeft = frames[best].offsetLeft - strip.offsetLeft - (strip.clientWidth - frames[best].offsetWidth) / 2; };
  const tallest = Math.max(...why.levels.map((level) => Math.abs(level.contribution)), 1e-9);
  const named = { video: "whole video", frame: "single moments", patch: "details" };
  const levels = why.levels.flatMap((level) => [
    make("span", {}, named[level.name] ?? level.name),
    make("div", {}, make("i", { class: level.name, style: { width: `${Math.min(100, Math.max(2, (100 * level.contribution) / tallest))}%` } })),
    make("span", { title: `(similarity ${level.similarity.toFixed(2)} + bias ${level.bias.toFixed(2)}) × share ${level.share.toFixed(2)}` }, level.contribution.toFixed(2))]);
  const sure = hit.confidence === null || hit.confidence === undefined ? "" : `${percent(hit.confidence)} likely`;
  place.replaceChildren(
    make("div", { class: "drawer-top" }, make("h3", {}, "Why this one"), make("button", { type: "button", class: "plain", "aria-label": "Close", onclick: onclose }, icon("close"))),
    parts.length > 1 ? make("div", { class: "parts" }, ...parts.map((part) => make("button", {
      type: "button", class: `chip${part.text === about.text ? " best" : ""}`, "aria-pressed": String(part.text === about.text), onclick: () => chooseText(part),
    }, part.is_wanted ? part.text : `not ${part.text}`))) : "",
    hit.match ? make("p", { class: "verdict" }, matchWord(hit), sure && make("span", {}, sure)) : "",
    make("h4", {}, "What each word looked at"), row, lens.element, looked,
    make("h4", {}, "Moments that counted"), strip,
    make("details", {}, make("summary", {}, "The numbers"),
      make("div", { class: "levels" }, ...levels),
      make("p", { class: "looked" }, `Together ${why.score.toFixed(2)}. Scores compare within one search only.`)));
  rest();
}

// Exactly what the model saw of a frame, in the proportions of its small picture (a square, if it
// saw only the middle), with a veil over the patches that a word did not choose.
function makeLens(hit, why) {
  const still = make("img", { alt: "" });
  const veil = svg("svg", { viewBox: `0 0 ${why.grid || 1} ${why.grid || 1}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const element = make("div", { class: "lens" }, still, veil);
  let turn = 0;
  const show = (at, patches) => {
    const frame = why.frames[at];
    if (!frame) return;
    // The small picture first, whose shape counts, then the same moment as sharp as the video has it.
    const sharp = hit.thumbnail.replace(hit.segment, why.segment).replace(/second=[\d.]+/, `second=${frame.second.toFixed(2)}&size=large`);
    if (still.dataset.at !== String(at)) {
      still.dataset.at = String(at);
      const mine = turn += 1;
      const coming = new Image();
      coming.src = sharp;
      still.onload = () => {
        still.onload = null;
        element.style.aspectRatio = `${still.naturalWidth} / ${still.naturalHeight}`;
        coming.decode().then(() => { if (mine === turn) still.src = sharp; }, () => {}); // the file may be gone
      };
      still.src = frame.picture;
    }
    const placed = patches.filter((patch) => patch.row !== null && why.grid);
    if (!placed.length) { veil.replaceChildren(); return; }
    const most = Math.max(...placed.map((patch) => patch.weight), 1e-9); // a word's own best is fully lit
    const holes = placed.map((patch) => `M${patch.column} ${patch.row}h1v1h-1z`).join("");
    const shade = svg("path", { "fill-rule": "evenodd", d: `M0 0h${why.grid}v${why.grid}h-${why.grid}z${holes}` });
    const edges = placed.map((patch) => svg("rect", { x: patch.column, y: patch.row, width: 1, height: 1, "stroke-width": 1 + 2 * (patch.weight / most), opacity: 0.25 + 0.75 * (patch.weight / most) }));
    veil.replaceChildren(shade, ...edges);
  };
  return { element, show };
}
