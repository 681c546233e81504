// The page: what is asked stands in the address, and everything shown follows from it.

import { ask, onToken, send, sendJson } from "./api.js";
import { card, skeletons } from "./cards.js";
import { $, make, memory, plural, title } from "./dom.js";
import * as filters from "./filters.js";
import * as home from "./home.js";
import { bindKeys } from "./keys.js";
import * as viewer from "./viewer.js";
import { showExample, useDrops, WORDS } from "./drops.js";

const TOP = 24;
const TYPING_MS = 350;
const SURE = 0.5;
const CLOSEST = 6; // hits that are shown where nothing matches
const NAMES = ["q", "like", "under", "length", "year", "not", "sure", "play"];

let state = read();
const shown = { hits: [], places: new Map(), answer: null, next: null, info: null };
let asking = null;
let typing = null; // the pause after a keystroke, before it counts as a question
let example = null; // the file that was dropped, while it is the question

// ---- the address is the state -------------------------------------------------------------

function read() {
  const query = Object.fromEntries(new URLSearchParams(location.search));
  return Object.fromEntries(NAMES.map((name) => [name, query[name] ?? ""]));
}

function link(changes = {}) {
  const query = new URLSearchParams(Object.entries({ ...state, ...changes }).filter(([, value]) => value));
  return query.size ? `${location.pathname}?${query}` : location.pathname;
}

function go(changes, { replace = false } = {}) {
  const next = link(changes);
  // An entry that opened a video knows it, so that closing is the same as going back.
  const mark = replace ? history.state : { opened: Boolean(changes.play) };
  if (next !== location.pathname + location.search) history[replace ? "replaceState" : "pushState"](mark, "", next);
  state = read();
}

addEventListener("popstate", () => {
  const [before, open] = [link({ play: "" }), state.play];
  state = read();
  if (link({ play: "" }) !== before) { example = null; show(); } else { showPlaying(); if (!state.play) focusCard(open); }
});

const searchFor = (text) => { example = null; $("q").value = text; go({ q: text, like: "", play: "" }); remember(); show(); };

// ---- asking -------------------------------------------------------------------------------

const isHome = () => !example && !state.like && !state.q.trim();

function fetchPage(offset, options) {
  if (isHome()) return ask("api/videos", { top: TOP, offset }, options);
  const params = { ...filters.params(state), top: TOP, offset };
  if (example) return send("api/search", params, example, options);
  if (state.like) return ask("api/similar", { ...params, video: state.like }, options);
  return ask("api/search", { ...params, min_confidence: state.sure ? SURE : "", text: state.q.trim(), not: filters.unwanted(state) }, options);
}

async function show() {
  clearTimeout(typing);
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  viewer.close();
  setView();
  if (isHome()) { home.show(searchFor); await showWall(signal); return; }
  // Keep the old hits for a moment: most answers come before an eye notices.
  const slow = setTimeout(() => { clear(); $("results").replaceChildren(...skeletons(8)); }, $("results").children.length ? 250 : 0);
  const onbusy = (seconds) => { $("summary").textContent = `The server is busy; trying again in ${plural(seconds, "second")}.`; };
  try {
    const answer = await fetchPage(0, { signal, onbusy });
    clearTimeout(slow);
    if (signal.aborted) return; // something else was asked while the answer was on its way
    clear();
    shown.answer = answer;
    if (answer.like) showLike(answer.like, signal);
    addHits(answer);
    summarise(answer);
    showPlaying();
  } catch (error) {
    clearTimeout(slow);
    if (error.name === "AbortError") return;
    clear();
    notice("bad", error.code === "offline" ? "No answer" : "That did not work", error.message,
      make("button", { type: "button", class: "main", onclick: show }, "Try again"));
  }
}

