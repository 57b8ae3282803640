// The result: its type and size, and downloads.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { about } from "./api.js";
import { bytes, count } from "./format.js";
import { Nothing } from "./parts.js";

export function Result({ computation }) {
  const { id, state, result } = computation;
  if (!result) {
    const words = {
      failed: "It failed, so there is no result.",
      cancelled: "It was cancelled, so there is no result.",
      finished: "It finished without a result.",
    };
    return html`<${Nothing}><p>${words[state] ?? "The result is here when the computation has finished."}</p></${Nothing}>`;
  }
  const base = new URL(".", location.href).href.split("#")[0];
  // Arrays come as NumPy's own files, which other programs read too.
  const plain = result.kind === "array" && result.dtype !== "object";
  const address = `api/v1/${about(id, "result", plain ? { format: "npy" } : {})}`;
  const facts = [
    ["Kind", result.kind],
    ["Type", result.dtype],
    ["Shape", result.shape && `(${result.shape.map(count).join(" × ")})`],
    ["Size", result.bytes === null ? null : bytes(result.bytes)],
  ].filter(([, words]) => words);
  return html`
    <table class="facts">
      <tbody>${facts.map(([name, words]) => html`<tr><th scope="row">${name}</th><td>${words}</td></tr>`)}</tbody>
    </table>
    ${result.evicted
      ? html`<div class="nothing"><p>The result was deleted to make room for others; its description stays.</p></div>`
      : html`<p><a class="button primary" href=${address} download>Download</a></p>
          <h2>From Python</h2>
          <pre class="code" tabindex="0"><code>import dask_mars

service = dask_mars.connect("${base}", token="…")
result = service.computation("${id}").result()</code></pre>
          <h2>From a shell</h2>
          <pre class="code" tabindex="0"><code>curl -H "Authorization: Bearer $TOKEN" -o result${plain ? ".npy" : ""} \\
  "${base}${address}"</code></pre>`}
  `;
}
