// Shows openapi.json to people, and lets them try the questions that change nothing.

import { $, make } from "./dom.js";

const kind = (schema = {}) => schema.type ?? (schema.anyOf ?? []).map((one) => one.type).filter((type) => type !== "null").join(" or ") ?? "";

function parameters(operation) {
  if (!operation.parameters?.length) return null;
  return make("table", {}, make("tr", {}, ...["name", "type", "default", "what"].map((name) => make("th", {}, name))),
    ...operation.parameters.map(({ name, required, schema, description }) => make("tr", {},
      make("td", {}, make("code", {}, name)), make("td", {}, kind(schema)),
      make("td", {}, required ? "required" : JSON.stringify(schema.default ?? null)), make("td", {}, description ?? ""))));
}

function trial(path, operation) {
  const inputs = (operation.parameters ?? []).filter(({ in: place }) => place === "query")
    .map(({ name }) => make("input", { name, placeholder: name, "aria-label": name, size: 12 }));
  const output = make("pre", { hidden: true });
  const form = make("form", {}, ...inputs, make("button", { class: "main" }, "Try"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const query = new URLSearchParams(inputs.filter((input) => input.value).map((input) => [input.name, input.value]));
    const response = await fetch(`${base}${path}?${query}`);
    output.hidden = false;
    output.textContent = `${response.status}\n${JSON.stringify(await response.json(), null, 2)}`;
  });
  return [form, output];
}

const described = await (await fetch("openapi.json")).json();
const base = described.servers?.[0]?.url ?? ""; // behind a proxy
for (const [path, methods] of Object.entries(described.paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    const bodies = Object.keys(operation.requestBody?.content ?? {});
    $("operations").append(make("details", {},
      make("summary", {}, make("b", {}, method.toUpperCase()), make("code", {}, path), make("span", {}, operation.description ?? "")),
      parameters(operation),
      bodies.length ? make("p", {}, `Body: ${bodies.join(", ")}`) : null,
      make("p", {}, `Answers: ${Object.keys(operation.responses).join(", ")}`),
      ...(method === "get" && path.includes("/api/") ? trial(path, operation) : [])));
  }
}
