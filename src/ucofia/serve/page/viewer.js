// The dialog: the video, large, from its best moment; where the words fit; and why, in a drawer.

import { ask } from "./api.js";
import { matchWord } from "./cards.js";
import { $, clock, fileName, folderName, icon, make, memory, svg, title } from "./dom.js";
import { slideshow } from "./slideshow.js";
import { drawWhy } from "./why.js";

const LINE = { width: 1000, height: 64 };
const FEWEST_POINTS = 3; // fewer make no curve

let asking = null;
let toggle = null;

export function close() {
  asking?.abort();
  toggle = null;
  const dialog = $("viewer");
  for (const video of dialog.querySelectorAll("video")) { video.pause(); video.removeAttribute("src"); video.load(); }
  dialog.replaceChildren();
  if (dialog.open) dialog.close();
}

export const toggleWhy = () => toggle?.();

export function open(hit, { text, showWhy, onclose, onsimilar, onstep }) {
  close();
  asking = new AbortController();
  const { signal } = asking;
  const dialog = $("viewer");
  const button = (kind, label, does, extra = "") => make("button", { type: "button", class: `plain ${extra}`, title: label, "aria-label": label, onclick: does }, icon(kind));
  const whyButton = text ? make("button", { type: "button", class: "pill", title: "Why this one (w)", "aria-expanded": "false", onclick: () => toggle() }, icon("why"), make("span", {}, "Why")) : null;
  const top = make("header", { class: "top" },
    button("leave", "Close (Esc)", onclose),
    make("div", { class: "name" }, make("h2", { title: hit.path }, title(hit.path)), make("p", {}, matchWord(hit), make("span", { title: hit.path }, make("bdi", {}, folderName(hit.path))))),
    whyButton,
    make("button", { type: "button", class: "pill", title: "Videos like this one (s)", onclick: () => onsimilar(hit) }, icon("similar"), make("span", {}, "Similar")),
    button("back", "Previous (p)", () => onstep(-1), "step"), button("next", "Next (n)", () => onstep(1), "step"));
  const stage = make("div", { class: "stage" });
  const course = make("div", { class: "course" });
  const drawer = make("aside", { class: "drawer", hidden: true, "aria-label": "Why this one" }, make("p", { class: "looked" }, "Looking …"));
  const places = hit.copies?.length ? make("details", { class: "places" },
    make("summary", {}, `Also in ${hit.copies.length} other ${hit.copies.length === 1 ? "place" : "places"}`),
    make("ul", {}, ...hit.copies.map((place) => make("li", {}, place.path)))) : null;
  dialog.append(make("div", { class: "frame" }, top, make("div", { class: "middle" }, make("div", { class: "watch" }, stage, course, places), drawer)));
  const screen = showScreen(stage, hit, signal);
  if (!dialog.open) dialog.showModal();
  top.firstElementChild.focus();
  if (!text) return;
  const parts = hit.parts?.length ? hit.parts : [{ text, is_wanted: true }];
  let isDrawn = false;
  toggle = (wanted = drawer.hidden) => {
    drawer.hidden = !wanted;
    whyButton.setAttribute("aria-expanded", String(wanted));
    memory.set("why", wanted);
    if (!wanted || isDrawn) return;
    isDrawn = true;
    // Of several texts each one has its own reasons.
    const explain = (about) => ask("api/explain", { text: about.text, segment: hit.segment }, { signal })
      .then((why) => drawWhy(drawer, why, { hit, about, parts, choose: explain }, screen.seek, () => toggle(false)))
      .catch((error) => { if (error.name !== "AbortError") drawer.replaceChildren(make("p", { class: "looked" }, error.message)); });
    explain(parts[0]);
  };
  if (showWhy || (memory.get("why", false) && matchMedia("(min-width: 1100px)").matches)) toggle(true);
  ask("api/timeline", { text: parts[0].text, video: hit.video }, { signal })
    .then((line) => drawCourse(course, line, hit, screen))
    .catch(() => {}); // the video plays without it
}

