// A picture or clip as the question: dropped, pasted or picked.

import { send } from "./api.js";
import { $, make } from "./dom.js";

export const WORDS = 8; // for an example

// What stands for a question without words: its picture, its name, and words that fit it.
export function showExample(media, name, finding, searchFor) {
  const words = make("ul", { class: "words" }, make("li", {}, "looking for words …"));
  $("example").replaceChildren(media, make("div", {}, make("h2", {}, name), words));
  $("example").hidden = false;
  const say = (...found) => words.replaceChildren(...found.map((one) => make("li", {}, one)));
  finding.then((texts) => say(...texts.map((text) => make("button", { type: "button", class: "chip", onclick: () => searchFor(text) }, text))))
    .catch((error) => { if (error.name !== "AbortError") say(error.message); });
}

export function useDrops({ begin, searchFor, refuse }) {
  function use(file) {
    if (!file) return;
    if (!/^(image|video)\//.test(file.type) && file.type) { refuse(file); return; }
    const preview = file.type.startsWith("image/")
      ? make("img", { src: URL.createObjectURL(file), alt: "" })
      : make("video", { src: URL.createObjectURL(file), muted: true, loop: true, autoplay: true, playsInline: true });
    const finding = begin(file).then(() => send("api/describe", { top: WORDS }, file, {}));
    showExample(preview, file.name || "Your picture", finding.then(({ texts }) => texts.map(({ text }) => text)), searchFor);
  }

  $("pick").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => { use($("file").files[0]); $("file").value = ""; });
  let depth = 0;
  const hasFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const drag = (by) => { depth = Math.max(0, depth + by); document.body.classList.toggle("dragging", depth > 0); };
  addEventListener("dragenter", (event) => { if (hasFile(event)) { event.preventDefault(); drag(1); } });
  addEventListener("dragover", (event) => { if (hasFile(event)) event.preventDefault(); });
  addEventListener("dragleave", (event) => { if (hasFile(event)) drag(-1); });
  addEventListener("drop", (event) => { if (hasFile(event)) { event.preventDefault(); drag(-depth); use(event.dataTransfer.files[0]); } });
  addEventListener("paste", (event) => { const [file] = event.clipboardData?.files ?? []; if (file) { event.preventDefault(); use(file); } });
}
