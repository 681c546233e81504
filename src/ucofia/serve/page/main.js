// The page: what is asked stands in the address, and everything shown follows from it.

import { ask, onToken, request, send, sendJson } from "./api.js";
import { card, levelRange, plainCard, skeletons } from "./cards.js";
import { $, bytes, fileName, make, memory, plural, span } from "./dom.js";
import * as viewer from "./viewer.js";

const TOP = 24;
const TYPING_MS = 350;
const RECENT = 8;
const IDLE_MS = 15000;
const WORKING_MS = 1500;
const SURE = 0.5;

let state = read();
let shown = { hits: [], next: null, range: {}, info: null };
let asking = null;
let typing = null; // the pause after a keystroke, before it counts as a question
let example = null; // the file that was dropped, while it is the question

// ---- the address is the state -------------------------------------------------------------

function read() {
  const query = new URLSearchParams(location.search);
  const { q = "", like = "", under = "", length = "", since = "", sure = "", play = "" } = Object.fromEntries(query);
  return { q, like, under, length, since, sure, play };
}

function link(changes = {}) {
  const query = new URLSearchParams(Object.entries({ ...state, ...changes }).filter(([, value]) => value));
  return query.size ? `/?${query}` : "/";
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

// ---- asking -------------------------------------------------------------------------------

function params() {
  const [least, most] = state.length.split("-");
  return {
    top: TOP, under: state.under, min_seconds: least, max_seconds: most,
    since: state.since,
  };
}

function fetchPage(offset, options) {
  if (example) return send("/api/search", { ...params(), offset }, example, options);
  if (state.like) return ask("/api/similar", { ...params(), offset, video: state.like }, options);
  const min_confidence = state.sure ? SURE : "";
  return ask("/api/search", { ...params(), offset, min_confidence, text: state.q.trim() }, options);
}

async function show() {
  clearTimeout(typing);
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  viewer.close();
  fillControls();
  const isHome = !example && !state.like && !state.q.trim();
  document.body.dataset.view = isHome ? "home" : "results";
  document.title = state.q && !isHome ? `${state.q} · ucofia` : "ucofia";
  $("filters").hidden = isHome;
  $("notice").hidden = true;
  $("more").hidden = true;
  $("summary").textContent = "";
  $("example").hidden = !example;
  $("wall-title").hidden = true;
  if (isHome) { showRecent(); await showWall(signal); return; }
  // Keep the old hits for a moment: most answers come before an eye notices.
  const slow = setTimeout(() => $("results").replaceChildren(...skeletons(8)), $("results").children.length ? 250 : 0);
  const onbusy = (seconds) => { $("summary").textContent = `The server is busy; trying again in ${plural(seconds, "second")}.`; };
  try {
    const answer = await fetchPage(0, { signal, onbusy });
    clearTimeout(slow);
    if (signal.aborted) return; // something else was asked while the answer was on its way
    shown = { ...shown, hits: [], next: null, range: levelRange(answer.hits) };
    $("results").replaceChildren();
    addHits(answer);
    summarise(answer);
    showPlaying();
  } catch (error) {
    clearTimeout(slow);
    if (error.name === "AbortError") return;
    $("results").replaceChildren();
    notice("bad", error.code === "offline" ? "No answer" : "That did not work", error.message,
      make("button", { type: "button", class: "main", onclick: show }, "Try again"));
  }
}

// Before anything is asked: the newest videos, so that there is something to look at.
async function showWall(signal) {
  try {
    const answer = await ask("/api/videos", { top: TOP }, { signal });
    if (signal.aborted) return;
    shown = { ...shown, hits: answer.videos, next: null };
    const open = (video) => { go({ play: video.segment }); play(video); };
    $("results").replaceChildren(...answer.videos.map((video) => plainCard(video, { href: link({ play: video.segment }), open, similar })));
    $("wall-title").hidden = !answer.videos.length;
    showPlaying();
  } catch (error) {
    if (error.name !== "AbortError") { $("results").replaceChildren(); notice("bad", "No answer", error.message); }
  }
}

function addHits(answer) {
  const actions = {
    open: (hit) => { remember(); go({ play: hit.segment }); play(hit); },
    why: state.q && !example ? (hit) => { remember(); go({ play: hit.segment }); play(hit, true); } : null,
    similar,
  };
  for (const hit of answer.hits) {
    shown.hits.push(hit);
    $("results").append(card(hit, shown.hits.length, shown.range, { ...actions, href: link({ play: hit.segment }) }));
  }
  shown.next = answer.next_offset;
  $("more").hidden = shown.next === null;
}

function summarise(answer) {
  const filtered = state.under || state.length || state.since || state.sure;
  const like = example ? `like ${example.name || "your picture"}` : state.like ? "like the chosen video" : "";
  if (!answer.hits.length) {
    if (shown.info && !shown.info.videos) return emptyIndex();
    return notice("", "Nothing found", filtered ? "No video passes these filters." : "There is nothing to show.",
      filtered ? make("button", { type: "button", class: "main", onclick: () => { go({ under: "", length: "", since: "", sure: "" }); show(); } }, "Clear the filters") : "");
  }
  if (answer.hits.every((hit) => hit.is_match === false)) {
    notice("", "Probably nothing here matches", `These come closest to “${state.q}”, but no more than chance would bring.`);
  }
  const count = shown.next === null ? plural(shown.hits.length, "video") : `the best ${shown.hits.length} videos`;
  const matching = shown.hits.filter((hit) => hit.is_match).length;
  const match = answer.hits.some((hit) => hit.is_match === false) ? `, ${matching} of them a match` : "";
  const cut = answer.was_cut ? " Your text is longer than the model reads; its end was left out." : "";
  $("summary").textContent = `${count} ${like}${match}, best first, in ${(1000 * answer.seconds).toFixed(0)} ms.${cut}`.replace(" ,", ",");
}

function emptyIndex() {
  notice("", "This index is empty", "Add videos on the command line; they appear here as soon as they are in.",
    make("code", {}, "ucofia index ~/Videos"));
}

function notice(kind, title, text, ...more) {
  $("notice").className = `notice ${kind}`;
  $("notice").hidden = false;
  $("notice").replaceChildren(make("h2", {}, title), make("p", {}, text), ...more);
}

$("more").addEventListener("click", async () => {
  $("more").disabled = true;
  try {
    const first = shown.hits.length;
    addHits(await fetchPage(shown.next, {}));
    $("results").children[first]?.querySelector("a")?.focus();
  } catch (error) { $("summary").textContent = error.message; }
  $("more").disabled = false;
});

// ---- one hit ------------------------------------------------------------------------------

function play(hit, scrollToWhy = false) {
  viewer.open(hit, {
    text: example || state.like ? "" : state.q.trim(),
    scrollToWhy,
    onclose: leave,
    onsimilar: similar,
    onstep: (by) => {
      const next = shown.hits[shown.hits.findIndex((other) => other.segment === hit.segment) + by];
      if (next) { go({ play: next.segment }, { replace: true }); play(next); }
    },
  });
}

function showPlaying() {
  const hit = shown.hits.find((one) => one.segment === state.play);
  if (hit) play(hit); else viewer.close();
}

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
$("viewer").addEventListener("click", (event) => { if (event.target === $("viewer")) leave(); });

// ---- the box, the filters, recent searches ------------------------------------------------

function fillControls() {
  if ($("q").value.trim() !== state.q.trim()) $("q").value = state.q;
  for (const name of ["under", "length", "since"]) $(name).value = state[name];
  if (state.under && $("under").value !== state.under) {
    $("under").append(make("option", { value: state.under }, fileName(state.under)));
    $("under").value = state.under;
  }
  $("sure").checked = Boolean(state.sure);
}

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
  $("results").focus();
});
for (const name of ["under", "length", "since"]) $(name).addEventListener("change", () => { go({ [name]: $(name).value }); show(); });
$("sure").addEventListener("change", () => { go({ sure: $("sure").checked ? "1" : "" }); show(); });
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("share").addEventListener("click", async () => {
  const before = $("share").textContent;
  try { await navigator.clipboard.writeText(location.href); $("share").textContent = "Copied"; } catch { $("share").textContent = "The address bar has it"; }
  setTimeout(() => { $("share").textContent = before; }, 1600);
});
$("home").addEventListener("click", (event) => {
  event.preventDefault();
  example = null;
  $("q").value = "";
  history.pushState({}, "", "/");
  state = read();
  show();
  $("q").focus();
});

