// The strip at the top: workers, and memory, store and disk against their limits.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { bytes, count, percent } from "./format.js";

//: Share of a limit from which a meter is highlighted.
const NEAR = 0.9;

function Meter({ name, used, limit, note, soft }) {
  const share = limit ? Math.min(1, used / limit) : 0;
  const near = share > NEAR && !soft;
  const text = limit ? `${bytes(used)} of ${bytes(limit)}, ${percent(used, limit)}` : bytes(used);
  return html`<div class=${near ? "tile near" : "tile"}>
    <dt>${name}${near && html`<em> near its limit</em>`}</dt>
    <dd>
      <b>${bytes(used)}</b>${limit ? html`<span class="faint"> of ${bytes(limit)}</span>` : ""}
      ${limit
        ? html`<span class="meter" role="meter" aria-label=${name} aria-valuemin="0" aria-valuemax="1"
            aria-valuenow=${share.toFixed(3)} aria-valuetext=${text}><i style=${{ width: `${100 * share}%` }} /></span>`
        : ""}
      ${note && html`<span class="note">${note}</span>`}
    </dd>
  </div>`;
}

/** A small chart of the memory in use since the page was opened. */
function Past({ memory }) {
  if (memory.length < 3) return null;
  const [width, height] = [96, 26];
  const top = Math.max(...memory.map(([, now]) => Math.max(now.in_use_bytes, 1))) * 1.1;
  const [begin] = memory[0];
  const span = memory.at(-1)[0] - begin || 1;
  const points = memory.map(
    ([t, now]) =>
      `${(((t - begin) / span) * width).toFixed(1)},${(height - (now.in_use_bytes / top) * height).toFixed(1)}`,
  );
  return html`<svg class="past" viewBox="0 0 ${width} ${height}" width=${width} height=${height} aria-hidden="true">
    <polygon points="0,${height} ${points.join(" ")} ${width},${height}" />
    <polyline points=${points.join(" ")} />
  </svg>`;
}

export function Strip({ state, memory, lost }) {
  if (!state) {
    return html`<dl class="strip" aria-busy="true"><div class="tile"><dt>${lost ? "No connection" : "Asking …"}</dt></div></dl>`;
  }
  const { workers, memory: now } = state;
  const busy = workers.filter((worker) => worker.running !== null || worker.dispatched > 0).length;
  return html`<dl class=${lost ? "strip stale" : "strip"} aria-label="Workers and memory">
    <div class="tile">
      <dt>Workers</dt>
      <dd>
        <b>${count(busy)}</b><span class="faint"> of ${count(workers.length)} busy</span>
        <span class="pips" aria-hidden="true">
          ${workers.slice(0, 48).map((w) => html`<i class=${w.running !== null || w.dispatched > 0 ? "on" : ""} />`)}
        </span>
        ${state.missing_extensions && html`<span class="note" title=${`without ${state.missing_extensions.join(", ")}`}>
          installed without C extensions</span>`}
      </dd>
    </div>
    <div class="pair">
      <${Meter} name="Memory" used=${now.in_use_bytes} limit=${now.limit_bytes}
        note=${now.peak_bytes ? `peak ${bytes(now.peak_bytes)}` : ""} />
      <${Past} memory=${memory} />
    </div>
    <${Meter} name="Store" used=${now.store_bytes} limit=${now.store_limit_bytes} soft=${true}
      note=${now.promised_bytes ? `${bytes(now.promised_bytes)} promised` : ""} />
    <${Meter} name="On disk" used=${now.on_disk_bytes}
      note=${now.spilled_bytes ? `${bytes(now.spilled_bytes)} spilled so far` : "nothing spilled"} />
  </dl>`;
}
