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

/** Return a variable of the style sheet, for canvases. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
