// The blocks of one layer, each a small square painted by its state.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { about } from "./api.js";
import { colour } from "./colours.js";
import { count, plural } from "./format.js";
import { useAnswer, useScheme } from "./live.js";
import { Nothing } from "./parts.js";

const STATES = { w: "waiting", r: "running", f: "finished", x: "failed", ".": "not computed" };
const COLOURS = { w: "--waiting", r: "--running", f: "--finished", x: "--failed" };
const CELLS = { least: 3, most: 18 };

//: Maximum size that browsers paint, in pixels, with some room.
const WIDEST = 8000;

/**
 * Say where blocks are painted.
 *
 * The last two axes make a rectangle; those before them repeat it, side by side and then in rows. A single long axis
 * is broken like text.
 *
 * Returns `{cell, width, height, where(index) → [x, y], at(x, y) → index or -1}`, in pixels.
 */
export function lay(numblocks, room) {
  const total = numblocks.reduce((product, size) => product * size, 1);
  let columns = numblocks.at(-1) ?? 1;
  let rows = numblocks.length > 1 ? numblocks.at(-2) : 1;
  const broken = rows === 1 && total === columns && columns * CELLS.most > room || columns * CELLS.least > WIDEST;
  if (broken) {
    const cell = Math.max(CELLS.least, Math.min(CELLS.most, Math.floor(Math.sqrt((room * 320) / total))));
    columns = Math.max(1, Math.floor(room / cell));
    rows = Math.ceil(total / columns);
  }
  const cell = Math.max(CELLS.least, Math.min(CELLS.most, Math.floor(room / columns)));
  const size = rows * columns;
  const copies = broken ? 1 : Math.max(1, total / size);
  const gap = copies > 1 ? cell : 0;
  const beside = Math.max(1, Math.min(copies, Math.floor((room + gap) / (columns * cell + gap))));
  const where = (index) => {
    const copy = broken ? 0 : Math.floor(index / size);
    const rest = index - copy * size;
    return [
      (copy % beside) * (columns * cell + gap) + (rest % columns) * cell,
      Math.floor(copy / beside) * (rows * cell + gap) + Math.floor(rest / columns) * cell,
    ];
  };
  const at = (x, y) => {
    const [across, down] = [columns * cell + gap, rows * cell + gap];
    const [copyX, copyY] = [Math.floor(x / across), Math.floor(y / down)];
    const [column, row] = [Math.floor((x - copyX * across) / cell), Math.floor((y - copyY * down) / cell)];
    if (copyX >= beside || column >= columns || row >= rows || x < 0 || y < 0) return -1;
    const index = (copyY * beside + copyX) * size + row * columns + column;
    return index < total ? index : -1;
  };
  const width = beside * (columns * cell + gap) - gap;
  const height = Math.ceil(copies / beside) * (rows * cell + gap) - gap;
  return { cell, width, height, columns, total, where, at };
}

/** Return the place of a block among the others of its layer. */
export function placeOf(index, numblocks) {
  const place = [];
  for (const size of [...numblocks].reverse()) {
    place.unshift(index % size);
    index = Math.floor(index / size);
  }
  return place;
}

