// The timeline's charts on one axis: rows of each worker, and memory.

import { colour } from "./colours.js";
import { bytes, duration } from "./format.js";

const FONT = "11px system-ui, sans-serif";
const EVENTS = { spill: "--spill", death: "--failed", retry: "--retry", cancel: "--faint" };

/** Return a worker's label, cut to the space beside its row; the tooltip has all of it. */
function shortLabel(label, isNarrow) {
  const short = label.replace(/ \(process \d+\)$| of your process$/, "");
  return isNarrow ? short.replace(/^(\w)\w* (\d+)$/, "$1 $2").replace(/^your process$/, "you") : short;
}

/** Return the height of one worker's row: less for many. */
function lane(workers) {
  return Math.max(5, Math.min(26, Math.floor(420 / Math.max(workers, 1))));
}

/** Two charts over one axis of time. `data` is the API's answer; `seen` is called with the item at the pointer. */
export class Charts {
  constructor(box, data, { limit, colours, narrow }, onSeen) {
    this.box = box;
    this.data = data;
    this.limit = limit;
    this.colours = colours;
    this.onSeen = onSeen;
    this.side = narrow ? 58 : 84;
    this.zoomed = false;
    this.tasks = this.makeTasks();
    this.memory = this.makeMemory();
    this.watch = new ResizeObserver(() => this.resize());
    this.watch.observe(box);
  }

  get width() {
    return Math.max(200, this.box.clientWidth);
  }

  /** Time of the last event, in seconds since the start. */
  get end() {
    const { tasks, memory } = this.data;
    let end = memory.length ? memory.at(-1)[0] : 0;
    for (const task of tasks) if (task[2] > end) end = task[2];
    return end || 1;
  }

  axis(more) {
    const line = { stroke: colour("--line"), width: 1 };
    return { stroke: colour("--faint"), font: FONT, grid: line, ticks: { ...line, size: 4 }, ...more };
  }

  options(height, scale, axis, more) {
    return {
      width: this.width,
      height,
      legend: { show: false },
      padding: [8, 12, 0, 0],
      cursor: {
        sync: { key: "timeline", setSeries: false },
        drag: { x: true, y: false, uni: 8 },
        points: { show: false },
        y: false,
        bind: { dblclick: () => () => (this.show(0, this.end), null) },
      },
      scales: { x: { time: false, range: (_, low, high) => [low ?? 0, high ?? 1] }, y: scale },
      ...more,
      axes: [this.axis({ values: (_, splits) => splits.map((at) => shortTime(at)), space: 70, ...more.below }), axis],
      hooks: { setScale: [(chart, key) => key === "x" && this.follow(chart)], ...more.hooks },
    };
  }

  makeTasks() {
    const { workers, labels } = this.data;
    const rows = workers.length || 1;
    const axis = this.axis({
      size: this.side,
      grid: { show: false },
      ticks: { show: false },
      splits: () => workers.map((_, index) => rows - index - 0.5),
      values: () => labels.map((label, index) => (lane(rows) < 12 && index % 8 ? "" : shortLabel(label, this.side < 80))),
    });
    const options = this.options(lane(rows) * rows + 14, { range: [0, rows] }, axis, {
      series: [{}, { show: true, paths: () => null, points: { show: false } }],
      below: { show: false },
      hooks: {
        draw: [(chart) => this.paint(chart), (chart) => this.mark(chart)],
        setCursor: [(chart) => this.look(chart)],
      },
    });
    return new globalThis.uPlot(options, [[0, this.end], [0, 0]], this.box);
  }

