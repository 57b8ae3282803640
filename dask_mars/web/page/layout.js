// Positions of the boxes of a graph of layers: by depth from above, near their neighbours.

/** Return, for each of `size` layers, the length of the longest path that leads to it. */
function depths(size, edges) {
  const depth = new Array(size).fill(0);
  const missing = new Array(size).fill(0);
  const consumers = Array.from({ length: size }, () => []);
  for (const [from, to] of edges) {
    consumers[from].push(to);
    missing[to] += 1;
  }
  const ready = [...missing.keys()].filter((layer) => !missing[layer]);
  while (ready.length) {
    const layer = ready.pop();
    for (const to of consumers[layer]) {
      depth[to] = Math.max(depth[to], depth[layer] + 1);
      missing[to] -= 1;
      if (!missing[to]) ready.push(to);
    }
  }
  return depth;
}

/**
 * Place layers in rows.
 *
 * Returns `{places: [{x, y}, …], width, height}`: the upper left corners of boxes of `box.width` and `box.height`.
 */
export function place(size, edges, box) {
  const depth = depths(size, edges);
  const rows = [];
  for (let layer = 0; layer < size; layer += 1) (rows[depth[layer]] ??= []).push(layer);
  const at = new Array(size);
  const number = (row) => row.forEach((layer, index) => (at[layer] = index - (row.length - 1) / 2));
  rows.forEach(number);
  const near = [Array.from({ length: size }, () => []), Array.from({ length: size }, () => [])];
  for (const [from, to] of edges) {
    near[0][to].push(from);
    near[1][from].push(to);
  }
  // Each row in the order of the middle of its inputs, then of its consumers, and so on: few lines cross then.
  for (let sweep = 0; sweep < 4; sweep += 1) {
    const others = near[sweep % 2];
    const middle = (layer) =>
      others[layer].length ? others[layer].reduce((sum, other) => sum + at[other], 0) / others[layer].length : at[layer];
    for (const row of sweep % 2 ? [...rows].reverse() : rows) {
      const key = new Map(row.map((layer) => [layer, middle(layer)]));
      row.sort((a, b) => key.get(a) - key.get(b) || a - b);
      number(row);
    }
  }
  const widest = Math.max(...rows.map((row) => row.length), 1);
  const width = widest * (box.width + box.gap) - box.gap;
  const places = at.map((column, layer) => ({
    x: width / 2 + column * (box.width + box.gap) - box.width / 2,
    y: depth[layer] * (box.height + box.rise),
  }));
  return { places, width, height: rows.length * (box.height + box.rise) - box.rise };
}
