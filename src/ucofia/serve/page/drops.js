// A picture or clip as the question: dropped, pasted or picked.

import { send } from "./api.js";
import { $, make } from "./dom.js";

export function useDrops({ begin, searchFor, refuse }) {
  async function use(file) {
    if (!file) return;
    if (!/^(image|video)\//.test(file.type) && file.type) { refuse(file); return; }
    const preview = file.type.startsWith("image/")
      ? make("img", { src: URL.createObjectURL(file), alt: "" })
      : make("video", { src: URL.createObjectURL(file), muted: true, loop: true, autoplay: true, playsInline: true });
    const words = make("ul", { class: "words" }, make("li", {}, "looking for words …"));
    $("example").replaceChildren(preview, make("div", {}, make("h2", {}, `Words for ${file.name || "your picture"}`), words));
    await begin(file);
    try {
      const answer = await send("api/describe", { top: 8 }, file, {});
      words.replaceChildren(...answer.texts.map(({ text }) => make("li", {}, make("button", { type: "button", class: "chip", onclick: () => searchFor(text) }, text))));
    } catch (error) { words.replaceChildren(make("li", {}, error.message)); }
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
