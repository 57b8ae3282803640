// One colour for each layer, the same in the table, the timeline and the graph.

const COLOURS = 10;

/** Return the names of the variables of layers' colours, by label, in the order of the layers. */
export function layerColours(labels) {
  const colours = new Map();
  for (const label of labels) {
    if (!colours.has(label)) colours.set(label, `--layer-${colours.size % COLOURS}`);
  }
  return colours;
}

//: Never shown: a browser resolves a variable only where it is some element's colour.
const probe = document.head.appendChild(document.createElement("i"));

/** Return a variable of the style sheet, for canvases, in the light or the dark scheme. */
export function colour(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}
