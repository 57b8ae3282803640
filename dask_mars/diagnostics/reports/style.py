"""The style sheet of reports."""

from __future__ import annotations

#: Colours of layers, distinguishable for most people on light and on dark ground.
COLOURS = (
    "#4269d0",
    "#efb118",
    "#3ca951",
    "#ff725c",
    "#6cc5b0",
    "#a463f2",
    "#97bbf5",
    "#9c6b4e",
    "#ff8ab7",
    "#38859c",
)

_LAYERS = "".join([f"--layer-{place}: {colour};" for place, colour in enumerate(COLOURS)])

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #fff;
  --text: #1b1f24;
  --muted: #59636e;
  --line: #d5dae0;
  --other: #a8b0b9;
  --bad: #cf222e;
  --good: #1a7f37;
  --use: #8bb4f0;
  --stored: #4269d0;
  --limit: #cf222e;
  --disk: #b26a00;
  --card: #f5f7f9;
  /* layers */
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #12161b;
    --text: #e6eaef;
    --muted: #9aa5b1;
    --line: #323a43;
    --other: #6b7681;
    --bad: #ff6b6b;
    --good: #56c271;
    --use: #345a93;
    --stored: #7ea3f5;
    --limit: #ff6b6b;
    --disk: #f0b34a;
    --card: #1b2128;
  }
}
* {
  box-sizing: border-box;
}
body {
  margin: 0;
  background: var(--ground);
  color: var(--text);
  font: 14px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;
}
main {
  max-width: 1200px;
  margin: 0 auto;
  padding: 16px;
}
h1 {
  font-size: 20px;
  margin: 0;
}
h2 {
  font-size: 16px;
  margin: 0 0 8px;
}
header p {
  margin: 2px 0 0;
  color: var(--muted);
}
section {
  margin: 20px 0;
}
ul {
  margin: 0;
  padding-left: 20px;
}
.tiles {
  display: grid;
  grid-template-columns: repeat(auto-fit,minmax(110px,1fr));
  gap: 8px;
}
.tile {
  background: var(--card);
  border-radius: 6px;
  padding: 8px 10px;
  color: var(--muted);
  font-size: 12px;
}
.tile b {
  display: block;
  color: var(--text);
  font-size: 18px;
  line-height: 1.3;
}
.row {
  display: grid;
  grid-template-columns: 88px 1fr;
  align-items: center;
  margin: 2px 0;
  color: var(--muted);
  font-size: 12px;
}
.row svg {
  width: 100%;
  height: 20px;
  background: var(--card);
  display: block;
  border-radius: 2px;
}
.tall svg {
  height: 180px;
}
.tall .scale {
  display: flex;
  flex-direction: column;
  justify-content: space-between;
  height: 180px;
}
.axis div {
  display: flex;
  justify-content: space-between;
}
.legend {
  display: flex;
  flex-wrap: wrap;
  gap: 2px 14px;
  margin-top: 6px;
  color: var(--muted);
  font-size: 12px;
}
.legend i, td i {
  display: inline-block;
  width: 10px;
  height: 10px;
  border-radius: 2px;
  margin-right: 5px;
}
rect.bad, i.bad {
  fill: var(--bad);
  background: var(--bad);
}
rect.spill {
  fill: var(--disk);
}
polygon.use {
  fill: var(--use);
}
polygon.stored {
  fill: var(--stored);
}
i.use {
  background: var(--use);
}
i.stored {
  background: var(--stored);
}
line.limit {
  stroke: var(--limit);
  stroke-width: 2;
  vector-effect: non-scaling-stroke;
  stroke-dasharray: 6 4;
}
i.limit {
  background: var(--limit);
}
polyline.disk {
  fill: none;
  stroke: var(--disk);
  stroke-width: 2;
  vector-effect: non-scaling-stroke;
}
i.disk {
  background: var(--disk);
}
table {
  border-collapse: collapse;
  width: 100%;
}
td, th {
  padding: 4px 10px 4px 0;
  text-align: right;
  white-space: nowrap;
  border-bottom: 1px solid var(--line);
  vertical-align: top;
  font-variant-numeric: tabular-nums;
}
th {
  color: var(--muted);
  font-weight: normal;
}
td:first-child, th:first-child, td.text {
  text-align: left;
}
td.text {
  white-space: normal;
  overflow-wrap: anywhere;
}
.wide {
  overflow-x: auto;
}
.bar {
  display: flex;
  height: 6px;
  min-width: 90px;
  margin-top: 3px;
  background: var(--card);
  border-radius: 2px;
  overflow: hidden;
}
.bar i {
  display: block;
  height: 100%;
  margin: 0;
  border-radius: 0;
}
.bar i.load, i.load {
  background: #efb118;
}
.bar i.compute, i.compute {
  background: #4269d0;
}
.bar i.seal, i.seal {
  background: #6cc5b0;
}
.failed, .ended {
  color: var(--bad);
}
.cancelled {
  color: var(--disk);
}
.finished {
  color: var(--good);
}
summary {
  cursor: pointer;
  font-size: 16px;
}
p {
  margin: 6px 0;
}
@media (max-width: 600px) {
  .row { grid-template-columns: 68px 1fr; }
  td, th { padding-right: 6px; }
  .bar { min-width: 40px; }
}
""".replace("/* layers */", _LAYERS)

__all__ = ["COLOURS", "STYLE"]
