// The table of layers: progress, time and bytes of each.

import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { bytes, count, duration } from "./format.js";
import { Bar, Nothing, Swatch } from "./parts.js";

const COLUMNS = [
  ["label", "Layer", ""],
  ["finished", "Done", "n"],
  ["running", "Running", "n wide"],
  ["failed", "Failed", "n wide"],
  ["seconds", "Time", "n"],
  ["mean", "Mean", "n wide"],
  ["bytes", "Bytes", "n"],
];

//: Maximum number of listed layers: those that take most.
const LISTED = 500;

/** A number, and below it a line as long as its share. */
function Share({ words, part, whole }) {
  return html`<td class="n share">${words}<i style=${{ width: `${whole ? (100 * part) / whole : 0}%` }} aria-hidden="true" /></td>`;
}

export function Layers({ computation, colours }) {
  const [order, setOrder] = useState({ by: null, down: true });
  const layers = computation.layers.map((layer) => ({
    ...layer,
    mean: layer.finished ? layer.seconds / layer.finished : 0,
  }));
  if (!layers.length) {
    return html`<${Nothing}>
      <p>${computation.state === "queued" || computation.state === "preparing"
        ? "The layers are known once the graph has been prepared."
        : "It has no layers."}</p>
    </${Nothing}>`;
  }
  const sum = (name) => layers.reduce((total, layer) => total + layer[name], 0);
  const most = (name) => Math.max(...layers.map((layer) => layer[name]));
  if (order.by) {
    const sign = order.down ? -1 : 1;
    layers.sort((a, b) => sign * (order.by === "label" ? -a.label.localeCompare(b.label) : a[order.by] - b[order.by]));
  }
  const sort = (by) => setOrder((last) => ({ by, down: last.by === by ? !last.down : true }));
  const [seconds, size] = [most("seconds"), most("bytes")];
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Layers">
    <table class="layers">
      <thead>
        <tr>
          ${COLUMNS.map(
            ([name, words, kind]) => html`<th
              scope="col"
              class=${kind}
              aria-sort=${order.by === name ? (order.down ? "descending" : "ascending") : undefined}
            >
              <button type="button" class="sort" onClick=${() => sort(name)}>${words}</button>
            </th>`,
          )}
        </tr>
      </thead>
      <tbody>
        ${layers.slice(0, LISTED).map(
          (layer) => html`<tr key=${layer.name}>
            <th scope="row">
              <span class="label"><${Swatch} name=${colours.get(layer.label)} /><span title=${layer.name}>${layer.label}</span></span>
              <${Bar} chunks=${layer} label=${layer.label} />
            </th>
            <td class="n">
              ${count(layer.finished)}<span class="faint"> / ${count(layer.total)}</span>
              ${layer.running > 0 && html`<span class="slim key-running">${count(layer.running)} running</span>`}
              ${layer.failed > 0 && html`<span class="slim key-failed">${count(layer.failed)} failed</span>`}
            </td>
            <td class=${layer.running ? "n wide key-running" : "n wide zero"}>${count(layer.running)}</td>
            <td class=${layer.failed ? "n wide key-failed" : "n wide zero"}>${count(layer.failed)}</td>
            <${Share} words=${layer.seconds ? duration(layer.seconds) : "–"} part=${layer.seconds} whole=${seconds} />
            <td class="n wide">${layer.mean ? duration(layer.mean) : "–"}</td>
            <${Share} words=${layer.bytes ? bytes(layer.bytes) : "–"} part=${layer.bytes} whole=${size} />
          </tr>`,
        )}
      </tbody>
      <tfoot>
        <tr>
          <th scope="row">${count(layers.length)} layers${layers.length > LISTED ? `, ${LISTED} of them shown` : ""}</th>
          <td class="n">${count(sum("finished"))}<span class="faint"> / ${count(sum("total"))}</span></td>
          <td class="n wide">${count(sum("running"))}</td>
          <td class="n wide">${count(sum("failed"))}</td>
          <td class="n">${duration(sum("seconds"))}</td>
          <td class="n wide"></td>
          <td class="n">${bytes(sum("bytes"))}</td>
        </tr>
      </tfoot>
    </table>
    ${layers.some(({ label }) => label === "finalize") &&
    html`<p class="note faint">“finalize” is the last step: its chunk puts the blocks of the result together.</p>`}
  </div>`;
}
