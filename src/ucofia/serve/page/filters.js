// Which videos may be found: folder, length, year, what must not be seen, and whether weak matches are shown.

import { $, make } from "./dom.js";

export const NONE = { under: "", length: "", year: "", not: "", sure: "" };
const CHOICES = ["under", "length", "year"];

export const isUsed = (state) => Object.keys(NONE).some((name) => state[name]);

export function params(state) {
  const [least, most] = state.length.split("-");
  const year = /^\d{4}$/.test(state.year) ? state.year : "";
  return { under: state.under, min_seconds: least, max_seconds: most, since: year && `${year}-01-01`, until: year && `${year}-12-31` };
}

// Several things that must not be seen are written with commas.
export const unwanted = (state) => state.not.split(",").map((text) => text.trim()).filter(Boolean);

export function fill(state) {
  for (const name of CHOICES) {
    choose($(name), state[name], state[name].split(/[\\/]/).pop());
    $(name).classList.toggle("used", Boolean(state[name]));
  }
  if (document.activeElement !== $("not")) $("not").value = state.not;
  $("not").classList.toggle("used", Boolean(state.not));
  $("sure").checked = Boolean(state.sure);
  $("sure-label").classList.toggle("used", Boolean(state.sure));
  const used = Object.keys(NONE).filter((name) => state[name]).length;
  $("filter-open").lastElementChild.textContent = used ? `Filters (${used})` : "Filters";
  $("filter-open").classList.toggle("used", used > 0);
}

// What the index has to choose from.
export function offer(info, state) {
  $("sure-label").hidden = !info.has_confidence;
  offered($("under"), "Any folder", info.folders.map(({ path, videos }) => [path, `${path.split(/[\\/]/).slice(-2).join("/")} (${videos})`]));
  offered($("year"), "Any year", info.years.map(({ year, videos }) => [String(year), `${year} (${videos})`]));
  $("under").parentElement.hidden = info.folders.length < 2 && !state.under;
  $("year").parentElement.hidden = info.years.length < 2 && !state.year;
  fill(state);
}

function offered(select, any, choices) {
  const now = JSON.stringify(choices);
  if (select.dataset.choices === now) return; // a list that is open must not be rebuilt
  select.dataset.choices = now;
  select.replaceChildren(make("option", { value: "" }, any), ...choices.map(([value, text]) => make("option", { value }, text)));
}

function choose(select, value, text) {
  select.value = value;
  if (value && select.value !== value) { select.append(make("option", { value }, text)); select.value = value; }
}

export function bind(change) {
  for (const name of CHOICES) $(name).addEventListener("change", () => change({ [name]: $(name).value }));
  $("not").addEventListener("change", () => change({ not: $("not").value.trim() }));
  $("sure").addEventListener("change", () => change({ sure: $("sure").checked ? "1" : "" }));
  $("filters").addEventListener("submit", (event) => { event.preventDefault(); $("not").blur(); });
  const sheet = (open) => { document.body.classList.toggle("filtering", open); $("filter-open").setAttribute("aria-expanded", String(open)); };
  $("filter-open").addEventListener("click", () => sheet(!document.body.classList.contains("filtering")));
  $("filter-done").addEventListener("click", () => sheet(false));
  addEventListener("keydown", (event) => { if (event.key === "Escape") sheet(false); });
  addEventListener("click", (event) => { if (!event.target.closest("#filters, #filter-open")) sheet(false); });
  $("share").addEventListener("click", async () => {
    const before = $("share").textContent;
    try { await navigator.clipboard.writeText(location.href); $("share").textContent = "Copied"; } catch { $("share").textContent = "The address bar has it"; }
    setTimeout(() => { $("share").textContent = before; }, 1600);
  });
}
