// Requests to the server, by addresses relative to the page, and one kind of error for everything that can go wrong with them.

export class Problem extends Error {
  constructor(code, message, retry) {
    super(message);
    this.code = code;
    this.retry = retry;
  }
}

const BUSY_TRIES = 4;
let askToken = null;

// Called when the server wants its token; resolves when it has been given.
export const onToken = (ask) => { askToken = ask; };

export async function request(path, { signal, onbusy, ...options } = {}) {
  for (let tries = 1; ; tries += 1) {
    let response;
    try {
      // Past the browser's cache: it lets a question wait for an abandoned one of the same address.
      response = await fetch(path, { signal, cache: "no-store", ...options });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem("offline", "The server does not answer. Is “ucofia serve” still running?");
    }
    if (response.ok) return response.status === 204 ? null : response.json();
    const said = await response.json().catch(() => ({}));
    if (said.code === "token_needed" && askToken && path !== "api/session") {
      await askToken();
      continue;
    }
    if (said.code === "busy" && tries < BUSY_TRIES) {
      onbusy?.(said.retry_after_seconds);
      await new Promise((done) => setTimeout(done, 1000 * said.retry_after_seconds));
      if (signal?.aborted) throw new DOMException("gone", "AbortError");
      continue;
    }
    throw new Problem(said.code ?? "failed", said.message ?? `The server answered ${response.status}.`, said.retry_after_seconds);
  }
}

export function address(path, params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined && one !== null && one !== "") query.append(name, one);
  }
  return `${path}?${query}`;
}

export const ask = (path, params, options) => request(address(path, params), options);

export const send = (path, params, file, options) => request(address(path, params), {
  method: "POST", body: file, headers: { "Content-Type": file.type || "application/octet-stream" }, ...options,
});

export const sendJson = (path, value) => request(path, {
  method: "POST", body: JSON.stringify(value), headers: { "Content-Type": "application/json" },
});
