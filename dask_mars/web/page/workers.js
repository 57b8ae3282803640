// The view while no computation is chosen: each worker, and the uses of memory.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { bytes, count } from "./format.js";

const MEMORY = [
  ["in_use_bytes", "in use by all processes"],
  ["peak_bytes", "the most that was in use"],
  ["limit_bytes", "limit"],
  ["store_bytes", "in the store: results that are still needed"],
  ["store_limit_bytes", "limit of the store"],
  ["promised_bytes", "promised to what runs"],
  ["on_disk_bytes", "on disk"],
  ["spilled_bytes", "written to disk so far"],
];

//: Beyond this many, workers are counted rather than listed.
const LISTED = 256;

export function Workers({ state }) {
  if (!state) return html`<p class="nothing" aria-busy="true">Asking …</p>`;
  const { workers, memory } = state;
  return html`
    <section>
      <h1>Workers</h1>
      ${workers.length === 0
        ? html`<div class="nothing">
            <p>No workers now. They start with the next computation, and end when they have been idle for long.</p>
          </div>`
        : html`<div class="scroll" tabindex="0" role="region" aria-label="Workers">
            <table class="workers">
              <thead>
                <tr>
                  <th scope="col">Worker</th>
                  <th scope="col">Does</th>
                  <th scope="col">Chunk</th>
                  <th scope="col" class="n">Dispatched</th>
                </tr>
              </thead>
              <tbody>
                ${workers.slice(0, LISTED).map(
                  (worker) => html`<tr key=${worker.worker} class=${worker.running === null ? "idle" : ""}>
                    <th scope="row">${worker.label}</th>
                    <td>${worker.step ?? (worker.running === null && !worker.dispatched ? "idle" : "")}</td>
                    <td class="key">${worker.running ?? ""}</td>
                    <td class="n">${count(worker.dispatched)}</td>
                  </tr>`,
                )}
              </tbody>
            </table>
          </div>`}
      ${workers.length > LISTED && html`<p class="faint">and ${count(workers.length - LISTED)} more</p>`}
    </section>
    <section>
      <h2>Memory</h2>
      <table class="facts">
        <tbody>
          ${MEMORY.filter(([name]) => memory[name] !== undefined && memory[name] !== null).map(
            ([name, words]) => html`<tr>
              <th scope="row">${words}</th>
              <td class="n">${bytes(memory[name])}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </section>
  `;
}