  makeMemory() {
    const axis = this.axis({ size: this.side, values: (_, splits) => splits.map((at) => bytes(at)), space: 34, incrs: steps() });
    const series = (label, name, more) => ({ label, stroke: colour(name), width: 1.5, points: { show: false }, ...more });
    const options = this.options(150, { range: (_, low, high) => [0, this.top(high)] }, axis, {
      series: [
        {},
        series("in use", "--in-use", { fill: colour("--in-use-area") }),
        series("store", "--store"),
        series("on disk", "--spill", { dash: [5, 3] }),
      ],
      hooks: { draw: [(chart) => this.drawLimit(chart), (chart) => this.mark(chart)], setCursor: [(chart) => this.look(chart)] },
    });
    return new globalThis.uPlot(options, this.columns(), this.box);
  }

  top(high) {
    // The limit is shown when memory in use comes near it.
    const near = this.limit && high > this.limit / 3;
    return Math.max(high || 0, near ? this.limit : 0, 1 << 20) * 1.08;
  }

  columns() {
    const { memory } = this.data;
    return memory.length ? [0, 1, 2, 3].map((column) => memory.map((row) => row[column])) : [[0, this.end], [0, 0], [0, 0], [0, 0]];
  }

  /** Show another answer; the zoom stays. */
  update(data) {
    const whole = !this.zoomed;
    const before = this.data.labels;
    const { min, max } = this.tasks.scales.x;
    this.data = data;
    this.tasks.setData([[0, this.end], [0, 0]], false);
    this.memory.setData(this.columns(), false);
    if (data.labels.join() !== before.join()) {
      this.tasks.destroy();
      this.tasks = this.makeTasks();
      this.box.prepend(this.tasks.root);
    }
    if (whole) this.show(0, this.end);
    else this.show(min, max);
  }

  /** Show a span of time in both charts. */
  show(min, max) {
    const end = this.end;
    const span = Math.min(Math.max(max - min, 1e-5), end);
    const from = Math.max(0, Math.min(min, end - span));
    this.zoomed = span < end * 0.999;
    this.setting = true;
    for (const chart of [this.tasks, this.memory]) chart?.setScale("x", { min: from, max: from + span });
    this.setting = false;
  }

  /** Zoom the other chart like this one. */
  follow(chart) {
    const { min, max } = chart.scales.x;
    if (this.setting || !this.memory || min === null) return;
    const other = chart === this.tasks ? this.memory : this.tasks;
    this.zoomed = max - min < this.end * 0.999;
    if (other.scales.x.min === min && other.scales.x.max === max) return;
    this.setting = true;
    other.setScale("x", { min, max });
    this.setting = false;
  }

  /** Zoom around the middle, or move by a part of the visible span. */
  zoom(factor, aside = 0) {
    const { min, max } = this.tasks.scales.x;
    const span = (max - min) * factor;
    const middle = (min + max) / 2 + aside * (max - min);
    this.show(middle - span / 2, middle + span / 2);
  }

  paint(chart) {
    const { tasks, workers, layers } = this.data;
    const { ctx: pen, bbox } = chart;
    const rowOf = new Map(workers.map((worker, index) => [worker, index]));
    const { min, max } = chart.scales.x;
    const perSecond = bbox.width / (max - min);
    const row = bbox.height / (workers.length || 1);
    const pad = row > 8 * devicePixelRatio ? 2 * devicePixelRatio : 0;
    const paints = layers.map((label) => colour(this.colours.get(label) ?? "--layer-9"));
    pen.save();
    pen.beginPath();
    pen.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    pen.clip();
    pen.fillStyle = colour("--rail");
    for (let index = 0; index < workers.length; index += 1) {
      pen.fillRect(bbox.left, bbox.top + index * row + pad / 2, bbox.width, row - pad);
    }
    for (const [worker, start, end, layer] of tasks) {
      if (end < min || start > max) continue;
      const x = bbox.left + (start - min) * perSecond;
      const width = Math.max(1, (end - start) * perSecond - (row > 12 ? 0.5 : 0));
      pen.fillStyle = paints[layer];
      pen.fillRect(x, bbox.top + rowOf.get(worker) * row + pad / 2, width, row - pad);
    }
    pen.restore();
  }

