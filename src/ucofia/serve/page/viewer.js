// The dialog: the video from its best second, where the text matches in it, and why.

import { ask } from "./api.js";
import { $, clock, fileName, folderName, make, percent, svg } from "./dom.js";
import { sureBadge } from "./cards.js";

const LINE = { width: 1000, height: 84 };
const HEAVY = 0.1; // weight from which a frame or patch is marked
const NOT_WORDS = new Set(["<|startoftext|>", "<|endoftext|>", "[CLS]", "[SEP]"]);

let asking = null;

export function close() {
  asking?.abort();
  const dialog = $("viewer");
  for (const video of dialog.querySelectorAll("video")) { video.pause(); video.removeAttribute("src"); video.load(); }
  dialog.replaceChildren();
  if (dialog.open) dialog.close();
}

export function open(hit, { text, scrollToWhy, onclose, onsimilar, onstep }) {
  close();
  asking = new AbortController();
  const dialog = $("viewer");
  const screen = makeScreen(hit);
  const seek = (second) => { if (screen.tagName === "VIDEO") { screen.currentTime = second; screen.play().catch(() => {}); } };
  const button = (label, title, does) => make("button", { type: "button", class: "plain", title, onclick: does }, label);
  const top = make("div", { class: "top" },
    make("h2", { title: hit.path }, fileName(hit.path), make("small", {}, folderName(hit.path))),
    button("‹", "Previous result (p)", () => onstep(-1)), button("›", "Next result (n)", () => onstep(1)),
    button("Similar", "Videos like this one (s)", () => onsimilar(hit)),
    button("Close", "Close (Esc)", onclose));
  const left = make("div", {}, screen, make("div", { class: "course" }));
  const right = make("div", { class: "why" });
  dialog.append(top, make("div", { class: "two" }, left, text ? right : null));
  if (!dialog.open) dialog.showModal();
  top.lastElementChild.focus();
  if (!text) return;
  const fail = (place) => (error) => {
    if (error.name !== "AbortError") place.replaceChildren(make("p", { class: "looked" }, error.message));
  };
  const course = left.querySelector(".course");
  ask("/api/timeline", { text, video: hit.video }, { signal: asking.signal })
    .then((line) => drawCourse(course, line, hit, screen, seek)).catch(fail(course));
  ask("/api/explain", { text, segment: hit.segment }, { signal: asking.signal })
    .then((why) => { drawWhy(right, why, hit, seek); if (scrollToWhy) right.scrollIntoView({ block: "nearest" }); })
    .catch(fail(right));
}

function makeScreen(hit) {
  if (hit.media_type === "image/gif") return make("img", { class: "screen", src: hit.media, alt: fileName(hit.path) });
  const video = make("video", { class: "screen", controls: true, playsInline: true, preload: "auto", poster: hit.poster });
  video.src = hit.media;
  video.addEventListener("loadedmetadata", () => {
    video.currentTime = hit.best_second;
    video.play().catch(() => {}); // a browser may want a gesture first; the controls are there
  }, { once: true });
  video.addEventListener("error", () => {
    if (!video.isConnected || video.nextElementSibling?.className === "cannot") return;
    video.after(make("p", { class: "cannot" }, `This browser cannot play ${fileName(hit.path)}. `,
      make("a", { href: hit.media, download: fileName(hit.path) }, "Save it"), " to play it elsewhere."));
  });
  return video;
}

function drawCourse(place, line, hit, screen, seek) {
  const whole = line.duration_seconds || 1;
  const x = (second) => (LINE.width * Math.min(second, whole)) / whole;
  const values = line.points.map((point) => point.similarity);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const y = (value) => (high - low > 1e-6 ? LINE.height - 8 - ((value - low) / (high - low)) * (LINE.height - 22) : LINE.height / 2);
  const drawing = svg("svg", { class: "line", viewBox: `0 0 ${LINE.width} ${LINE.height}`, preserveAspectRatio: "none", role: "img", "aria-label": "how well each moment fits; click to play from there" });
  const scores = line.segments.map((segment) => segment.score);
  const [least, most] = [Math.min(...scores), Math.max(...scores)];
  for (const segment of line.segments) {
    const share = most > least ? (segment.score - least) / (most - least) : 1;
    drawing.append(svg("rect", { class: "stretch", x: x(segment.start_second), y: LINE.height - 6, height: 6, width: Math.max(2, x(segment.end_second) - x(segment.start_second)), opacity: 0.1 + 0.9 * share ** 2 }));
  }
  if (values.length) {
    const path = line.points.map((point) => `${x(point.second).toFixed(1)} ${y(point.similarity).toFixed(1)}`);
    const [first, last] = [x(line.points[0].second), x(line.points.at(-1).second)];
    drawing.append(svg("path", { class: "area", d: `M${first} ${LINE.height} L${path.join(" L")} L${last} ${LINE.height} Z` }), svg("path", { class: "curve", d: `M${path.join(" L")}` }));
  }
  const head = svg("line", { class: "head", y1: 0, y2: LINE.height, x1: x(hit.best_second), x2: x(hit.best_second) });
  drawing.append(head);
  drawing.addEventListener("click", (event) => {
    const box = drawing.getBoundingClientRect();
    seek(((event.clientX - box.left) / box.width) * whole);
  });
  screen.addEventListener("timeupdate", () => { for (const end of ["x1", "x2"]) head.setAttribute(end, x(screen.currentTime)); });
  const best = [...line.segments].sort((a, b) => b.score - a.score).slice(0, 6);
  const chips = best.map((segment, at) => make("button", {
    type: "button", class: `chip${at ? "" : " best"}`, onclick: () => seek(segment.best_second),
  }, segment.confidence === null ? clock(segment.best_second) : `${clock(segment.best_second)} · ${percent(segment.confidence)}`));
  place.replaceChildren(
    make("h3", {}, "Where it matches"), drawing,
    make("div", { class: "scale" }, make("span", {}, "0:00"), make("span", {}, clock(whole))),
    make("div", { class: "moments" }, ...chips));
}

