// The reasons why the computation, or one chunk of it, waits.

import { html, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { about } from "./api.js";
import { useAnswer } from "./live.js";
import { Nothing } from "./parts.js";

//: Maximum number of rows: more are unreadable.
const LISTED = 500;

export function Waiting({ computation, query, version }) {
  const key = query.get("key") ?? "";
  const [typed, setTyped] = useState(key);
  useEffect(() => setTyped(key), [key]);
  const answer = useAnswer(about(computation.id, "explain", key ? { key } : {}), version);
  const rows = answer.data?.rows ?? [];
  const address = `#/c/${encodeURIComponent(computation.id)}/waiting`;
  const search = (event) => {
    event.preventDefault();
    const wanted = typed.trim();
    location.hash = wanted ? `${address}?${new URLSearchParams({ key: wanted })}` : address;
  };
  return html`
    <form class="search" role="search" onSubmit=${search}>
      <label for="key">Key of a chunk</label>
      <div class="field">
        <input id="key" type="search" value=${typed} onInput=${(event) => setTyped(event.target.value)}
          placeholder="('sum-5f3a…', 0, 3)" spellcheck="false" autocomplete="off" autocapitalize="off" />
        <button>Explain</button>
        ${key && html`<a class="button" href=${address}>All</a>`}
      </div>
    </form>
    ${rows.length
      ? html`<ol class=${key ? "rows chain" : "rows"} aria-label=${key ? `Why ${key} waits` : "What waits for what"}>
            ${rows.slice(0, LISTED).map((row) => html`<li>${row}</li>`)}
          </ol>
          ${rows.length > LISTED && html`<p class="faint">and ${rows.length - LISTED} more</p>`}`
      : answer.problem?.status === 404 && key
        ? html`<div class="nothing" role="status">
            <p>No chunk has the key <code>${key}</code>.</p>
            <p>Keys read as in Dask: a layer's name, then the block's place. The graph's blocks lead here too.</p>
          </div>`
        : html`<${Nothing} answer=${answer}><p>Nothing waits.</p></${Nothing}>`}
  `;
}
