// One hit as a card whose picture plays around the matched moment.

import { clock, fileName, folderName, isCalm, make, percent } from "./dom.js";

const BEFORE = 1.5; // seconds that play before and after the best one
const AFTER = 3;
const FLIP_MS = 450;
const UNLIKELY = 0.3; // confidence below which a hit is shown pale

// Plays what is in view, and only that: a page of videos must not exhaust a laptop.
const inView = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting && !isCalm()) target.play?.();
    else target.rest?.();
  }
}, { threshold: 0.6 });

export function levelBars(levels, range) {
  const rows = [];
  for (const [name, value] of Object.entries(levels)) {
    const [low, high] = range[name];
    const share = high > low ? (value - low) / (high - low) : 1;
    const bar = make("i", { class: name, style: { width: `${Math.max(3, 100 * Math.min(1, share))}%` } });
    rows.push(make("span", {}, name), make("div", {}, bar), make("span", {}, value.toFixed(2)));
  }
  const said = Object.entries(levels).map(([name, value]) => `${name} ${value.toFixed(2)}`).join(", ");
  return make("div", { class: "levels", role: "img", "aria-label": `levels: ${said}` }, ...rows);
}

// Bars compare the hits of one answer: scores mean nothing across queries.
export function levelRange(hits) {
  const range = {};
  for (const name of Object.keys(hits[0]?.levels ?? {})) {
    const values = hits.map((hit) => hit.levels[name]);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    range[name] = [low - 0.2 * (high - low), high];
  }
  return range;
}

const isUnlikely = (hit) => hit.is_match === false && hit.confidence < UNLIKELY;

export function sureBadge(hit) {
  if (hit.confidence === null) return make("span", { class: "badge sure", title: "score" }, hit.score.toFixed(2));
  const kind = hit.is_match ? "yes" : isUnlikely(hit) ? "no" : "perhaps";
  const text = `${percent(hit.confidence)}${hit.is_match ? " sure" : ", no match"}`;
  return make("span", { class: `badge sure ${kind}`, title: "chance that this is a match" }, text);
}

function whereStrip(hit) {
  const whole = hit.duration_seconds || 1;
  const mark = (moment, kind) => make("b", {
    class: kind,
    style: {
      left: `${(100 * moment.start_second) / whole}%`,
      width: `${(100 * (moment.end_second - moment.start_second)) / whole}%`,
    },
  });
  const isWhole = hit.end_second - hit.start_second > 0.95 * whole;
  const best = { start_second: hit.best_second, end_second: hit.best_second + 0.02 * whole };
  const others = hit.moments.slice(0, 3).map((moment) => mark(moment, "also"));
  return make("div", { class: "where" }, ...others, mark(isWhole ? best : hit, ""));
}

// The picture: a still frame first, the video over it as soon as it plays. Where the browser
// cannot play the file, the frames that the model saw are shown one after another.
export function player(hit) {
  const still = make("img", { src: hit.poster, alt: "", loading: "lazy", decoding: "async" });
  const thumb = make("div", { class: "thumb" }, still);
  if (hit.media_type === "image/gif") {
    thumb.play = () => { still.src = hit.media; };
    thumb.rest = () => { still.src = hit.poster; };
    inView.observe(thumb);
    return thumb;
  }
  // Not beyond the stretch that matched: what comes next may be something else.
  const from = Math.max(hit.start_second ?? 0, hit.best_second - BEFORE);
  const to = Math.max(from + 1, Math.min((hit.end_second ?? Infinity) - 0.1, hit.best_second + AFTER));
  let video = null;
  let flipping = null;
  const flip = () => {
    let frame = 0;
    flipping ??= setInterval(() => {
      frame = (frame + 1) % Math.max(1, hit.frames);
      still.src = `/media/${hit.segment}/frames/${frame}`;
    }, FLIP_MS);
  };
  thumb.play = () => {
    if (thumb.cannot) { flip(); return; }
    if (!video) {
      video = make("video", { muted: true, playsInline: true, preload: "auto", tabIndex: -1, disableRemotePlayback: true, "aria-hidden": "true" });
      video.src = `${hit.media}#t=${from.toFixed(2)}`;
      video.addEventListener("playing", () => video?.classList.add("on"));
      video.addEventListener("timeupdate", () => { if (video && video.currentTime > to) video.currentTime = from; });
      video.addEventListener("ended", () => { video.currentTime = from; video.play().catch(() => {}); });
      video.addEventListener("error", () => { thumb.cannot = true; thumb.rest(); flip(); });
      thumb.append(video);
    }
    video.play().catch(() => {});
  };
  thumb.rest = () => {
    clearInterval(flipping);
    flipping = null;
    if (!video) return;
    video.pause();
    video.removeAttribute("src"); // lets the browser drop the connection and the decoder
    video.load();
    video.remove();
    video = null;
  };
  inView.observe(thumb);
  return thumb;
}

export function card(hit, rank, range, { href, open, why, similar }) {
  const thumb = player(hit);
  thumb.append(
    make("span", { class: "badge rank" }, `${rank}`),
    sureBadge(hit),
    make("span", { class: "badge at" }, `${clock(hit.best_second)} / ${clock(hit.duration_seconds)}`),
    whereStrip(hit),
  );
  return box(hit, thumb, `${fileName(hit.path)}, best at ${clock(hit.best_second)}`, href, open, levelBars(hit.levels, range), [["Why", why], ["Similar", similar]]);
}

// A video that nobody asked for: no score, no bars.
export function plainCard(video, { href, open, similar }) {
  const thumb = player(video);
  thumb.append(make("span", { class: "badge at" }, clock(video.duration_seconds)));
  return box(video, thumb, fileName(video.path), href, open, null, [["Similar", similar]]);
}

function box(hit, thumb, label, href, open, bars, actions) {
  const name = fileName(hit.path);
  const link = make("a", {
    href, "aria-label": label,
    onclick: (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      open(hit);
    },
  }, name);
  const action = (label, does) => make("button", { type: "button", class: "plain", "aria-label": `${label}: ${name}`, onclick: () => does(hit) }, label);
  const article = make("article", {
    class: `card${isUnlikely(hit) ? " unlikely" : ""}`,
    onmouseenter: () => thumb.play(), onfocusin: () => thumb.play(),
  },
  thumb,
  make("div", { class: "body" },
    make("h3", { title: hit.path }, link),
    make("p", { class: "folder", title: hit.path }, make("bdi", {}, folderName(hit.path))),
    bars,
    make("div", { class: "do" }, ...actions.filter(([, does]) => does).map(([title, does]) => action(title, does)))));
  article.hit = hit;
  return make("li", {}, article);
}

export function skeletons(count) {
  return Array.from({ length: count }, () => make("li", { "aria-hidden": "true" },
    make("article", { class: "card skeleton" }, make("div", { class: "thumb" }), make("div", { class: "body" }, make("i"), make("i")))));
}