function paint(canvas, grid, states, chosen) {
  const scale = devicePixelRatio || 1;
  canvas.width = grid.width * scale;
  canvas.height = grid.height * scale;
  canvas.style.width = `${grid.width}px`;
  canvas.style.height = `${grid.height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const colours = Object.fromEntries(Object.entries(COLOURS).map(([state, name]) => [state, colour(name)]));
  const side = grid.cell > 5 ? grid.cell - 1 : grid.cell - 0.5;
  for (let index = 0; index < states.length; index += 1) {
    const state = states[index];
    if (!(state in colours)) continue;
    const [x, y] = grid.where(index);
    pen.fillStyle = colours[state];
    pen.fillRect(x, y, side, side);
    if (state === "x" && grid.cell > 7) {
      // Not by colour alone.
      pen.strokeStyle = colour("--back");
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.moveTo(x + 3, y + 3);
      pen.lineTo(x + side - 3, y + side - 3);
      pen.moveTo(x + side - 3, y + 3);
      pen.lineTo(x + 3, y + side - 3);
      pen.stroke();
    } else if (state === "r" && grid.cell > 7) {
      pen.fillStyle = colour("--back");
      pen.fillRect(x + side / 2 - 1.5, y + side / 2 - 1.5, 3, 3);
    }
  }
  if (chosen >= 0) {
    const [x, y] = grid.where(chosen);
    pen.strokeStyle = colour("--text");
    pen.lineWidth = 2;
    pen.strokeRect(x, y, side, side);
  }
}

export function Blocks({ computation, layer, version }) {
  const answer = useAnswer(about(computation.id, "graph", { layer }), version);
  const data = answer.data;
  const canvas = useRef(null);
  const box = useRef(null);
  const [room, setRoom] = useState(0);
  const [chosen, setChosen] = useState(-1);
  const [over, setOver] = useState(-1);
  const scheme = useScheme();
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setRoom(Math.floor(entry.contentRect.width)));
    watch.observe(box.current);
    box.current.scrollIntoView({ block: "nearest" });
    return () => watch.disconnect();
  }, []);
  const grid = data && room > 0 && data.states.length > 0 ? lay(data.numblocks.length ? data.numblocks : [1], room) : null;
  useEffect(() => {
    if (grid) paint(canvas.current, grid, data.states, chosen);
  }, [data, room, chosen, scheme]);

  const under = (event) => {
    const frame = canvas.current.getBoundingClientRect();
    return grid.at(event.clientX - frame.left, event.clientY - frame.top);
  };
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: grid.columns, ArrowUp: -grid.columns }[event.key];
    const to = event.key === "Home" ? 0 : event.key === "End" ? data.states.length - 1 : Math.max(chosen, 0) + step;
    if (Number.isNaN(to)) return;
    event.preventDefault();
    if (chosen < 0) setChosen(0);
    else if (to >= 0 && to < data.states.length) setChosen(to);
  };
  const number = (state) => (data ? data.states.split(state).length - 1 : 0);
  const tally = ["finished", "running", "failed", "waiting"].map((name) => {
    const letter = Object.keys(STATES).find((key) => STATES[key] === name);
    return [name, number(letter)];
  });
  const words = tally.filter(([, n]) => n).map(([name, n]) => `${count(n)} ${name}`).join(", ");
  const shape = data?.numblocks.join(" × ");
  const told = over >= 0 ? over : chosen;
  const place = told >= 0 && data ? placeOf(told, data.numblocks) : null;
  const key = place && `('${layer}', ${place.join(", ")})`;
  return html`<section class="blocks" ref=${box} aria-label="Blocks of ${data?.label ?? layer}">
    <h2>${data?.label ?? layer} <span class="faint">${data && `${shape} blocks: ${words}`}</span></h2>
    ${data?.truncated && html`<p class="faint">The first ${plural(data.states.length, "block")}; there are more.</p>`}
    ${grid
      ? html`<div class="scroll">
            <canvas ref=${canvas} tabindex="0" role="application" aria-roledescription="grid of blocks"
              aria-label="${shape} blocks: ${words}. Arrow keys go from block to block."
              onMouseMove=${(event) => setOver(under(event))} onMouseLeave=${() => setOver(-1)}
              onClick=${(event) => setChosen(under(event))} onKeyDown=${move} />
          </div>
          <p class="told" aria-live="polite">
            ${place
              ? html`<code>${key}</code> ${STATES[data.states[told]] ?? "not shown"}${" "}
                  <a href="#/c/${encodeURIComponent(computation.id)}/waiting?${new URLSearchParams({ key })}">Explain</a>`
              : html`<span class="faint">Point at a block, or go there with the arrow keys.</span>`}
          </p>`
      : html`<${Nothing} answer=${answer}><p>This layer has no blocks.</p></${Nothing}>`}
  </section>`;
}
