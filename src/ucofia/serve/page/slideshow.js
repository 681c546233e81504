// Pictures of a video one after another, where the browser does not know its codec.

import { clock, fileName, icon, make } from "./dom.js";

const STEP_MS = 900;
const MOST = 40;

export function slideshow(hit, ontime) {
  const seconds = moments(hit);
  const frame = make("img", { class: "screen", src: hit.thumbnail, alt: `pictures of ${fileName(hit.path)}` });
  const slider = make("input", { type: "range", min: 0, max: seconds.length - 1, step: 1, "aria-label": "moment" });
  const time = make("span", {});
  const playing = make("button", { type: "button", class: "plain", "aria-label": "Play or pause" });
  let at = 0;
  let timer = null;
  const address = (index) => hit.thumbnail.replace(/second=[\d.]+/, `second=${seconds[index].toFixed(2)}&size=large`);
  const show = (index) => {
    at = (index + seconds.length) % seconds.length;
    // The picture before stays until this one has come; the first is the one of the card.
    const [wanted, coming] = [at, new Image()];
    coming.onload = () => { if (at === wanted) frame.src = coming.src; };
    coming.src = address(at);
    slider.value = at;
    time.textContent = `${clock(seconds[at])} / ${clock(hit.duration_seconds)}`;
    ontime(seconds[at]);
  };
  // The next picture is shown when it has come: a slow machine must not show gaps.
  const next = () => {
    const coming = new Image();
    const go = () => { if (timer !== null) { show(at + 1); timer = setTimeout(next, STEP_MS); } };
    coming.onload = go;
    coming.onerror = go;
    coming.src = address((at + 1) % seconds.length);
  };
  const draw = () => playing.replaceChildren(icon(timer === null ? "play" : "pause"));
  const stop = () => { clearTimeout(timer); timer = null; draw(); };
  const start = () => { timer = setTimeout(next, STEP_MS); draw(); };
  playing.addEventListener("click", () => (timer === null ? start() : stop()));
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  const nearest = (second) => seconds.reduce((best, one, index) => (Math.abs(one - second) < Math.abs(seconds[best] - second) ? index : best), 0);
  const element = make("figure", { class: "slideshow" }, frame,
    make("div", { class: "controls" }, playing, slider, time),
    make("figcaption", {}, "Your browser cannot play this kind of video, so these are pictures of it. ",
      make("a", { href: hit.media, download: fileName(hit.path) }, "Save the video"), " to play it elsewhere."));
  show(nearest(hit.best_second));
  start();
  return { element, stop, seek: (second) => { stop(); show(nearest(second)); } };
}

// Evenly through the whole video, the best moment among them.
function moments(hit) {
  const whole = Math.max(hit.duration_seconds, 0.1);
  const count = Math.max(2, Math.min(MOST, Math.round(whole)));
  const even = Array.from({ length: count }, (_, index) => ((index + 0.5) * whole) / count);
  return [...new Set([...even, hit.best_second])].sort((a, b) => a - b);
}
