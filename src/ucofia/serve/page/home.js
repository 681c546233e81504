// The first page: examples, recent searches, what is being added, and what the index holds.

import { ask, request, sendJson } from "./api.js";
import { $, bytes, make, memory, plural, sentence, span } from "./dom.js";

const RECENT = 8;
const IDLE_MS = 10000;
const WORKING_MS = 1500;
const EXAMPLES = 6;

let search = () => {};
let watching = null;
let hooks = {};
let last = null;
let suggested = null; // the revision that examples were drawn from

export function show(searchFor) {
  search = searchFor;
  showRecent();
  if (last) showAdd(last);
}

// ---- words to begin with --------------------------------------------------------------------

export function remember(text) {
  memory.set("recent", [text, ...memory.get("recent", []).filter((old) => old !== text)].slice(0, RECENT));
  showRecent();
}

const chip = (text, image) => make("button", { type: "button", class: "chip", onclick: () => search(text) },
  image ? make("img", { src: image, alt: "", loading: "lazy" }) : null, text);

function showRecent() {
  const texts = memory.get("recent", []);
  $("recent-list").replaceChildren(...texts.map((text) => make("option", { value: text })));
  $("recent").hidden = !texts.length;
  $("recent").replaceChildren(make("span", {}, "Recent"), ...texts.map((text) => chip(text)),
    make("button", { type: "button", class: "plain", onclick: () => { memory.set("recent", []); showRecent(); } }, "Clear"));
}

async function showExamples() {
  try {
    const { examples } = await ask("api/examples", { top: EXAMPLES });
    $("examples").hidden = !examples.length;
    $("examples").replaceChildren(make("span", {}, "Try"), ...examples.map(({ text, poster }) => chip(text, poster)));
  } catch { $("examples").hidden = true; } // only a suggestion
}

// ---- what the index holds, and what is going on ---------------------------------------------

export function watch(given) { hooks = given; look(); }

async function look() {
  clearTimeout(watching);
  let wait = IDLE_MS;
  try {
    const info = await request("api/info");
    const before = last;
    last = info;
    const isWorking = info.is_being_written || info.job?.state === "running";
    if (isWorking) wait = WORKING_MS;
    showInfo(info, isWorking);
    // Suggestions cost some searches, so not after every video that comes in.
    if (suggested === null || (suggested !== info.revision && !isWorking)) { suggested = info.revision; showExamples(); }
    hooks.oninfo(info, before !== null && before.revision !== info.revision);
  } catch (error) {
    $("status").className = "status broken";
    $("status").lastElementChild.textContent = error.code === "offline" ? "No server" : "Trouble";
    wait = 4000;
  }
  clearTimeout(watching);
  watching = setTimeout(look, wait);
}

// A tab that was in the background looks at once when it comes back.
addEventListener("visibilitychange", () => { if (!document.hidden && last) look(); });

function showInfo(info, isWorking) {
  const job = info.job;
  $("status").className = `status${isWorking ? " working" : ""}`;
  $("status").lastElementChild.textContent = isWorking ? "Adding videos" : plural(info.videos, "video");
  const row = (name, value) => [make("dt", {}, name), make("dd", {}, value)];
  $("about").replaceChildren(
    make("dl", {},
      ...row("Videos", `${info.videos.toLocaleString("en")}, ${span(info.seconds_of_video)} in all`),
      ...(info.failed_files ? row("Files that cannot be read", String(info.failed_files)) : []),
      ...(info.size_bytes ? row("Index", bytes(info.size_bytes)) : []), ...row("At", info.name),
      ...row("Model", info.model || "without a name"), ...row("Version", info.version)),
    ...(info.has_confidence ? [] : [make("p", {}, info.bank_texts ? "The bank of texts is too small, or not applied yet, so hits have no confidence." : "This index has no bank of texts, so hits have no confidence.")]),
    ...(info.indexes.length ? [make("h3", {}, "Other indexes"), ...info.indexes.map(({ name, page }) => make("a", { class: "chip", href: page }, name))] : []),
    ...(job && job.state !== "running" ? [make("p", {}, `Last time videos were added: ${job.message}.`)] : []));
  showJob(info, isWorking);
  showAdd(info);
}

function showJob(info, isWorking) {
  const job = info.job?.state === "running" ? info.job : null;
  $("job").hidden = !isWorking;
  if (!isWorking) return;
  const text = job ? `${sentence(job.what)}${job.total ? `: ${job.done} of ${job.total}` : " …"}` : "Videos are being added …";
  $("job").replaceChildren(make("p", {}, make("b", {}, text), make("span", {}, " What is in can be found already.")),
    make("progress", { "aria-label": text, ...(job?.total ? { max: job.total, value: job.done } : {}) }));
}

// ---- adding a folder ------------------------------------------------------------------------

function showAdd(info) {
  const isHome = document.body.dataset.view === "home";
  $("add").hidden = !isHome;
  if (!isHome || $("add").contains(document.activeElement)) return; // somebody is typing there
  const head = info.videos ? "Add videos" : "Add your first videos";
  const said = make("p", { class: "wrong", role: "alert" });
  if (!info.can_index) {
    $("add").replaceChildren(make("h2", {}, head), make("p", {}, "Run this in a terminal; new videos appear here by themselves."), make("code", {}, "ucofia index ~/Videos"),
      make("p", { class: "aside" }, "With ", make("code", {}, "ucofia serve --allow-index ~/Videos"), " they can be added from this page."));
    return;
  }
  const [first] = info.index_folders;
  const input = make("input", { type: "text", value: first, "aria-label": "Folder", spellcheck: false, autocomplete: "off" });
  const isBusy = info.job?.state === "running";
  const form = make("form", {}, input, make("button", { class: "main", disabled: isBusy }, isBusy ? "Adding …" : "Add this folder"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    input.blur();
    try { await sendJson("api/index", { paths: [input.value.trim() || first] }); said.textContent = ""; } catch (error) { said.textContent = error.message; return; }
    look();
  });
  $("add").replaceChildren(make("h2", {}, head), make("p", {}, `Any folder in ${info.index_folders.join(", ")}. What is known already is skipped.`), form, said);
}

$("status").addEventListener("click", () => {
  $("about").hidden = !$("about").hidden;
  $("status").setAttribute("aria-expanded", String(!$("about").hidden));
});
addEventListener("click", (event) => {
  if (!$("about").hidden && !event.target.closest("#about, #status")) { $("about").hidden = true; $("status").setAttribute("aria-expanded", "false"); }
});
