"""The drawing libraries: Graphviz if its `dot` program is installed, else Matplotlib."""

from __future__ import annotations

import html
import io
import shutil
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Protocol

import dask
from dask.utils import import_required

from dask_mars.observe.drawing.layout import place
from dask_mars.observe.drawing.picture import FUSED, KNOWN, SINGLE, Node, Picture, make_legend

_FONT = "helvetica"
_WANTED_WIDTH, _USUAL_WIDTH = 3.0, 1.0


class Drawing(Protocol):
    """The part of `graphviz.Digraph` that Dask uses to write files."""

    def pipe(self, format: str) -> bytes:
        """Return the picture in a format such as ``"png"`` or ``"svg"``."""


# -- Graphviz -------------------------------------------------------------------------------------------------

_GRAPHVIZ_STYLES = {
    SINGLE: {"shape": "ellipse", "style": "filled"},
    FUSED: {"shape": "box", "style": "filled,rounded", "peripheries": "2"},
    KNOWN: {"shape": "box", "style": "filled,dashed"},
}


def draw_with_graphviz(
    pictures: Sequence[Picture],
    *,
    graph_attr: dict[str, str] | None = None,
    node_attr: dict[str, str] | None = None,
    edge_attr: dict[str, str] | None = None,
    **attributes: Any,
) -> Drawing:
    """Draw with Graphviz.

    Parameters
    ----------
    pictures : sequence of Picture
        Drawn below each other, the first at the top.
    graph_attr, node_attr, edge_attr : dict, optional
        Graphviz's attributes, as `dask.visualize` takes them.
    **attributes
        Further attributes of the graph, such as ``rankdir="LR"``.

    Returns
    -------
    graphviz.Digraph
        Needs the `dot` program only when it is rendered.
    """
    graphviz = import_required(
        "graphviz",
        "Drawing chunk graphs with the graphviz engine requires the `graphviz` python library and the `graphviz` "
        "system library.\n\nPlease either conda or pip install as follows:\n\n"
        "  conda install python-graphviz     # either conda install\n"
        "  python -m pip install graphviz    # or pip install, and the system's package manager for `dot`",
    )
    of_graph = {
        "rankdir": "BT",
        # Inputs from left to right as they are passed.
        "ordering": "in",
        "fontname": _FONT,
        "label": _legend_table(pictures),
        **(graph_attr or {}),
        **{name: str(value) for name, value in attributes.items()},
    }
    is_across = of_graph["rankdir"] in ("LR", "RL")
    if is_across:
        of_graph.setdefault("ranksep", "0.25")
    # Titles go to the top; Graphviz flips the positions of labels together with the graph.
    labelloc = "b" if of_graph["rankdir"] == "BT" else "t"
    drawing: Drawing = graphviz.Digraph(
        graph_attr=of_graph,
        node_attr={"fontname": _FONT, "margin": "0.08,0.04", **(node_attr or {})},
        edge_attr={"arrowsize": "0.7", **(edge_attr or {})},
    )
    # In a graph from left to right, Graphviz places the first subgraph at the bottom.
    in_turn = reversed if is_across else list
    for number, picture in in_turn(list(enumerate(pictures))):
        # Graphviz draws a frame around subgraphs of this name.
        with drawing.subgraph(name=f"cluster{number}") as cluster:  # type: ignore[attr-defined]
            cluster.attr(label=graphviz.escape(picture.title), color="gray", labelloc=labelloc)
            for position, node in enumerate(picture.nodes):
                cluster.node(
                    f"{number}.{position}",
                    label=graphviz.escape("\n".join(node.lines)),
                    tooltip=graphviz.escape(node.details),
                    fillcolor=node.colour,
                    penwidth=str(_line_width(node)),
                    **_GRAPHVIZ_STYLES[node.kind],
                )
            for source, position in picture.edges:
                cluster.edge(f"{number}.{source}", f"{number}.{position}")
    for above, below in pairwise(range(len(pictures))):
        if of_graph["rankdir"] == "BT":
            _put_first(drawing, pictures, below, above)
        elif of_graph["rankdir"] == "TB":
            _put_first(drawing, pictures, above, below)
    return drawing


