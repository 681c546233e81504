// One video as a card: its picture, what it is called, which moment, and how sure that is.

import { clock, isCalm, make, memory, sentence, title } from "./dom.js";

const BEFORE = 1.5; // seconds that play before and after the best one
const AFTER = 3;
const FLIP_MS = 450;
const NARROWEST = 9 / 16; // width by height that a card can have; what is beyond is cut
const WIDEST = 2.4;
const REMEMBERED = 1000; // shapes of videos that this browser has shown

// The sharp picture is asked for when its card comes near the screen; until then, and where there
// is none, the small one of the index stands in.
const nearby = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    nearby.unobserve(target);
    target.sharpen();
  }
}, { rootMargin: "300px" });

// A card has the shape of its video. The index does not know it, the first picture does; the browser
// remembers it, so that cards do not move when they are shown again.
const shapes = new Map(memory.get("shapes", []));

function reshape(thumb, hit, picture) {
  const shape = Math.min(WIDEST, Math.max(NARROWEST, picture.naturalWidth / picture.naturalHeight)).toFixed(3);
  if (shapes.get(hit.video) === shape) return;
  shapes.set(hit.video, shape);
  memory.set("shapes", [...shapes].slice(-REMEMBERED));
  thumb.closest("li")?.style.setProperty("--shape", shape);
}

export function matchWord(hit) {
  if (!hit.match) return null;
  return make("span", { class: `word-match ${hit.match.replace(" ", "-")}` }, sentence(hit.match));
}

// A still picture that plays while somebody points at it. Where the browser cannot play the file,
// the frames that the model saw are shown one after another.
export function picture(hit) {
  const behind = make("img", { class: "behind", src: hit.poster, alt: "", loading: "lazy", decoding: "async" }); // until the sharp one is there
  const still = make("img", { class: "still", alt: "", decoding: "async" });
  const thumb = make("div", { class: "thumb" }, behind, still);
  thumb.sharpen = () => { still.src = hit.thumbnail; };
  still.addEventListener("load", () => { reshape(thumb, hit, still); thumb.classList.add("sharp"); }, { once: true });
  nearby.observe(thumb);
  if (hit.media_type.startsWith("image/") && hit.media_type !== "image/gif") {
    thumb.play = () => {};
    thumb.rest = () => {};
    return thumb;
  }
  if (hit.media_type === "image/gif") {
    thumb.play = () => { still.src = hit.media; };
    thumb.rest = () => { still.src = hit.thumbnail; };
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
      still.src = hit.poster.replace(/\d+$/, frame);
    }, FLIP_MS);
  };
  thumb.play = () => {
    if (isCalm()) return;
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
    if (flipping) { clearInterval(flipping); flipping = null; still.src = hit.thumbnail; }
    if (!video) return;
    video.pause();
    video.removeAttribute("src"); // lets the browser drop the connection and the decoder
    video.load();
    video.remove();
    video = null;
  };
  return thumb;
}

// A hit with its word and moment, or a video that nobody asked for with neither.
export function card(hit, { href, open, unfold }) {
  const thumb = picture(hit);
  const isLong = hit.duration_seconds >= 1;
  const isHit = hit.score !== undefined;
  if (isLong) thumb.append(make("span", { class: "badge" }, clock(hit.duration_seconds)));
  const moment = isHit && isLong ? `at ${clock(hit.best_second)}` : null;
  const label = [title(hit.path), hit.match, moment].filter(Boolean).join(", ");
  const link = make("a", {
    href, "aria-label": label,
    onclick: (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      open(hit);
    },
  }, title(hit.path));
  const places = hit.copies?.length ? `in ${hit.copies.length + 1} places` : null;
  // "No match" on every card of a heading that says so would be noise.
  const word = hit.match === "no match" ? null : matchWord(hit);
  const alike = hit.similar?.length ? make("button", { type: "button", class: "link alike", onclick: () => { alike.remove(); unfold(place); } }, `${hit.similar.length} similar`) : null;
  const plain = (text) => text && make("span", {}, text);
  const facts = [word, plain(moment), plain(places), alike].filter(Boolean);
  const article = make("article", {
    class: "card",
    onmouseenter: () => thumb.play(), onmouseleave: () => thumb.rest(),
    onfocusin: () => thumb.play(), onfocusout: () => thumb.rest(),
  },
  thumb,
  make("div", { class: "body" },
    make("h3", { title: hit.path }, link),
    make("p", { class: "facts" }, make("span", {}, ...facts))));
  article.hit = hit;
  const place = make("li", { style: shapes.has(hit.video) ? { "--shape": shapes.get(hit.video) } : {} }, article);
  return place;
}

export function skeletons(count) {
  return Array.from({ length: count }, () => make("li", { "aria-hidden": "true" },
    make("article", { class: "card skeleton" }, make("div", { class: "thumb" }), make("div", { class: "body" }, make("i"), make("i")))));
}
