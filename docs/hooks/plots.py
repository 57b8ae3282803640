"""Plots of the recorded figures: drawn from the tables of docs/benchmarks.md whenever the site is built."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks.md"

#: The heading above a table, and the name of its plot.
PLOTS = {
    "### Array workloads": "array",
    "### Real workloads": "real",
    "### From the first import of a process to the result": "cold",
    "### Many small chunks": "small",
}
#: Readable on a light page and on a dark one.
FASTER, SLOWER, INK = "#2a9d8f", "#e76f51", "#808080"


@dataclass(frozen=True)
class Ratio:
    """How long a workload takes, where Dask's threads take 1."""

    workload: str
    time: float


def ratios_below(heading: str, text: str) -> list[Ratio]:
    """Return what the first table below a heading says of dask_mars."""
    lines = iter(text.split(f"\n{heading}\n", 1)[1].splitlines())
    table = []
    for line in lines:
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip("|").split("|")])
        elif table:
            break
    workload, time = (table[0].index(name) for name in ("workload", "time / threads"))
    return [Ratio(row[workload], float(row[time])) for row in table[2:]]


def drawn(ratios: list[Ratio]) -> str:
    """Return a bar for each ratio, the fastest first, as SVG."""
    import matplotlib

    # Words stay words, the file is the same for the same figures.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dask_mars", "font.family": "sans-serif"}):
        from matplotlib.figure import Figure

        ordered = sorted(ratios, key=lambda ratio: -ratio.time)
        figure = Figure(figsize=(7.5, 0.8 + 0.3 * len(ordered)), layout="constrained")
        axes = figure.subplots()
        colours = [FASTER if ratio.time <= 1 else SLOWER for ratio in ordered]
        bars = axes.barh([ratio.workload for ratio in ordered], [ratio.time for ratio in ordered], color=colours)
        axes.bar_label(bars, [f"{ratio.time:.2f}" for ratio in ordered], padding=3, color=INK)
        axes.axvline(1, color=INK, linewidth=1, linestyle="--")
        axes.set_xlim(0, max(1.2, 1.12 * max(ratio.time for ratio in ordered)))
        axes.set_xlabel("time, where Dask's threads take 1", color=INK)
        axes.tick_params(colors=INK, length=0)
        axes.spines[:].set_visible(False)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return out.getvalue()


def on_files(files: Files, config: Any) -> Files:
    """Add the plots to the files of the site."""
    from mkdocs.structure.files import File

    text = BENCHMARKS.read_text(encoding="utf-8")
    for heading, name in PLOTS.items():
        files.append(File.generated(config, f"plots/{name}.svg", content=drawn(ratios_below(heading, text))))
    return files