function remember() {
  const text = state.q.trim();
  if (!text || example) return;
  memory.set("recent", [text, ...memory.get("recent", []).filter((old) => old !== text)].slice(0, RECENT));
  showRecent();
}

function showRecent() {
  const texts = memory.get("recent", []);
  $("recent-list").replaceChildren(...texts.map((text) => make("option", { value: text })));
  $("recent").hidden = !texts.length;
  $("recent").replaceChildren(
    ...texts.map((text) => make("button", { type: "button", class: "chip", onclick: () => { go({ q: text }); show(); } }, text)),
    make("button", { type: "button", class: "plain", onclick: () => { memory.set("recent", []); showRecent(); } }, "Forget"));
}

// ---- a picture or clip as the question ----------------------------------------------------

async function useFile(file) {
  if (!file) return;
  if (!/^(image|video)\//.test(file.type) && file.type) {
    notice("bad", "That is no picture or video", `${file.name} is of type ${file.type}.`);
    return;
  }
  go({ q: "", like: "", play: "" });
  example = file;
  const preview = file.type.startsWith("image/")
    ? make("img", { src: URL.createObjectURL(file), alt: "" })
    : make("video", { src: URL.createObjectURL(file), muted: true, loop: true, autoplay: true, playsInline: true });
  const words = make("ul", { class: "words" }, make("li", {}, "looking for words …"));
  $("example").replaceChildren(preview, make("div", {}, make("h2", {}, `Words for ${file.name || "your picture"}`), words));
  await show();
  try {
    const answer = await send("/api/describe", { top: 8 }, file, {});
    words.replaceChildren(...answer.texts.map(({ text }) => make("li", {}, make("button", {
      type: "button", class: "chip", onclick: () => { example = null; go({ q: text }); show(); },
    }, text))));
  } catch (error) { words.replaceChildren(make("li", {}, error.message)); }
}

