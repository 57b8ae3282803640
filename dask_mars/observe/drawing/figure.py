"""Draws pictures of graphs with Matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from dask.utils import import_required

from dask_mars.observe.drawing.picture import FUSED, KNOWN, SINGLE, Picture, make_legend

_WANTED_WIDTH, _USUAL_WIDTH = 3.0, 1.0
_STYLES = {
    SINGLE: {"boxstyle": "ellipse,pad=0.1"},
    FUSED: {"boxstyle": "round,pad=0.5"},
    KNOWN: {"boxstyle": "square,pad=0.3", "linestyle": "dashed"},
}
_FONT_SIZE = 9
# Size in inches of a letter, a line and the margin of a text at this font size. An ellipse is wider than its text.
_LETTER, _LINE, _AROUND = 0.072, 0.17, 0.5
_WIDENED = {SINGLE: 1.4, FUSED: 1.0, KNOWN: 1.0}
# Matplotlib draws no more pixels than this in one direction.
_MOST_PIXELS = 60_000


def draw(pictures: Sequence[Picture], *, rankdir: str = "BT", dpi: float = 100) -> Drawing:
    """Draw pictures of graphs."""
    if rankdir not in ("BT", "TB", "LR", "RL"):
        raise ValueError(f"rankdir must be 'BT', 'TB', 'LR' or 'RL', not {rankdir!r}")
    import_required(
        "matplotlib", "drawing chunk graphs needs matplotlib: python -m pip install 'dask-mars[visualize]'"
    )
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    places = [_oriented(place(len(picture.nodes), picture.edges), rankdir) for picture in pictures]
    nodes = [node for picture in pictures for node in picture.nodes]
    cell_width = _AROUND + _LETTER * max(_WIDENED[node.kind] * max(map(len, node.lines)) for node in nodes)
    cell_height = _AROUND + _LINE * max(len(node.lines) for node in nodes)
    widths = [1 + max(x for x, _ in points) for points in places]
    heights = [1 + max(y for _, y in points) for points in places]
    width = max(widths)
    size = cell_width * width, cell_height * sum(heights) + 0.4 * len(pictures) + 0.6
    figure = Figure(figsize=size, layout="constrained", dpi=dpi)
    every_axes = figure.subplots(len(pictures), 1, squeeze=False, height_ratios=heights)[:, 0]
    for picture, points, axes, own, height in zip(pictures, places, every_axes, widths, heights, strict=True):
        _draw_on(axes, picture, points)
        # One scale for all, so that graphs can be compared.
        axes.set_xlim(-0.5 - (width - own) / 2, own - 0.5 + (width - own) / 2)
        axes.set_ylim(-0.5, height - 0.5)
    patches = [Patch(facecolor=colour, edgecolor="black", label=name) for name, colour in make_legend(pictures)]
    if patches:
        figure.legend(handles=patches, loc="outside lower center", ncols=min(len(patches), 8), frameon=False)
    return Drawing(figure)


def _oriented(points: list[tuple[float, int]], rankdir: str) -> list[tuple[float, float]]:
    """Turn columns and rows to the direction of the graph; the smallest coordinates stay 0."""
    last_row = max((row for _, row in points), default=0)
    last_column = max((column for column, _ in points), default=0.0)
    rows = [last_row - row if rankdir in ("TB", "RL") else row for _, row in points]
    if rankdir in ("LR", "RL"):
        # The first column becomes the topmost line.
        return [(row, last_column - column) for row, (column, _) in zip(rows, points, strict=True)]
    return [(column, row) for row, (column, _) in zip(rows, points, strict=True)]


def _draw_on(axes: Any, picture: Picture, points: list[tuple[float, float]]) -> None:
    from matplotlib.collections import LineCollection

    axes.set_title(picture.title)
    axes.set_axis_off()
    lines = [(points[source], points[position]) for source, position in picture.edges]
    axes.add_collection(LineCollection(lines, colors="gray", linewidths=1.0, zorder=1))
    if lines:
        # Nodes would hide arrow heads at the ends of lines, so heads are slightly behind the middle.
        starts = [start for start, _ in lines]
        steps = [(0.55 * (end[0] - start[0]), 0.55 * (end[1] - start[1])) for start, end in lines]
        arrows = {"angles": "xy", "scale_units": "xy", "scale": 1, "units": "inches", "width": 0.012}
        axes.quiver(*zip(*starts, strict=True), *zip(*steps, strict=True), color="gray", headwidth=9, **arrows)
    for node, (x, y) in zip(picture.nodes, points, strict=True):
        width = _WANTED_WIDTH if node.wanted else _USUAL_WIDTH
        axes.text(
            x,
            y,
            "\n".join(node.lines),
            # A name between two dollar signs is not a formula.
            parse_math=False,
            fontsize=_FONT_SIZE,
            horizontalalignment="center",
            verticalalignment="center",
            bbox={"facecolor": node.colour, "linewidth": width, **_STYLES[node.kind]},
        )


class Drawing:
    """A Matplotlib figure with the part of `graphviz.Digraph` by which Dask writes files."""

    def __init__(self, figure: Any) -> None:
        self.figure = figure

    def pipe(self, format: str) -> bytes:
        """Return the picture's file."""
        import matplotlib

        file = io.BytesIO()
        dpi = min(self.figure.dpi, _MOST_PIXELS / max(self.figure.get_size_inches()))
        # Texts can be searched, and the same graph gives the same file.
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dask-mars"}):
            metadata = {"Date": None} if format == "svg" else None
            self.figure.savefig(file, format=format, dpi=dpi, metadata=metadata)
        return file.getvalue()


def place(count: int, edges: Sequence[tuple[int, int]]) -> list[tuple[float, int]]:
    """Place the nodes of a graph in rows by depth, each above the middle of its inputs."""
    inputs: list[list[int]] = [[] for _ in range(count)]
    for source, node in edges:
        inputs[node].append(source)
    rows = _rows(inputs)
    columns = [0.0] * count
    initial = 0
    for node in range(count):
        if not inputs[node]:
            columns[node] = initial
            initial += 1
    members: dict[int, list[int]] = {}
    for node, row in enumerate(rows):
        members.setdefault(row, []).append(node)
    for row in sorted(members):
        for node in members[row]:
            if inputs[node]:
                columns[node] = sum(columns[source] for source in inputs[node]) / len(inputs[node])
        _spread(members[row], columns)
    left = min(columns, default=0.0)
    return [(column - left, row) for column, row in zip(columns, rows, strict=True)]


def _rows(inputs: list[list[int]]) -> list[int]:
    """Return each node's depth; for a node without inputs that of its first consumer less one."""
    depths: list[int] = []
    for sources in inputs:
        depths.append(1 + max([depths[source] for source in sources], default=-1))
    consumers: dict[int, int] = {}
    for node, sources in enumerate(inputs):
        for source in sources:
            consumers[source] = min(consumers.get(source, depths[node]), depths[node])
    return [depth if inputs[node] else consumers.get(node, 1) - 1 for node, depth in enumerate(depths)]


def _spread(nodes: list[int], columns: list[float]) -> None:
    """Move the nodes of a row apart, and the row as a whole back to its former centre."""
    nodes.sort(key=lambda node: (columns[node], node))
    placed: list[float] = []
    for node in nodes:
        placed.append(max(columns[node], placed[-1] + 1.0) if placed else columns[node])
    shift = sum(column - columns[node] for node, column in zip(nodes, placed, strict=True)) / len(nodes)
    for node, column in zip(nodes, placed, strict=True):
        columns[node] = column - shift