function drawWhy(place, why, hit, seek) {
  const lens = makeLens(hit, why);
  const looked = make("p", { class: "looked", role: "status" });
  const best = why.frames.reduce((most, frame, at) => (frame.weight > why.frames[most].weight ? at : most), 0);
  const words = why.words.filter((word) => !NOT_WORDS.has(word.word));
  const most = Math.max(...words.map((word) => word.weight), 1e-9);
  const rest = () => {
    for (const other of row.children) other.classList.remove("on");
    lens.show(best, []);
    looked.textContent = words.some((word) => word.patches.length) ? "Point at a word to see what it looked at." : "";
  };
  const choose = (word, chip) => {
    for (const other of row.children) other.classList.toggle("on", other === chip);
    const [first] = word.patches;
    if (!first) { looked.textContent = `“${word.word}” chose no part of a frame.`; return; }
    const lit = word.patches.filter((patch) => patch.frame === first.frame);
    lens.show(first.frame, lit);
    const part = first.row === null ? "the whole frame" : "the lit part";
    const share = word.weight >= 0.01 ? `: ${percent(word.weight)} of the patch score` : ", but others decided";
    looked.textContent = `“${word.word}” looked at ${part} at ${clock(first.second)}${share}.`;
  };
  const row = make("div", { class: "words-row", onmouseleave: rest }, ...words.map((word) => {
    const chip = make("button", { type: "button", class: "word", style: { "--share": `${Math.round((45 * word.weight) / most)}%` } }, word.word);
    for (const kind of ["mouseenter", "focus", "click"]) chip.addEventListener(kind, () => choose(word, chip));
    return chip;
  }));
  const frames = why.frames.map((frame, at) => make("button", {
    type: "button", class: frame.weight >= HEAVY ? "heavy" : "", title: `${clock(frame.second)}: ${percent(frame.weight)} of the frame score`,
    "aria-label": `play from ${clock(frame.second)}, weight ${percent(frame.weight)}`,
    onclick: () => { seek(frame.second); lens.show(at, []); },
  },
  make("img", { src: frame.picture, alt: "", loading: "lazy" }),
  make("div", {}, make("i", { style: { width: `${100 * frame.weight}%` } })),
  make("span", {}, `${clock(frame.second)}${frame.weight >= 0.01 ? ` · ${percent(frame.weight)}` : ""}`)));
  const tallest = Math.max(...why.levels.map((level) => Math.abs(level.contribution)), 1e-9);
  const levels = why.levels.flatMap((level) => [
    make("span", {}, level.name),
    make("div", {}, make("i", { class: level.name, style: { width: `${Math.max(2, (100 * level.contribution) / tallest)}%` } })),
    make("span", { title: `(similarity ${level.similarity.toFixed(2)} + bias ${level.bias.toFixed(2)}) × share ${level.share.toFixed(2)}` }, level.contribution.toFixed(2))]);
  place.replaceChildren(
    make("h3", {}, "What each word saw"), row, lens.element, looked,
    make("h3", {}, "Frames, by their weight"), make("div", { class: "frames" }, ...frames),
    make("h3", {}, `How the score adds up to ${why.score.toFixed(2)}`), make("div", { class: "levels" }, ...levels),
    make("p", { class: "looked" }, sureBadge(hit)));
  rest();
}

// A square cut from the middle of a frame, exactly what the model saw, with a veil over the
// patches that a word did not choose.
function makeLens(hit, why) {
  const still = make("img", { alt: "" });
  const veil = svg("svg", { viewBox: `0 0 ${why.grid || 1} ${why.grid || 1}`, "aria-hidden": "true" });
  const element = make("div", { class: "lens" }, still, veil);
  let video = null;
  if (hit.media_type !== "image/gif") {
    video = make("video", { muted: true, playsInline: true, preload: "auto", tabIndex: -1, "aria-hidden": "true" });
    video.src = hit.media;
    video.addEventListener("seeked", () => video.classList.add("on"));
    video.addEventListener("error", () => video.remove());
    still.after(video);
  }
  const show = (at, patches) => {
    const frame = why.frames[at];
    if (!frame) return;
    if (still.src !== new URL(frame.picture, location).href) { still.src = frame.picture; video?.classList.remove("on"); }
    if (video && Math.abs(video.currentTime - frame.second) > 0.01) video.currentTime = frame.second + 0.01;
    const placed = patches.filter((patch) => patch.row !== null && why.grid);
    if (!placed.length) {
      veil.replaceChildren(...(patches.length ? [svg("rect", { x: 0, y: 0, width: why.grid || 1, height: why.grid || 1, "stroke-width": 8 })] : []));
      return;
    }
    const most = Math.max(...placed.map((patch) => patch.weight), 1e-9); // a word's own best is fully lit
    const holes = placed.map((patch) => `M${patch.column} ${patch.row}h1v1h-1z`).join("");
    const shade = svg("path", { "fill-rule": "evenodd", d: `M0 0h${why.grid}v${why.grid}h-${why.grid}z${holes}` });
    const edges = placed.map((patch) => svg("rect", { x: patch.column, y: patch.row, width: 1, height: 1, "stroke-width": 1 + 3 * (patch.weight / most), opacity: 0.25 + 0.75 * (patch.weight / most) }));
    veil.replaceChildren(shade, ...edges);
  };
  return { element, show };
}
