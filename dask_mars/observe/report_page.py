"""The page of a report: one self-contained file, readable in light and dark, on screens and phones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dask_mars import units
from dask_mars.html import render
from dask_mars.labels import label_of, worker_label
from dask_mars.observe.recorded import Recorded
from dask_mars.observe.recording import MemoryPoint
from dask_mars.scheduler.events import CLIENT

#: Colours of layers, distinguishable for most people on light and on dark ground.
_COLOURS = (
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
#: Maximum numbers of rows in tables: of layers, and of happenings and computations.
_MOST_LAYERS, _MOST_ROWS = 30, 100
#: Maximum number of points of a line.
_MOST_POINTS = 1_000
#: Words for kinds of happenings.
_WORDS = {"failure": "task failed", "death": "worker died"}


class Shape(NamedTuple):
    """A rectangle in a row of the timeline, at a fraction of its length."""

    x: float
    width: float
    tip: str
    colour: str = ""
    kind: str = ""


def placeholder(title: str, when: str) -> str:
    """Return the page before the end of the recording."""
    return render("report.html.j2", title=title, when=when, outcome="not finished yet", is_over=False)


def as_html(recorded: Recorded, title: str, when: str, outcome: str, facts: Mapping[str, Any]) -> str:
    """Return the page."""
    colours = _layer_colours(recorded)
    layers = recorded.longest()
    return render(
        "report.html.j2",
        title=title,
        when=when,
        outcome=outcome,
        is_over=True,
        recorded=recorded,
        facts=facts,
        units=units,
        label_of=label_of,
        words=_WORDS,
        colours=colours,
        legend={label_of(name): colour for name, colour in colours.items()},
        tiles=_tiles(recorded),
        timeline=_timeline(recorded, colours),
        ticks=[units.duration(recorded.length_s * part / 4) if part else "0" for part in range(5)],
        memory=_memory(recorded),
        layers=layers[:_MOST_LAYERS],
        smaller_layers=max(len(layers) - _MOST_LAYERS, 0),
        longest_s=max([costs.total_s for _, costs in layers[:1]] + [1e-9]),
        most_bytes=max([costs.stored_bytes for _, costs in layers] + [1]),
        happenings=recorded.happenings[-_MOST_ROWS:],
        other_happenings=max(len(recorded.happenings) - _MOST_ROWS, 0) + recorded.dropped,
        computations=recorded.computations[:_MOST_ROWS],
    )


def _tiles(recorded: Recorded) -> list[tuple[str, str, str]]:
    workers = [worker for worker in recorded.workers if worker != CLIENT]
    limit = f"of {units.size(recorded.limit_bytes)}" if recorded.limit_bytes else ""
    return [
        ("time", units.duration(recorded.length_s), ""),
        ("chunks", f"{recorded.chunks:,}", f"of {units.plural(len(recorded.layers), 'layer')}"),
        ("workers busy", f"{round(100 * recorded.busy_share())} %", units.plural(len(workers), "worker")),
        ("most memory", units.size(recorded.peak_bytes), limit),
        ("to disk", units.size(recorded.spilled_bytes), ""),
        ("failures", f"{recorded.failures:,}", f"{recorded.retried:,} tried again"),
        ("deaths", f"{recorded.deaths:,}", "of workers"),
    ]


def _timeline(recorded: Recorded, colours: Mapping[str, str]) -> list[tuple[str, list[Shape]]]:
    """Return the rows of the timeline: a name and shapes."""
    names, length_s = list(recorded.layers), max(recorded.length_s, 1e-9)
    shapes: dict[int, list[Shape]] = {worker: [] for worker in recorded.workers}
    for worker, began_s, ended_s, layer, chunks in recorded.rows:
        name, took_s = names[layer], ended_s - began_s
        tip = f"{label_of(name)}, {units.plural(chunks, 'chunk')}, {units.duration(took_s)}"
        width = max(took_s / length_s, 0.0003)
        shapes[worker].append(Shape(began_s / length_s, width, tip, colours.get(name, "var(--other)")))
    for one in recorded.happenings:
        if one.worker in shapes:
            tip = f"{_WORDS.get(one.kind, one.kind)}: {one.text}"
            shapes[one.worker].append(Shape(one.time_s / length_s, 0.003, tip, kind="bad"))
    rows = [(recorded.labels.get(worker, worker_label(worker)), found) for worker, found in shapes.items()]
    if rows and recorded.spills:
        spills = [
            Shape(
                spill.began_s / length_s,
                max((spill.ended_s - spill.began_s) / length_s, 0.0005),
                f"{units.size(spill.size_bytes)} to disk",
                kind="spill",
            )
            for spill in recorded.spills
        ]
        rows.append(("disk", spills))
    return rows


def _memory(recorded: Recorded) -> dict[str, Any] | None:
    """Return the lines of memory as SVG's points, and the height of the limit."""
    points = _thinned(recorded.memory)
    if not points:
        return None
    top, length_s = 1.05 * max([recorded.limit_bytes, recorded.peak_bytes, 1]), max(recorded.length_s, 1e-9)
    across = [f"{1000 * point.time_s / length_s:.1f}" for point in points]

    def line(values: list[int]) -> str:
        return " ".join([f"{x},{100 - 100 * value / top:.2f}" for x, value in zip(across, values, strict=True)])

    def area(values: list[int]) -> str:
        return f"{across[0]},100 {line(values)} {across[-1]},100"

    return {
        "use": area([point.in_use_bytes for point in points]),
        "stored": area([point.stored_bytes for point in points]),
        "disk": line([point.spilled_bytes for point in points]) if 0 < recorded.spilled_bytes <= top else "",
        "limit": 100 - 100 * recorded.limit_bytes / top,
    }


def _layer_colours(recorded: Recorded) -> dict[str, str]:
    """Return colours of the layers that took longest; layers with the same label share one."""
    longest = [name for name, _ in recorded.longest()]
    labels = list(dict.fromkeys(map(label_of, longest)))[: len(_COLOURS)]
    return {name: _COLOURS[labels.index(label_of(name))] for name in longest if label_of(name) in labels}


def _thinned(points: Sequence[MemoryPoint]) -> list[MemoryPoint]:
    """Return few enough points to draw, of each group the one with the most memory in use."""
    size = max(-(-len(points) // _MOST_POINTS), 1)
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [max(group, key=lambda point: point.in_use_bytes) for group in groups]