def _put_first(drawing: Any, pictures: Sequence[Picture], first: int, second: int) -> None:
    """Place one graph before another, by invisible edges."""
    between = f"between{first}.{second}"
    drawing.node(between, style="invis", shape="point", width="0", label="")
    has_consumers = {source for source, _ in pictures[first].edges}
    has_inputs = {position for _, position in pictures[second].edges}
    for position in range(len(pictures[first].nodes)):
        if position not in has_consumers:
            drawing.edge(f"{first}.{position}", between, style="invis")
    for position in range(len(pictures[second].nodes)):
        if position not in has_inputs:
            drawing.edge(between, f"{second}.{position}", style="invis")


def _legend_table(pictures: Sequence[Picture]) -> str:
    cells = "".join(f'<td bgcolor="{colour}">{html.escape(name)}</td>' for name, colour in make_legend(pictures))
    return f'<<table border="0" cellborder="1" cellspacing="4"><tr>{cells}</tr></table>>' if cells else ""


def _line_width(node: Node) -> float:
    return _WANTED_WIDTH if node.wanted else _USUAL_WIDTH


# -- Matplotlib -----------------------------------------------------------------------------------------------

_MATPLOTLIB_STYLES = {
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


def draw_with_matplotlib(pictures: Sequence[Picture], *, rankdir: str = "BT", dpi: float = 100) -> Drawing:
    """Draw with Matplotlib.

    Parameters
    ----------
    pictures : sequence of Picture
        Drawn below each other, the first at the top.
    rankdir : {"BT", "TB", "LR", "RL"}, optional
        Direction of the graph, as for Graphviz.
    dpi : float, optional
        Pixels per inch, in raster formats.
    """
    if rankdir not in ("BT", "TB", "LR", "RL"):
        raise ValueError(f"rankdir must be 'BT', 'TB', 'LR' or 'RL', not {rankdir!r}")
    import_required(
        "matplotlib",
        "Drawing chunk graphs with the matplotlib engine requires the `matplotlib` python library.\n\n"
        "Please either conda or pip install as follows:\n\n"
        "  conda install matplotlib            # either conda install\n"
        "  python -m pip install matplotlib    # or pip install",
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
    return _Figure(figure)


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
        axes.text(
            x,
            y,
            "\n".join(node.lines),
            # A name between two dollar signs is no formula.
            parse_math=False,
            fontsize=_FONT_SIZE,
            horizontalalignment="center",
            verticalalignment="center",
            bbox={"facecolor": node.colour, "linewidth": _line_width(node), **_MATPLOTLIB_STYLES[node.kind]},
        )


class _Figure:
    """A Matplotlib figure with the interface of `graphviz.Digraph`."""

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


# -- which of them --------------------------------------------------------------------------------------------

ENGINES: dict[str, Callable[..., Drawing]] = {
    "graphviz": draw_with_graphviz,
    "matplotlib": draw_with_matplotlib,
}
# Values of Dask's setting that can draw only Dask's own graphs.
_DRAW_FOR_DASK = frozenset({"cytoscape", "ipycytoscape"})


def choose_engine(name: str | None) -> Callable[..., Drawing]:
    """Return the function that draws.

    Parameters
    ----------
    name : str or None
        The user's engine. Default: Dask's setting ``visualization.engine``, else the first that is installed.

    Raises
    ------
    ValueError
        The engine is unknown.
    RuntimeError
        A requirement of the engine is not installed.
    """
    if name is None:
        configured = dask.config.get("visualization.engine", None)
        name = None if configured in _DRAW_FOR_DASK else configured
    if not name:
        if find_spec("graphviz") is not None and shutil.which("dot") is not None:
            return draw_with_graphviz
        if find_spec("matplotlib") is not None:
            return draw_with_matplotlib
        raise RuntimeError(
            "No visualization engine detected, please install graphviz (the python library and the `dot` program) "
            "or matplotlib: python -m pip install 'dask-mars[visualize]'"
        )
    if name not in ENGINES:
        known = ", ".join(ENGINES)
        raise ValueError(f"Visualization engine {name} not recognized: it must be one of {known}")
    if name == "graphviz" and find_spec("graphviz") is not None and shutil.which("dot") is None:
        raise RuntimeError(
            "The graphviz engine needs the `dot` program, which is not on the path. Install graphviz with conda "
            'or the package manager of your system, or draw with engine="matplotlib"'
        )
    return ENGINES[name]
