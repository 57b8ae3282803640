// The list of running and past computations.

import { html, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { count, duration, percent, remaining, time, title } from "./format.js";
import { useAnswer, useNow } from "./live.js";
import { Bar, Nothing, State } from "./parts.js";

const PAGE = 50;
const STATES = ["queued", "preparing", "running", "finished", "failed", "cancelled"];

function Row({ computation, selected, now }) {
  const { id, state, chunks, created, started, ended } = computation;
  const live = state === "running" || state === "preparing";
  const taken = started && (ended ?? now) - started;
  const current = id === selected;
  return html`<li>
    <a href="#/c/${encodeURIComponent(id)}" aria-current=${current ? "true" : undefined} class=${current ? "current" : ""}>
      <span class="name">${title(computation)}</span>
      <${State} state=${state} />
      ${state === "running" && html`<${Bar} chunks=${chunks} label="Progress" />`}
      <span class="faint when">${time(created)}</span>
      <span class="faint long">
        ${live && state === "running" ? `${percent(chunks.finished, chunks.total)} · ` : ""}
        ${live && computation.remaining !== null
          ? `${remaining(computation.remaining)} left`
          : started
            ? duration(taken)
            : ""}
      </span>
    </a>
  </li>`;
}

/** The text of an empty list. */
function Empty({ wanted, can }) {
  if (wanted) return html`<p>No computation is ${wanted}.</p>`;
  if (can?.includes("submit")) {
    return html`<p>Nothing has been submitted yet. From Python:</p>
      <pre><code>import dask_mars
service = dask_mars.connect()
x.compute(scheduler=service.get)
service.submit(x, name="…")</code></pre>`;
  }
  return html`<p>Nothing has been computed yet.</p>
    <p>What this process computes is shown here from its first chunk on.</p>`;
}

export function Computations({ version, counts, selected, can }) {
  const [wanted, setWanted] = useState("");
  // Cursors of the pages before this one: the newest first.
  const [cursors, setCursors] = useState([]);
  const query = new URLSearchParams({ limit: PAGE });
  if (wanted) query.set("state", wanted);
  if (cursors.length) query.set("before", cursors.at(-1));
  const answer = useAnswer(version === null ? null : `computations?${query}`, version);
  const list = answer.data?.computations ?? [];
  const now = useNow(list.some(({ state }) => state === "running" || state === "preparing"));
  useEffect(() => setCursors([]), [wanted]);
  return html`<nav class="computations" aria-label="Computations">
    <div class="head">
      <h2>Computations</h2>
      <label class="choice">
        <span class="sr">Show</span>
        <select value=${wanted} onChange=${(event) => setWanted(event.target.value)}>
          <option value="">all</option>
          ${STATES.map((name) => html`<option value=${name}>${name}${counts?.[name] ? ` (${count(counts[name])})` : ""}</option>`)}
        </select>
      </label>
    </div>
    ${list.length
      ? html`<ul>
          ${list.map((one) => html`<${Row} key=${one.id} computation=${one} selected=${selected} now=${now} />`)}
        </ul>`
      : html`<${Nothing} answer=${answer}><${Empty} wanted=${wanted} can=${can} /></${Nothing}>`}
    ${(cursors.length > 0 || answer.data?.next) &&
    html`<div class="pages">
      <button type="button" disabled=${!cursors.length} onClick=${() => setCursors(cursors.slice(0, -1))}>Newer</button>
      <button type="button" disabled=${!answer.data?.next} onClick=${() => setCursors([...cursors, answer.data.next])}>
        Older
      </button>
    </div>`}
  </nav>`;
}
