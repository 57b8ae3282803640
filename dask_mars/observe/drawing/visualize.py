"""`visualize`: from Dask's collections to a picture of the chunk graphs that compute them."""

from __future__ import annotations

import os
import re
import struct
from typing import Any, Literal

from dask.dot import graphviz_to_file

from dask_mars import config, units
from dask_mars.dask_api.core import collections_to_expr, unpack_collections
from dask_mars.graph.chunks import ChunkGraph, flatten
from dask_mars.labels import label_of
from dask_mars.observe.drawing.figure import draw
from dask_mars.observe.drawing.picture import make_layers_picture, make_picture
from dask_mars.observe.graphs import before_and_after
from dask_mars.scheduler.policies.plugins import load_policy

#: Default limit of chunks: drawing these takes some ten seconds, and far longer for more.
LIMIT = 5000
#: Maximum number of chunks in a graph that is drawn by chunks; more are unreadable.
_MOST_CHUNKS = 50
#: Width of a cell's output on most screens, in pixels.
_WIDTH = 900
_PNG = b"\x89PNG\r\n\x1a\n"
_SVG_TAG = re.compile(r"<svg\b(?![^>]*\bstyle=)")


def visualize(
    *collections: Any,
    filename: str | os.PathLike[str] | None = "mars",
    format: str | None = None,
    traverse: bool = True,
    optimize_graph: bool = True,
    composed: bool | Literal["both"] = "both",
    detail: Literal["auto", "layers", "chunks"] = "auto",
    num_workers: int | None = None,
    limit: int | None = LIMIT,
    **attributes: Any,
) -> Any:
    """Draw the graph of chunks that computes collections, before and after composing.

    Chunks are coloured by the worker that would run them with equal durations, and numbered by priority: the order
    in which a single worker would run them; both according to ``dask-mars.policy``. An ellipse is a chunk of one
    of Dask's layers; a rounded box is a composed one, with the number of its parts; a dashed box is a known value.
    Requested chunks have a thick outline. Graphs of more than 50 chunks are drawn by layers, unless `detail` says
    otherwise. Notebooks scale pictures to their width. As in `dask.visualize`, the task that assembles a
    collection is left out. With Dask's setting ``cache`` there is no composing, as in a computation. Callbacks for
    single tasks also prevent composing, but that is not drawn.

    Parameters
    ----------
    *collections : object
        Dask collections, also within Python's own. Other objects are ignored.
    filename : str or None, optional
        File to write. Without a suffix it gets that of `format`; None writes no file.
    format : {"png", "pdf", "svg", "jpeg"}, optional
        Default: from the suffix of `filename`, else ``"png"``.
    traverse : bool, optional
        Search lists, dicts and so on for collections.
    optimize_graph : bool, optional
        As for `dask.compute`. Without it there is no composing either.
    composed : bool or "both", optional
        Draw the graph after composing, before it, or both, the one before at the top.
    detail : {"auto", "layers", "chunks"}, optional
        Draw each chunk, or each layer with the number of its chunks and their size. Default: layers if there are
        more than 50 chunks.
    num_workers : int, optional
        Number of workers. Default: as many as `dask_mars.get` would have.
    limit : int or None, optional
        Maximum number of chunks to draw, in both graphs together, when drawing by chunks.
    **attributes
        ``rankdir``, the direction: ``"BT"``, ``"TB"``, ``"LR"`` or ``"RL"``; and ``dpi``.

    Returns
    -------
    IPython.display.Image, IPython.display.SVG or None
        As `dask.visualize`: None if IPython is not installed or cannot show the format.

    Raises
    ------
    ValueError
        There are no collections, or more chunks than `limit`; or an argument is invalid.
    RuntimeError
        Matplotlib is not installed.

    Examples
    --------
    >>> import dask.array as da, dask_mars
    >>> a = da.random.random((1000, 1000), chunks=500)
    >>> b = da.random.random((1000, 1000), chunks=500)
    >>> dask_mars.visualize((a + b).sum(), filename="sum.svg")  # doctest: +SKIP
    """
    if detail not in ("auto", "layers", "chunks"):
        raise ValueError(f"detail must be 'auto', 'layers' or 'chunks', not {detail!r}")
    if composed not in (True, False, "both"):
        raise ValueError(f"composed must be True, False or 'both', not {composed!r}")
    settings = config.settings(num_workers)
    load_policy(settings.policy)
    before, after = _graphs(collections, traverse, optimize_graph, settings)
    wanted = _titled(before, after, composed)
    if detail == "layers" or (detail == "auto" and max([len(graph) for _, graph in wanted]) > _MOST_CHUNKS):
        # Rows have few layers, but there may be many rows: screens are wider than high.
        attributes.setdefault("rankdir", "LR")
        pictures = [make_layers_picture(title, graph, before, label_of, units.size) for title, graph in wanted]
    else:
        _check_size([graph for _, graph in wanted], limit)
        pictures = [
            make_picture(
                title, graph, before, settings.num_workers, label_of, settings.policy, settings.assignment
            )
            for title, graph in wanted
        ]
    path = None if filename is None else os.fspath(filename)
    return _fitted(graphviz_to_file(draw(pictures, **attributes), path, format))


def _graphs(
    collections: tuple[Any, ...], traverse: bool, optimize_graph: bool, settings: config.Settings
) -> tuple[ChunkGraph, ChunkGraph]:
    """Return the graph of collections before and after composing."""
    found, _ = unpack_collections(*collections, traverse=traverse)
    if not found:
        raise ValueError("there is nothing to draw: no Dask collections given")
    # As in `dask.persist`, which also needs no task to assemble a collection.
    expression = collections_to_expr(found, optimize_graph).optimize()
    keys = flatten(list(expression.__dask_keys__()))
    return before_and_after(expression, keys, settings)


def _titled(before: ChunkGraph, after: ChunkGraph, composed: bool | str) -> list[tuple[str, ChunkGraph]]:
    """Return the graphs to draw with their titles."""
    if before.keys == after.keys:
        return [(f"{units.plural(len(after), 'chunk')}, nothing to compose", after)]
    parts = (("before", before), ("after", after))
    both = [(f"{when} composing: {units.plural(len(graph), 'chunk')}", graph) for when, graph in parts]
    return both if composed == "both" else [both[bool(composed)]]


def _check_size(graphs: list[ChunkGraph], limit: int | None) -> None:
    count = sum(map(len, graphs))
    if limit is not None and count > limit:
        smaller = "composed=True draws only the graph after composing; " if len(graphs) > 1 else ""
        raise ValueError(
            f"{count:,} chunks are too many to draw: the limit is {limit:,}. Draw the same computation on fewer "
            f"chunks. {smaller}limit={count} draws them all, which may take very long"
        )


def _fitted(shown: Any) -> Any:
    """Return a displayed object, scaled down if it is a picture that is too wide."""
    data = getattr(shown, "data", None)
    if isinstance(data, bytes) and data.startswith(_PNG):
        width, _ = struct.unpack(">II", data[16:24])
        if width > _WIDTH and getattr(shown, "width", 0) is None:
            shown.width = _WIDTH
    elif isinstance(data, str) and "<svg" in data:
        shown.data = _SVG_TAG.sub('<svg style="max-width: 100%; height: auto"', data, count=1)
    return shown
