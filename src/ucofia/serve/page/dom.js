// Small helpers: make elements, write times, remember things. Knows nothing of searching.

export const $ = (id) => document.getElementById(id);

// Make an element. Text is always set as text, so nothing from outside becomes markup.
export function make(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "style") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function svg(tag, props = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const PATHS = {
  leave: ["M20 12H5m6-7-7 7 7 7"], back: ["m14 5-7 7 7 7"], next: ["m10 5 7 7-7 7"], close: ["m6 6 12 12M18 6 6 18"],
  why: ["M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z", "M9.6 9.4a2.5 2.5 0 1 1 3.4 2.5c-.7.3-1 .8-1 1.6", "M12 16.6v.1"],
  similar: ["M4 4h9v9H4z", "M11 17v3h9v-9h-3"], save: ["M12 4v11m-4-4 4 4 4-4", "M5 19h14"],
  play: ["M8 5v14l11-7z"], pause: ["M8 5v14M16 5v14"], copies: ["M8 8h12v12H8z", "M4 16V4h12"],
};

export const icon = (name) => svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, ...PATHS[name].map((d) => svg("path", { d })));

export function clock(second) {
  const whole = Math.max(0, Math.floor(second));
  const [hours, minutes, seconds] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (n) => String(n).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(seconds)}` : `${minutes}:${two(seconds)}`;
}

export function span(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(seconds < 36000 ? 1 : 0)} h`;
}

export function bytes(n) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (n >= 1000 && at < units.length - 1) { n /= 1000; at += 1; }
  return `${n.toFixed(n < 10 && at ? 1 : 0)} ${units[at]}`;
}

// Never quite sure, and never quite hopeless.
export const percent = (share) => `${Math.min(99, Math.max(1, Math.round(share * 100)))} %`;
export const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1) : "");
export const fileName = (path) => path.split(/[\\/]/).pop();
// A file's name as a title: no suffix, spaces for what stands for spaces; the dashes of a date stay.
export const title = (path) => fileName(path).replace(/\.[^.]{1,5}$/, "").replace(/_+|(?<=\p{L})-+(?=\p{L})/gu, " ").trim() || fileName(path);
export const folderName = (path) => path.slice(0, path.length - fileName(path).length - 1) || "/";
export const plural = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
export const isCalm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// What this browser remembers; a browser that forbids it forgets.
export const memory = {
  get(key, otherwise) {
    try { return JSON.parse(localStorage.getItem(`ucofia.${key}`)) ?? otherwise; } catch { return otherwise; }
  },
  set(key, value) {
    try { localStorage.setItem(`ucofia.${key}`, JSON.stringify(value)); } catch { /* private window */ }
  },
};