  /** Mark spills, deaths, retries and cancels. */
  mark(chart) {
    const { ctx: pen, bbox } = chart;
    const { min, max } = chart.scales.x;
    const scale = devicePixelRatio || 1;
    pen.save();
    for (const [at, kind] of this.data.events) {
      if (at < min || at > max) continue;
      const x = Math.round(chart.valToPos(at, "x", true));
      pen.strokeStyle = pen.fillStyle = colour(EVENTS[kind] ?? "--faint");
      pen.lineWidth = scale;
      pen.globalAlpha = kind === "spill" ? 0.5 : 1;
      pen.beginPath();
      pen.moveTo(x + 0.5, bbox.top);
      pen.lineTo(x + 0.5, bbox.top + bbox.height);
      pen.stroke();
      pen.globalAlpha = 1;
      pen.beginPath();
      pen.moveTo(x - 4 * scale, bbox.top - 6 * scale);
      pen.lineTo(x + 4 * scale, bbox.top - 6 * scale);
      pen.lineTo(x, bbox.top + scale);
      pen.fill();
    }
    pen.restore();
  }

  drawLimit(chart) {
    if (!this.limit || this.limit > chart.scales.y.max) return;
    const { ctx: pen, bbox } = chart;
    const y = Math.round(chart.valToPos(this.limit, "y", true));
    const scale = devicePixelRatio || 1;
    pen.save();
    pen.strokeStyle = pen.fillStyle = colour("--failed");
    pen.setLineDash([6 * scale, 4 * scale]);
    pen.lineWidth = scale;
    pen.beginPath();
    pen.moveTo(bbox.left, y);
    pen.lineTo(bbox.left + bbox.width, y);
    pen.stroke();
    pen.font = `${10 * scale}px system-ui, sans-serif`;
    pen.textAlign = "right";
    pen.textBaseline = "top";
    pen.fillText("limit", bbox.left + bbox.width - 4 * scale, y + 3 * scale);
    pen.restore();
  }

  /** Report the item at the pointer. */
  look(chart) {
    const { left, top } = chart.cursor;
    if (left < 0) {
      this.onSeen(null);
      return;
    }
    const at = chart.posToVal(left, "x");
    const { workers, labels, tasks, layers, memory } = this.data;
    const parts = [duration(at)];
    if (chart === this.tasks && top >= 0) {
      const place = Math.floor(workers.length - chart.posToVal(top, "y"));
      const worker = workers[place];
      const task = tasks.find(([of, start, end]) => of === worker && start <= at && at <= end);
      parts.push(labels[place]);
      if (task) {
        const chunks = task[4] > 1 ? `, ${task[4]} chunks` : "";
        parts.push(`${layers[task[3]]}, ${duration(task[2] - task[1])}${chunks}`);
      } else {
        parts.push("idle");
      }
    }
    const row = memory.findLast(([t]) => t <= at);
    if (row) parts.push(`${bytes(row[1])} in use, ${bytes(row[2])} in the store, ${bytes(row[3])} on disk`);
    this.onSeen(parts.join(" · "));
  }

  resize() {
    const width = this.width;
    if (Math.abs(width - this.tasks.width) < 1) return;
    this.tasks.setSize({ width, height: this.tasks.height });
    this.memory.setSize({ width, height: this.memory.height });
  }

  destroy() {
    this.watch.disconnect();
    this.tasks.destroy();
    this.memory.destroy();
  }
}

/** Return steps for axes of bytes: 1, 2, 5, … 512 of each unit. */
function steps() {
  return Array.from({ length: 60 }, (_, power) => 2 ** power);
}

/** Return a time on the axis, which has no room for more than one unit where one will do. */
function shortTime(seconds) {
  if (seconds < 60 || seconds % 60) return seconds < 60 ? `${+seconds.toPrecision(6)} s` : duration(seconds);
  return seconds < 3600 || seconds % 3600 ? `${Math.floor(seconds / 60)} min` : `${seconds / 3600} h`;
}
