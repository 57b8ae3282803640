// One computation: how far it is, Cancel, and the views of it in tabs.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { about, ask } from "./api.js";
import { layerColours } from "./colours.js";
import { bytes, count, duration, percent, plural, remaining, time, title } from "./format.js";
import { Graph } from "./graph.js";
import { Layers } from "./layers.js";
import { useAnswer, useNow } from "./live.js";
import { Log } from "./log.js";
import { Bar, Nothing, State } from "./parts.js";
import { Result } from "./result.js";
import { Timeline } from "./timeline.js";
import { Waiting } from "./waiting.js";

const OVER = new Set(["finished", "failed", "cancelled"]);

const VIEWS = [
  ["layers", "Layers", Layers],
  ["waiting", "Waiting", Waiting],
  ["timeline", "Timeline", Timeline],
  ["graph", "Graph", Graph],
  ["log", "Log", Log],
  ["result", "Result", Result],
];

export const VIEW_NAMES = VIEWS.map(([name]) => name);

function Tabs({ views, current, address }) {
  const list = useRef(null);
  const move = (event) => {
    const at = views.findIndex(([name]) => name === current);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: views.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = (to + views.length) % views.length;
    location.hash = address(views[next][0]);
    list.current.children[next].focus();
  };
  return html`<div class="tabs" role="tablist" aria-label="Views" ref=${list} onKeyDown=${move}>
    ${views.map(
      ([name, words]) => html`<a
        key=${name}
        id="tab-${name}"
        role="tab"
        href=${address(name)}
        aria-selected=${name === current ? "true" : "false"}
        aria-controls="view"
        tabindex=${name === current ? 0 : -1}
        >${words}</a
      >`,
    )}
  </div>`;
}

/** The button that cancels, and the question before it. */
function Cancel({ computation, onDone }) {
  const dialog = useRef(null);
  const [said, setSaid] = useState(null);
  const [busy, setBusy] = useState(false);
  const cancel = async () => {
    setBusy(true);
    try {
      await ask(about(computation.id, "cancel"), { method: "POST" });
      setSaid({ words: "Asked to end." });
    } catch (problem) {
      setSaid({ words: problem.status === 409 ? "It was over already." : problem.message, problem });
    }
    setBusy(false);
    dialog.current?.close();
    onDone();
  };
  return html`
    <span class=${said?.problem ? "said problem" : "said"} role="status">${said?.words}</span>
    <button type="button" class="danger" id="cancel" disabled=${busy || computation.cancelling}
      onClick=${() => dialog.current.showModal()}>Cancel …</button>
    <dialog ref=${dialog} aria-labelledby="cancel-question">
      <h2 id="cancel-question">Cancel ${title(computation)}?</h2>
      <p>
        What it has computed so far is given up: ${count(computation.chunks.finished)} of
        ${" "}${plural(computation.chunks.total, "chunk")}. Other computations go on.
      </p>
      <div class="choices">
        <button type="button" onClick=${() => dialog.current.close()}>Let it run</button>
        <button type="button" class="danger" disabled=${busy} onClick=${cancel}>Cancel it</button>
      </div>
    </dialog>
  `;
}

function Head({ computation, can, askNow }) {
  const { state, chunks, created, started, ended, attempt, error, result } = computation;
  const now = useNow(!OVER.has(state));
  const facts = [];
  if (started) {
    const taken = duration((ended ?? now) - started);
    facts.push([OVER.has(state) ? "Took" : "Running for", taken]);
  } else {
    facts.push(["Waits for", duration((ended ?? now) - created)]);
  }
  if (state === "running" && computation.remaining !== null) facts.push(["Left", remaining(computation.remaining)]);
  facts.push(["Begun", time(started ?? created)]);
  if (ended) facts.push(["Ended", time(ended)]);
  if (attempt > 1) facts.push(["Attempt", count(attempt)]);
  if (result?.bytes) facts.push(["Result", bytes(result.bytes)]);
  return html`<div class="about">
    <div class="line">
      <h1>${title(computation)}</h1>
      <${State} state=${state} />
      <span class="grow" />
      ${!OVER.has(state) && can?.includes("cancel") && html`<${Cancel} computation=${computation} onDone=${askNow} />`}
    </div>
    ${chunks.total > 0 &&
    html`<div class="progress">
      <${Bar} chunks=${chunks} label="Progress of the computation" />
      <p>
        <b>${percent(chunks.finished, chunks.total)}</b> ${count(chunks.finished)} of ${plural(chunks.total, "chunk")}
        ${chunks.running > 0 && html`<span class="key-running"> · ${count(chunks.running)} running</span>`}
        ${chunks.failed > 0 && html`<span class="key-failed"> · ${count(chunks.failed)} failed</span>`}
      </p>
    </div>`}
    ${state === "queued" && html`<p class="faint">It stands in the queue, behind what was submitted before.</p>`}
    ${state === "preparing" && html`<p class="faint">Its graph is being prepared: optimised, and put into layers.</p>`}
    <dl class="line facts">
      ${facts.map(([name, words]) => html`<div><dt>${name}</dt><dd>${words}</dd></div>`)}
    </dl>
    ${error &&
    html`<p class="banner failed"><span><strong>${error.type}</strong>: ${error.message}</span>
      <a href="#/c/${encodeURIComponent(computation.id)}/log">Traceback</a></p>`}
  </div>`;
}

export function Computation({ id, view, query, version, state, onShown, askNow }) {
  const answer = useAnswer(about(id), version);
  const computation = answer.data;
  useEffect(() => {
    onShown(computation ?? null);
    return () => onShown(null);
  }, [computation]);
  const labels = computation?.layers.map(({ label }) => label).join("\n");
  const colours = useMemo(() => layerColours(labels ? labels.split("\n") : []), [labels]);

  const back = html`<a class="back" href="#/"><span aria-hidden="true">← </span>All computations</a>`;
  if (!computation) {
    const unknown = answer.problem?.status === 404;
    return html`${back}<div role="status">
      ${unknown
        ? html`<div class="nothing"><h1>Unknown computation</h1>
            <p><code>${id}</code> is not in the history: it was deleted, or is of another service.</p></div>`
        : html`<${Nothing} answer=${answer} />`}
    </div>`;
  }
  const views = VIEWS.filter(([name]) => name !== "result" || state?.can.includes("submit"));
  const initial = computation.error ? "log" : "layers";
  const [current, , View] = views.find(([name]) => name === (view ?? initial)) ?? views[0];
  const address = (name) => `#/c/${encodeURIComponent(id)}/${name}`;
  return html`
    ${back}
    <${Head} computation=${computation} can=${state?.can} askNow=${askNow} />
    <${Tabs} views=${views} current=${current} address=${address} />
    <section class="view ${current}" id="view" role="tabpanel" aria-labelledby="tab-${current}">
      <${View}
        computation=${computation}
        colours=${colours}
        query=${query}
        version=${computation.revision}
        state=${state}
      />
    </section>
  `;
}