// What plays the file: the browser, or where it cannot, pictures one after another. `seek` and
// `ontime` mean the same for both.
function showScreen(stage, hit, signal) {
  const listeners = [];
  const screen = { seek: () => {}, ontime: (listener) => listeners.push(listener) };
  const tell = (second) => { for (const listener of listeners) listener(second); };
  if (hit.media_type.startsWith("image/")) {
    const still = make("img", { class: "screen", src: hit.media, alt: fileName(hit.path) });
    still.addEventListener("error", () => { if (!signal.aborted) stage.replaceChildren(gone(hit)); });
    stage.append(still);
    return screen;
  }
  const video = make("video", { class: "screen", controls: true, playsInline: true, preload: "auto", poster: hit.thumbnail });
  screen.seek = (second) => { video.currentTime = second; video.play().catch(() => {}); };
  let from = hit.best_second;
  video.addEventListener("loadedmetadata", () => {
    if (!video.videoWidth) { fail(); return; } // a sound without pictures: the codec is unknown here
    video.currentTime = from;
    video.play().catch(() => {}); // a browser may want a gesture first; the controls are there
  });
  video.addEventListener("timeupdate", () => tell(video.currentTime));
  // A known codec fails now and then, on a machine or a network that is busy: once more, then.
  let isSecond = false;
  video.addEventListener("error", () => {
    if (isSecond || video.error?.code === MediaError.MEDIA_ERR_SRC_NOT_SUPPORTED) { fail(); return; }
    isSecond = true;
    from = video.currentTime || from;
    video.load();
  });
  video.src = hit.media;
  stage.append(video);
  let hasFailed = false;
  async function fail() {
    if (hasFailed || signal.aborted || !video.isConnected) return;
    hasFailed = true;
    const response = await fetch(hit.media, { method: "HEAD", signal, cache: "no-store" }).catch(() => null);
    if (signal.aborted) return;
    if (response && [404, 410].includes(response.status)) { stage.replaceChildren(gone(hit)); return; }
    const show = slideshow(hit, tell);
    screen.seek = show.seek;
    stage.replaceChildren(show.element);
    signal.addEventListener("abort", show.stop);
  }
  return screen;
}

function gone(hit) {
  return make("div", { class: "gone" },
    make("img", { src: hit.poster, alt: "" }),
    make("div", {}, make("h3", {}, "This file is not there any more"),
      make("p", {}, "It was moved, changed or deleted after it was indexed, or its disk is not connected. It was here:"),
      make("code", {}, hit.path)));
}

// How well each moment fits, on a scale that is the same for all videos of a search: from what an
// ordinary moment has to what the best moment of all has.
function drawCourse(place, line, hit, screen) {
  const whole = line.duration_seconds || 1;
  if (line.points.length < FEWEST_POINTS) return;
  const x = (second) => (LINE.width * Math.min(second, whole)) / whole;
  const y = (value) => {
    const share = (value - line.low) / Math.max(line.high - line.low, 1e-6);
    return LINE.height - 2 - Math.min(1, Math.max(0, share)) * (LINE.height - 8);
  };
  const drawing = svg("svg", { class: "line", viewBox: `0 0 ${LINE.width} ${LINE.height}`, preserveAspectRatio: "none", role: "img", "aria-label": "how well each moment fits; click to play from there" });
  // The first and the last picture stand for what is before and after them.
  const points = [{ ...line.points[0], second: 0 }, ...line.points, { ...line.points.at(-1), second: whole }];
  const path = points.map((point) => `${x(point.second).toFixed(1)} ${y(point.similarity).toFixed(1)}`);
  const head = svg("line", { class: "head", y1: 0, y2: LINE.height, x1: x(hit.best_second), x2: x(hit.best_second) });
  drawing.append(
    svg("path", { class: "area", d: `M0 ${LINE.height} L${path.join(" L")} L${LINE.width} ${LINE.height} Z` }),
    svg("path", { class: "curve", d: `M${path.join(" L")}` }), head);
  drawing.addEventListener("click", (event) => {
    const box = drawing.getBoundingClientRect();
    screen.seek(((event.clientX - box.left) / box.width) * whole);
  });
  screen.ontime((second) => { for (const end of ["x1", "x2"]) head.setAttribute(end, x(second)); });
  const best = line.segments.filter((segment) => segment.is_match).sort((a, b) => b.score - a.score).slice(0, 6);
  const chips = line.segments.length > 1 ? best.sort((a, b) => a.best_second - b.best_second).map((segment) => make("button", {
    type: "button", class: `chip${segment.segment === hit.segment ? " best" : ""}`, title: segment.match, onclick: () => screen.seek(segment.best_second),
  }, clock(segment.best_second))) : [];
  place.replaceChildren(
    drawing,
    make("div", { class: "scale" }, make("span", {}, "0:00"),
      make("span", { title: "The top of the curve is the best moment of all your videos, the bottom an ordinary one." }, "how well each moment fits"), make("span", {}, clock(whole))),
    chips.length ? make("div", { class: "moments" }, make("span", {}, "Matching moments"), ...chips) : "");
}