$("pick").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => { useFile($("file").files[0]); $("file").value = ""; });
let depth = 0;
const hasFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
const drag = (by) => { depth = Math.max(0, depth + by); document.body.classList.toggle("dragging", depth > 0); };
addEventListener("dragenter", (event) => { if (hasFile(event)) { event.preventDefault(); drag(1); } });
addEventListener("dragover", (event) => { if (hasFile(event)) event.preventDefault(); });
addEventListener("dragleave", (event) => { if (hasFile(event)) drag(-1); });
addEventListener("drop", (event) => { if (hasFile(event)) { event.preventDefault(); drag(-depth); useFile(event.dataTransfer.files[0]); } });
addEventListener("paste", (event) => { const [file] = event.clipboardData?.files ?? []; if (file) { event.preventDefault(); useFile(file); } });

// ---- keys ---------------------------------------------------------------------------------

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA|VIDEO)$/.test(event.target.tagName)) return;
  const isOpen = $("viewer").open;
  const hit = isOpen ? shown.hits.find((one) => one.segment === state.play) : event.target.closest?.(".card")?.hit;
  const at = hit ? shown.hits.indexOf(hit) : -1;
  const keys = isOpen
    ? { n: () => step(at + 1), p: () => step(at - 1), s: () => hit && similar(hit) }
    : {
      "/": () => { $("q").focus(); $("q").select(); }, "?": () => $("help").showModal(),
      w: () => hit && state.q && (go({ play: hit.segment }), play(hit, true)), s: () => hit && similar(hit),
      ArrowRight: () => move(at, 1), ArrowLeft: () => move(at, -1), ArrowDown: () => move(at, perRow()), ArrowUp: () => move(at, -perRow()),
    };
  if (!keys[event.key] || (document.querySelector("dialog[open]") && !isOpen)) return;
  if (event.key.startsWith("Arrow") && (at < 0 && event.key !== "ArrowDown")) return;
  event.preventDefault();
  keys[event.key]();
});
$("q").addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" && shown.hits.length && !$("q").value.startsWith(" ")) { event.preventDefault(); move(-1, 1); }
  if (event.key === "Escape") $("q").blur();
});
function step(at) { const hit = shown.hits[at]; if (hit) { go({ play: hit.segment }, { replace: true }); play(hit); } }
function move(at, by) {
  const links = document.querySelectorAll(".card h3 a");
  links[Math.min(links.length - 1, Math.max(0, at + (at < 0 ? 1 : by)))]?.focus();
}
function perRow() { return getComputedStyle($("results")).gridTemplateColumns.split(" ").length; }
$("keys").addEventListener("click", () => $("help").showModal());