function setView() {
  const wasTyping = document.activeElement === $("q");
  const box = $(isHome() ? "hero-box" : "bar-box");
  if ($("ask").parentElement !== box) { box.append($("ask")); if (wasTyping) $("q").focus(); }
  document.body.dataset.view = isHome() ? "home" : "results";
  document.body.dataset.asked = example || state.like ? "example" : "text";
  document.title = state.q && !isHome() ? `${state.q} · ucofia` : "ucofia";
  if ($("q").value.trim() !== state.q.trim()) $("q").value = state.q;
  filters.fill(state);
  $("tools").hidden = isHome();
  $("notice").hidden = true;
  $("more").hidden = true;
  $("summary").textContent = "";
  $("note").hidden = true;
  $("hints").hidden = true;
  $("example").hidden = !example;
}

function clear() {
  shown.hits = [];
  shown.places.clear();
  shown.answer = null;
  shown.next = null;
  $("results").replaceChildren();
  $("rest-results").replaceChildren();
  $("rest").hidden = true;
  $("results-title").hidden = true;
}

// Before anything is asked: the newest videos, so that there is something to look at.
async function showWall(signal) {
  try {
    const answer = await fetchPage(0, { signal });
    if (signal.aborted) return;
    clear();
    $("results").classList.remove("small", "closest");
    addVideos(answer);
    heading(answer.videos.length ? "Newest videos" : "");
    showPlaying();
  } catch (error) {
    if (error.name !== "AbortError") { clear(); notice("bad", "No answer", error.message); }
  }
}

function addVideos(answer) {
  shown.hits.push(...answer.videos);
  shown.next = answer.next_offset;
  $("results").append(...answer.videos.map((video) => card(video, actions(video))));
  $("more").hidden = shown.next === null;
}

const actions = (hit) => ({
  href: link({ play: hit.segment }),
  open: (one) => { remember(); go({ play: one.segment }); play(one); },
  // What is nearly the same comes out behind the one that stood for all.
  unfold: (place) => {
    shown.hits.splice(shown.hits.indexOf(hit) + 1, 0, ...hit.similar);
    place.after(...hit.similar.map(placeOf));
    place.nextElementSibling.querySelector("a").focus();
  },
});

const countMatches = () => shown.hits.filter((hit) => hit.is_match !== false).length;

function placeOf(hit) {
  if (!shown.places.has(hit)) shown.places.set(hit, card(hit, actions(hit)));
  return shown.places.get(hit);
}

// The hits that stand above the fold: the matches, or where there are none what may be one, or else
// the few that come closest. Without confidence all are.
function likely() {
  for (const isLikely of [(hit) => hit.is_match !== false, (hit) => hit.match === "maybe"]) {
    const found = shown.hits.filter(isLikely);
    if (found.length) return found;
  }
  return shown.hits.slice(0, CLOSEST);
}

function addHits(answer) {
  shown.hits.push(...answer.hits);
  shown.next = answer.next_offset;
  const above = new Set(likely());
  const below = shown.hits.filter((hit) => !above.has(hit));
  shown.hits = [...above, ...below];
  $("results").classList.toggle("small", !countMatches());
  $("results").classList.toggle("closest", !countMatches() && !isMaybe());
  $("results").append(...[...above].map(placeOf));
  $("rest-results").append(...below.map(placeOf));
  $("rest").hidden = !below.length;
  $("rest-title").textContent = `Less likely (${below.length}${shown.next === null ? "" : "+"})`;
  $("more").hidden = shown.next === null || (below.length > 0 && !$("rest").open);
}

// What others are like: its picture, and words for it.
function showLike(video, signal) {
  const words = ask("api/describe", { video: video.video, top: WORDS }, { signal })
    .then(({ texts }) => texts.filter((one) => one.match !== "no match").map((one) => one.text));
  const still = make("img", { src: video.thumbnail, alt: "" });
  still.addEventListener("error", () => { still.src = video.poster; }, { once: true }); // the file gives no sharp one
  showExample(still, title(video.path), words, searchFor);
}

