// Errors and output of tasks.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { about } from "./api.js";
import { count } from "./format.js";
import { useAnswer } from "./live.js";
import { Nothing } from "./parts.js";

//: Maximum number of lines in the page: the last ones.
const LISTED = 2000;
const STREAMS = ["stdout", "stderr", "warning", "engine"];

const clock = new Intl.DateTimeFormat("en-GB", {
  hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3,
});

function Failure({ computation }) {
  const answer = useAnswer(about(computation.id, "error"), computation.state);
  if (!answer.data) return html`<${Nothing} answer=${answer} />`;
  const { type, message, traceback } = answer.data;
  return html`<section class="failure">
    <h2>${type}</h2>
    <p>${message}</p>
    ${traceback && html`<pre class="traceback" tabindex="0" role="region" aria-label="Traceback">${traceback}</pre>`}
  </section>`;
}

function Lines({ lines, truncated }) {
  const [hidden, setHidden] = useState(() => new Set());
  const [words, setWords] = useState("");
  const box = useRef(null);
  const follows = useRef(true);
  const wanted = words.toLowerCase();
  const found = lines.filter(
    ({ stream, text }) => !hidden.has(stream) && (!wanted || text.toLowerCase().includes(wanted)),
  );
  useEffect(() => {
    // A reader who has scrolled up stays there.
    if (box.current && follows.current) box.current.scrollTop = box.current.scrollHeight;
  }, [found.length]);
  const scrolled = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    follows.current = scrollHeight - scrollTop - clientHeight < 8;
  };
  const toggle = (stream) => {
    const next = new Set(hidden);
    if (!next.delete(stream)) next.add(stream);
    setHidden(next);
  };
  const streams = STREAMS.filter((stream) => lines.some((line) => line.stream === stream));
  return html`
    <div class="filters">
      <input type="search" aria-label="Find in the log" placeholder="Find in the log" value=${words}
        onInput=${(event) => setWords(event.target.value)} spellcheck="false" />
      ${streams.map(
        (stream) => html`<label class="check"><input type="checkbox" checked=${!hidden.has(stream)}
          onChange=${() => toggle(stream)} />${stream}</label>`,
      )}
      <span class="faint" role="status">
        ${count(found.length)} of ${count(lines.length)} lines${found.length > LISTED ? `, the last ${count(LISTED)} shown` : ""}
      </span>
    </div>
    ${truncated && html`<p class="faint">The oldest lines are gone: a log keeps so many and no more.</p>`}
    <div class="lines" ref=${box} onScroll=${scrolled} tabindex="0" role="log" aria-live="off" aria-label="Log">
      ${found.slice(-LISTED).map(
        ({ time, stream, text }) => html`<div class=${stream}><time>${clock.format(time * 1000)}</time><b>${stream}</b><span>${text}</span></div>`,
      )}
    </div>
  `;
}

export function Log({ computation, version }) {
  const answer = useAnswer(about(computation.id, "log"), version);
  const { lines = [], truncated = false } = answer.data ?? {};
  return html`
    ${computation.error && html`<${Failure} computation=${computation} />`}
    ${lines.length
      ? html`<${Lines} lines=${lines} truncated=${truncated} />`
      : html`<${Nothing} answer=${answer}><p>Its tasks have written nothing.</p></${Nothing}>`}
  `;
}