// ---- light or dark ------------------------------------------------------------------------

function paint(theme) { if (theme) document.documentElement.dataset.theme = theme; }
paint(memory.get("theme", ""));
$("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  paint(now === "dark" ? "light" : "dark");
  memory.set("theme", document.documentElement.dataset.theme);
});

// ---- what the index holds, and what is going on -------------------------------------------

let watching = null;
async function watch() {
  clearTimeout(watching);
  let wait = IDLE_MS;
  try {
    const info = await request("/api/info");
    const changed = shown.info && shown.info.segments !== info.segments;
    shown.info = info;
    const working = info.is_being_written || info.job?.state === "running";
    if (working) wait = WORKING_MS;
    showInfo(info, working);
    if (changed && !$("viewer").open && scrollY < 200 && !example) show();
    if (!info.videos && document.body.dataset.view === "home") emptyIndex();
  } catch (error) {
    $("status").className = "status broken";
    $("status").lastElementChild.textContent = error.code === "offline" ? "no server" : "trouble";
    wait = 4000;
  }
  clearTimeout(watching);
  watching = setTimeout(watch, wait);
}

function showInfo(info, working) {
  const job = info.job;
  $("status").className = `status${working ? " working" : ""}`;
  const progress = job?.state === "running" && job.total ? ` · ${job.done}/${job.total}` : working ? " · adding" : "";
  $("status").lastElementChild.textContent = `${plural(info.videos, "video")}${progress}`;
  $("sure-label").hidden = !info.has_confidence;
  const known = new Set([...$("under").options].map((option) => option.value));
  for (const folder of info.folders) {
    if (!known.has(folder.path)) $("under").append(make("option", { value: folder.path }, `${folder.path.split(/[\\/]/).slice(-2).join("/")} (${folder.videos})`));
  }
  fillControls();
  const row = (name, value) => [make("dt", {}, name), make("dd", {}, value)];
  $("about").replaceChildren(
    make("dl", {},
      ...row("Index", info.name), ...row("Videos", `${info.videos.toLocaleString("en")}, ${span(info.seconds_of_video)} in all`),
      ...row("Segments", info.segments.toLocaleString("en")), ...row("Model", info.model || "unnamed"),
      ...(info.failed_files ? row("Unreadable files", String(info.failed_files)) : []),
      ...row("Confidence", info.has_confidence ? `against ${plural(info.bank_texts, "text")}` : "no bank, so none"),
      ...(info.size_bytes ? row("On disk", bytes(info.size_bytes)) : []), ...row("Version", info.version)),
    ...(job ? [make("p", {}, job.state === "running" ? `${job.what} …` : `Last job ${job.state}: ${job.message}`),
      ...(job.state === "running" ? [make("progress", { max: job.total || 1, ...(job.total ? { value: job.done } : {}) })] : [])] : []),
    ...(info.can_index && job?.state !== "running" ? [make("button", { type: "button", class: "main", onclick: addVideos }, "Look for new videos")] : []));
}

async function addVideos() {
  try { await sendJson("/api/index", {}); } catch (error) { notice("bad", "That did not work", error.message); }
  watch();
}

$("status").addEventListener("click", () => {
  $("about").hidden = !$("about").hidden;
  $("status").setAttribute("aria-expanded", String(!$("about").hidden));
});
addEventListener("click", (event) => {
  if (!$("about").hidden && !event.target.closest("#about, #status")) { $("about").hidden = true; $("status").setAttribute("aria-expanded", "false"); }
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
        await sendJson("/api/session", { token: $("token-word").value });
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
    await sendJson("/api/session", { token: given }).catch(() => {});
    history.replaceState({}, "", location.pathname + location.search);
  }
  showRecent();
  watch();
  show();
}
start();