$("rest").addEventListener("toggle", () => { $("more").hidden = shown.next === null || !$("rest").open; });

function summarise(answer) {
  const matches = countMatches();
  const isJudged = answer.hits.some((hit) => hit.is_match !== null);
  if (!answer.hits.length) {
    if (shown.info && !shown.info.videos) { notice("", "There are no videos yet", "Add some on the first page; they can be found as soon as they are in."); return; }
    notice("", "Nothing found", state.sure ? "Nothing matches well enough; weak matches are hidden." : filters.isUsed(state) ? "No video passes these filters." : answer.gone ? "What matched is not there any more: moved, deleted, or on a disk that is not connected." : "There is nothing to show.",
      filters.isUsed(state) ? make("button", { type: "button", class: "main", onclick: () => { go(filters.NONE); show(); } }, "Clear the filters") : "");
    return;
  }
  const notes = [
    answer.was_cut ? "Your text is longer than the model reads; its end was left out." : "",
    answer.gone ? `${plural(answer.gone, "video")} left out: moved, deleted, or on a disk that is not connected.` : "",
  ].filter(Boolean).join(" ");
  $("summary").textContent = headline(answer);
  $("note").textContent = notes;
  $("note").hidden = !notes;
  hint(answer.hints);
  const isNothing = isJudged && !matches && !isMaybe();
  if (isNothing) notice("", "", state.q.trim().split(/\s+/).length > 2 ? "Fewer or simpler words often find more: “a dog” rather than a whole scene." : "Another word for it may find more.");
  heading(isNothing ? "What comes closest" : "");
  $("rest").open = false;
}

const isMaybe = () => shown.hits.some((hit) => hit.match === "maybe");

// How many matches there are, in a sentence.
function headline(answer) {
  const like = example ? example.name || "your picture" : answer.like ? title(answer.like.path) : "";
  if (like) return `Videos like ${like}, most alike first.`;
  const unwanted = answer.unwanted.join(", ");
  // Where nothing is wanted nobody can say how sure an absence is: it is an order, not a verdict.
  if (!answer.hits.some((hit) => hit.is_match !== null)) return `${plural(shown.hits.length, "video")}, best first${unwanted && `: least of ${unwanted}`}.`;
  const matches = countMatches();
  const count = matches ? plural(matches, "match", "matches") : isMaybe() ? "No clear match" : "No match";
  const open = shown.next !== null && matches === answer.hits.length ? " or more" : "";
  const among = shown.info && !filters.isUsed(state) ? ` in ${plural(shown.info.videos, "video")}` : "";
  return `${count}${open}${among}${unwanted && `, without ${unwanted}`}.`;
}

// What is odd about the words, and a click to ask better ones.
function hint(hints) {
  $("hints").hidden = !hints.length;
  $("hints").replaceChildren(...hints.map(({ message, suggestion }) => (suggestion
    ? make("p", {}, "Did you mean ", make("button", { type: "button", class: "link", onclick: () => searchFor(suggestion) }, suggestion), "?")
    : make("p", {}, message))));
}

function heading(text) { $("results-title").textContent = text; $("results-title").hidden = !text; }

function notice(kind, head, text, ...more) {
  $("notice").className = `notice ${kind}`;
  $("notice").hidden = false;
  $("notice").replaceChildren(head && make("h2", {}, head), make("p", {}, text), ...more);
}

$("more").addEventListener("click", async () => {
  $("more").disabled = true;
  try {
    const before = new Set(document.querySelectorAll(".card"));
    (isHome() ? addVideos : addHits)(await fetchPage(shown.next, {}));
    [...document.querySelectorAll(".card")].find((one) => !before.has(one))?.querySelector("a").focus();
  } catch (error) { $("summary").textContent = error.message; }
  $("more").disabled = false;
});

// ---- one hit ------------------------------------------------------------------------------

