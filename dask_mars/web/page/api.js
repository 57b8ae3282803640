// Requests to `api/v1/`, relative to wherever the page is mounted.

/** An error of the service; `status` is 0 if it did not answer. */
export class Problem extends Error {
  constructor(status, title, detail = "") {
    super(detail || title);
    this.status = status;
    this.title = title;
  }
}

//: Time limit of an answer, beyond the requested wait.
const GRACE_MS = 15000;
//: Difference of clocks that is ignored: answers have whole seconds, and take time to arrive.
const SAME_CLOCK_MS = 5000;
//: The service's clock minus this one.
let aheadMs = 0;

/** Return the time by the service's clock, as in all its answers. */
export function serviceNow() {
  return (Date.now() + aheadMs) / 1000;
}

function compareClocks(sentMs, response) {
  const apart = Date.parse(response.headers.get("Date") ?? "") - sentMs;
  if (!Number.isNaN(apart)) aheadMs = Math.abs(apart) < SAME_CLOCK_MS ? 0 : apart;
}

/** Return the JSON at a path below `api/v1/`. Throws a `Problem`, or an `AbortError` on `signal`. */
export async function ask(path, { signal, method = "GET", waitSeconds = 0 } = {}) {
  const control = new AbortController();
  const giveUp = () => control.abort();
  const timer = setTimeout(giveUp, waitSeconds * 1000 + GRACE_MS);
  signal?.addEventListener("abort", giveUp);
  if (signal?.aborted) giveUp();
  try {
    return await answer(path, method, control.signal, waitSeconds === 0);
  } catch (error) {
    if (error instanceof Problem || signal?.aborted) throw error;
    throw new Problem(0, "No answer", control.signal.aborted ? "The service did not answer in time." : "");
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", giveUp);
  }
}

async function answer(path, method, signal, comesAtOnce) {
  // Forms of other sites cannot set a header, so it shows that the request is this page's.
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["X-Dask-Mars"] = "1";
  const sentMs = Date.now();
  const response = await fetch(`api/v1/${path}`, { method, headers, signal, cache: "no-store" });
  if (comesAtOnce) compareClocks(sentMs, response);
  const kind = response.headers.get("Content-Type") ?? "";
  if (response.ok && response.status !== 204 && !kind.includes("json")) {
    throw new Problem(401, "Not the service", "Something else answered, such as a page to log in at.");
  }
  const body = kind.includes("json") ? await response.json() : null;
  if (!response.ok) {
    throw new Problem(response.status, body?.title ?? `Status ${response.status}`, body?.detail);
  }
  return body;
}

/** Return the address of something about a computation. */
export function about(id, what = "", parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  return `computations/${encodeURIComponent(id)}${what && `/${what}`}${query && `?${query}`}`;
}
