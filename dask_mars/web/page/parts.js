// Small parts of several views.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { count } from "./format.js";

/** The states of chunks, in the order in which bars show them. */
export const CHUNK_STATES = ["finished", "running", "failed"];

export function State({ state }) {
  return html`<span class="state ${state}"><i aria-hidden="true"></i>${state}</span>`;
}

/** A bar of the finished, running and failed parts of a total. */
export function Bar({ chunks, label }) {
  const total = chunks.total || 1;
  const words = CHUNK_STATES.filter((name) => chunks[name]).map((name) => `${count(chunks[name])} ${name}`);
  const text = `${words.join(", ") || "none begun"} of ${count(chunks.total)} chunks`;
  return html`<span
    class="bar"
    role="progressbar"
    aria-label=${label}
    aria-valuemin="0"
    aria-valuemax=${chunks.total}
    aria-valuenow=${chunks.finished}
    aria-valuetext=${text}
    title=${text}
  >
    ${CHUNK_STATES.map(
      (name) => chunks[name] > 0 && html`<i class=${name} style=${{ width: `${(100 * chunks[name]) / total}%` }} />`,
    )}
  </span>`;
}

/** The reason that a view shows while it is empty. */
export function Nothing({ answer, children }) {
  if (answer?.problem && !answer.data) {
    return html`<div class="nothing problem" role="alert">
      <p><strong>${answer.problem.title}</strong></p>
      <p>${answer.problem.message}</p>
    </div>`;
  }
  if (answer && !answer.data) return html`<p class="nothing" aria-busy="true">Asking …</p>`;
  return html`<div class="nothing">${children}</div>`;
}

/** A colour's sample. */
export function Swatch({ name }) {
  return html`<i class="swatch" style=${{ background: `var(${name})` }} aria-hidden="true" />`;
}