function play(hit, showWhy = false) {
  viewer.open(hit, { text: example || state.like ? "" : state.q.trim(), showWhy, onclose: leave, onsimilar: similar, onstep: (by) => step(shown.hits.indexOf(hit) + by) });
}

function showPlaying() {
  const hit = shown.hits.find((one) => one.segment === state.play);
  if (hit) play(hit); else viewer.close();
}

function step(at) { const hit = shown.hits[at]; if (hit) { go({ play: hit.segment }, { replace: true }); play(hit); } }

function leave() {
  if (history.state?.opened) { history.back(); return; }
  const segment = state.play;
  go({ play: "" }, { replace: true });
  viewer.close();
  focusCard(segment);
}

function focusCard(segment) {
  for (const box of document.querySelectorAll(".card")) if (box.hit?.segment === segment) box.querySelector("a").focus();
}

function similar(hit) {
  viewer.close();
  example = null;
  go({ q: "", like: hit.video, play: "" });
  show();
  scrollTo(0, 0);
}

$("viewer").addEventListener("cancel", (event) => { event.preventDefault(); leave(); });

// ---- the box, filters, recent searches ----------------------------------------------------

$("q").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => { example = null; go({ q: $("q").value, like: "", play: "" }, { replace: Boolean(state.q) }); show(); }, TYPING_MS);
});
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  example = null;
  go({ q: $("q").value, like: "", play: "" });
  remember();
  show();
  if (state.q.trim()) $("results").focus({ preventScroll: true });
});
$("home").addEventListener("click", (event) => {
  event.preventDefault();
  example = null;
  $("q").value = "";
  history.pushState({}, "", location.pathname);
  state = read();
  show();
  $("q").focus();
});
filters.bind((changes) => { go(changes); show(); });

function remember() { if (state.q.trim() && !example) home.remember(state.q.trim()); }

useDrops({
  begin: (file) => { go({ q: "", like: "", play: "" }); example = file; return show(); },
  searchFor, refuse: (file) => notice("bad", "That is no picture or video", `${file.name} is of type ${file.type}.`),
});

bindKeys({
  shown, similar, step,
  opened: () => shown.hits.find((one) => one.segment === state.play),
  why: (hit) => { if (state.q) { go({ play: hit.segment }); play(hit, true); } },
  toggleWhy: viewer.toggleWhy,
});

// ---- light or dark ------------------------------------------------------------------------

function paint(theme) { if (theme) document.documentElement.dataset.theme = theme; }
paint(memory.get("theme", ""));
$("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  paint(now === "dark" ? "light" : "dark");
  memory.set("theme", document.documentElement.dataset.theme);
});

// ---- the token ----------------------------------------------------------------------------

let waitingForToken = null;
onToken(() => {
  waitingForToken ??= new Promise((given) => {
    $("token").showModal();
    $("token").oncancel = (event) => event.preventDefault();
    $("token-form").onsubmit = async (event) => {
      event.preventDefault();
      try {
        await sendJson("api/session", { token: $("token-word").value });
        $("token").close();
        waitingForToken = null;
        given();
      } catch (error) { $("token-wrong").textContent = error.message; }
    };
  });
  return waitingForToken;
});

async function start() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    await sendJson("api/session", { token: given }).catch(() => {});
    history.replaceState({}, "", location.pathname + location.search);
  }
  let isStale = false;
  home.watch({
    oninfo: (info, hasChanged) => {
      shown.info = info;
      filters.offer(info, state);
      if (shown.answer?.hits.length) $("summary").textContent = headline(shown.answer); // says in how many videos
      isStale ||= hasChanged;
      // New videos show up by themselves, as soon as nobody is in the middle of something.
      const isBusy = $("viewer").open || example || scrollY > 300 || $("q").value.trim() !== state.q.trim();
      if (isStale && !isBusy) { isStale = false; show(); }
    },
  });
  show();
}
start();
