// The work of each worker over time, in charts and in words.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { about } from "./api.js";
import { bytes, count, duration, percent, plural } from "./format.js";
import { useAnswer, useScheme } from "./live.js";
import { Nothing, Swatch } from "./parts.js";

//: Maximum number of listed events: the last ones.
const LISTED = 200;

/** Sum up for those who do not see the picture, and for those who want numbers. */
function summary({ workers, labels, tasks, memory, events }) {
  const busy = new Map(workers.map((worker, index) => [worker, { label: labels[index], seconds: 0, chunks: 0, gap: 0, end: 0 }]));
  let end = 0;
  for (const [worker, from, to, , chunks] of [...tasks].sort((a, b) => a[1] - b[1])) {
    const one = busy.get(worker);
    if (!one) continue;
    one.gap = Math.max(one.gap, from - one.end);
    one.end = Math.max(one.end, to);
    one.seconds += to - from;
    one.chunks += chunks;
    end = Math.max(end, to);
  }
  const kinds = new Map();
  for (const [, kind] of events) kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
  const peak = memory.reduce((most, row) => Math.max(most, row[1]), 0);
  const seconds = [...busy.values()].reduce((sum, one) => sum + one.seconds, 0);
  return { busy, end, peak, kinds, share: percent(seconds, end * workers.length) };
}

function Numbers({ busy, end }) {
  return html`<details>
    <summary>Numbers of each worker</summary>
    <table class="narrow">
      <thead>
        <tr>
          <th scope="col">Worker</th><th scope="col" class="n">Busy</th><th scope="col" class="n">Share</th>
          <th scope="col" class="n">Longest gap</th><th scope="col" class="n">Chunks</th>
        </tr>
      </thead>
      <tbody>
        ${[...busy].map(
          ([, one]) => html`<tr>
            <th scope="row">${one.label}</th>
            <td class="n">${duration(one.seconds)}</td>
            <td class="n">${percent(one.seconds, end)}</td>
            <td class="n">${duration(Math.max(one.gap, end - one.end))}</td>
            <td class="n">${count(one.chunks)}</td>
          </tr>`,
        )}
      </tbody>
    </table>
  </details>`;
}

function Events({ events }) {
  if (!events.length) return null;
  return html`<h2>Events</h2>
    <ol class="events">
      ${events.slice(-LISTED).map(
        ([at, kind, text]) => html`<li class=${kind}><b>${kind}</b><span class="faint">${duration(at)}</span><span>${text}</span></li>`,
      )}
    </ol>`;
}

export function Timeline({ computation, colours, version, state }) {
  const answer = useAnswer(about(computation.id, "timeline"), version, 2);
  const data = answer.data;
  const box = useRef(null);
  const charts = useRef(null);
  const [seen, setSeen] = useState(null);
  const [broken, setBroken] = useState(null);
  const scheme = useScheme();
  const limit = state?.memory.limit_bytes;
  const there = Boolean(data && (data.tasks.length || data.memory.length));

  useEffect(() => {
    if (!there) return undefined;
    let over = false;
    // Loaded when this view is first opened: the others do not need it.
    import("./charts.js")
      .then(({ Charts }) => {
        if (over) return;
        const narrow = box.current.clientWidth < 600;
        charts.current = new Charts(box.current, data, { limit, colours, narrow }, setSeen);
      })
      .catch((error) => setBroken(error));
    return () => {
      over = true;
      charts.current?.destroy();
      charts.current = null;
    };
  }, [there, scheme, colours, limit]);
  useEffect(() => {
    if (data) charts.current?.update(data);
  }, [data]);

  if (!there) {
    return html`<${Nothing} answer=${answer}><p>Nothing has run yet.</p></${Nothing}>`;
  }
  const { busy, end, peak, kinds, share } = summary(data);
  const marks = [...kinds].map(([kind, number]) => plural(number, kind)).join(", ");
  const words = `${plural(data.workers.length, "worker")} over ${duration(end)}, busy ${share}; at most ${bytes(peak)} in use${marks && `; ${marks}`}.`;
  const buttons = [
    ["Earlier", "←", () => charts.current?.zoom(1, -0.5)],
    ["Later", "→", () => charts.current?.zoom(1, 0.5)],
    ["Closer", "+", () => charts.current?.zoom(0.5)],
    ["Farther", "−", () => charts.current?.zoom(2)],
    ["All", "All", () => charts.current?.zoom(Infinity)],
  ];
  return html`
    <div class="tools">
      <p>${words}</p>
      <span class="buttons" role="group" aria-label="What part is shown">
        ${buttons.map(([name, sign, act]) => html`<button type="button" aria-label=${name} title=${name} onClick=${act}>${sign}</button>`)}
      </span>
    </div>
    ${broken && html`<p class="nothing problem">The charts could not be loaded: ${broken.message}</p>`}
    <div class="charts" ref=${box} role="img" aria-label="Timeline by worker, and memory. ${words}" />
    <p class="told" aria-hidden="true">${seen ?? html`<span class="faint">Drag to look closer, double-click for all.</span>`}</p>
    <p class="legend">
      ${data.layers.map((label) => html`<span><${Swatch} name=${colours.get(label) ?? "--layer-9"} />${label}</span>`)}
    </p>
    <p class="legend">
      <span><${Swatch} name="--in-use" />in use</span><span><${Swatch} name="--store" />store</span>
      <span><${Swatch} name="--spill" />on disk, spills</span>
      ${kinds.has("death") && html`<span><${Swatch} name="--failed" />deaths</span>`}
      ${kinds.has("retry") && html`<span><${Swatch} name="--retry" />retries</span>`}
    </p>
    <${Events} events=${data.events} />
    <${Numbers} busy=${busy} end=${end} />
  `;
}
