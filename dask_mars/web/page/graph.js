// The graph of layers, never of chunks; a layer's blocks are shown once it is chosen.

import { html, useMemo } from "./vendor/htm-preact-3.1.1.js";
import { about } from "./api.js";
import { Blocks } from "./blocks.js";
import { count, plural } from "./format.js";
import { place } from "./layout.js";
import { useAnswer } from "./live.js";
import { Nothing } from "./parts.js";

const BOX = { width: 158, height: 46, gap: 22, rise: 34 };
const EDGE = 6;

//: Reach of lines that lead around boxes: a curve reaches three quarters of the way to its control points.
const AROUND = 40;

//: Maximum number of boxes: more are unreadable, and browsers get slow.
const DRAWN = 400;

function stateOf(layer) {
  if (layer.failed) return "failed";
  if (layer.finished === layer.total) return "finished";
  if (layer.running) return "running";
  return layer.finished ? "begun" : "waiting";
}

function Box({ layer, at, address, chosen, colour }) {
  const inner = BOX.width - 20;
  const share = (number) => (inner * number) / (layer.total || 1);
  const words = ["finished", "running", "failed", "waiting"]
    .filter((name) => layer[name])
    .map((name) => `${count(layer[name])} ${name}`)
    .join(", ");
  const label = layer.label.length > 20 ? `${layer.label.slice(0, 19)}…` : layer.label;
  return html`<a href=${address} class="box ${stateOf(layer)}" aria-label="${layer.label}: ${words}"
    aria-current=${chosen ? "true" : undefined} transform="translate(${at.x + EDGE} ${at.y + EDGE})">
    <title>${layer.label}: ${words}</title>
    <rect class="frame" width=${BOX.width} height=${BOX.height} rx="5" />
    <rect class="tag" width="4" height=${BOX.height - 12} x="5" y="6" rx="2" style=${{ fill: `var(${colour})` }} />
    <text x="15" y="18">${label}</text>
    <text class="small" x="15" y="32">${count(layer.finished)} / ${count(layer.total)}</text>
    <g transform="translate(15 37)">
      <rect class="rail" width=${inner} height="4" rx="2" />
      <rect class="finished" width=${share(layer.finished)} height="4" rx="2" />
      <rect class="running" x=${share(layer.finished)} width=${share(layer.running)} height="4" />
      <rect class="failed" x=${share(layer.finished + layer.running)} width=${share(layer.failed)} height="4" />
    </g>
  </a>`;
}

function line(from, to) {
  if (from.x === to.x && to.y - from.y > BOX.height + BOX.rise) {
    // Around the boxes between them.
    const side = from.x + BOX.width + EDGE;
    const [begin, end] = [from.y + BOX.height / 2 + EDGE, to.y + BOX.height / 2 + EDGE];
    return `M${side} ${begin}C${side + AROUND} ${begin} ${side + AROUND} ${end} ${side} ${end}`;
  }
  const [x, y] = [from.x + BOX.width / 2 + EDGE, from.y + BOX.height + EDGE];
  const [toX, toY] = [to.x + BOX.width / 2 + EDGE, to.y + EDGE];
  const bend = Math.max(BOX.rise / 2, (toY - y) / 2);
  return `M${x} ${y}C${x} ${y + bend} ${toX} ${toY - bend} ${toX} ${toY}`;
}

function Picture({ graph, computation, chosen, colours }) {
  const layers = graph.layers.slice(0, DRAWN);
  const edges = graph.edges.filter(([from, to]) => from < DRAWN && to < DRAWN);
  // Positions follow from the edges alone, so they stay while states change.
  const shape = `${layers.length}:${edges.join(";")}`;
  const { places, width, height } = useMemo(() => place(layers.length, edges, BOX), [shape]);
  const chosenIndex = layers.findIndex(({ name }) => name === chosen);
  const address = (name) => `#/c/${encodeURIComponent(computation.id)}/graph?${new URLSearchParams({ layer: name })}`;
  return html`
    ${graph.layers.length > DRAWN &&
    html`<p class="faint">The first ${count(DRAWN)} of ${count(graph.layers.length)} layers; the table has all.</p>`}
    <div class="scroll graph">
      <svg width=${width + 2 * EDGE + 0.75 * AROUND} height=${height + 2 * EDGE} role="group"
        aria-label="Graph of ${plural(layers.length, "layer")}, inputs first">
        <g class="edges" aria-hidden="true">
          ${edges.map(
            ([from, to]) => html`<path d=${line(places[from], places[to])}
              class=${from === chosenIndex || to === chosenIndex ? "of" : ""} />`,
          )}
        </g>
        ${layers.map(
          (layer, index) => html`<${Box} key=${layer.name} layer=${layer} at=${places[index]}
            address=${address(layer.name)} chosen=${layer.name === chosen}
            colour=${colours.get(layer.label) ?? "--layer-9"} />`,
        )}
      </svg>
    </div>
    <p class="legend" aria-hidden="true">
      ${["waiting", "running", "finished", "failed"].map((name) => html`<span><i class="swatch of-${name}" />${name}</span>`)}
    </p>
  `;
}

export function Graph({ computation, colours, query, version }) {
  const answer = useAnswer(about(computation.id, "graph"), version);
  const chosen = query.get("layer");
  const graph = answer.data;
  if (!graph?.layers.length) {
    return html`<${Nothing} answer=${answer}><p>The graph is known once it has been prepared.</p></${Nothing}>`;
  }
  return html`
    <${Picture} graph=${graph} computation=${computation} chosen=${chosen} colours=${colours} />
    ${chosen
      ? html`<${Blocks} key=${chosen} computation=${computation} layer=${chosen} version=${version} />`
      : html`<p class="faint">Choose a layer to see its blocks.</p>`}
  `;
}
