"""The front of array expressions (`dask_array`): each becomes a layer as of `dask.array`, for the layers' front.

An expression that this module does not know stays a layer of its own tasks, and its neighbours are not concerned.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from dask import is_dask_collection
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.utils import typename

from dask_mars.dask_api.arrays import ArrayOverlapLayer
from dask_mars.dask_api.core import Expr, _ExprSequence
from dask_mars.graph.chunks import flatten
from dask_mars.optimize.fronts.base import ReadOptions, Symbolic
from dask_mars.optimize.fronts.layers import divided
from dask_mars.optimize.fronts.parts import Residents

logger = logging.getLogger(__name__)


def read_array_expressions(dsk: Any, options: ReadOptions) -> Symbolic | None:
    """Read expressions of `dask_array`; return None if there are others among them."""
    if "dask_array" not in sys.modules or not isinstance(dsk, Expr):
        return None
    from dask_mars.dask_api.expressions import ArrayExpr

    roots = dsk.dependencies() if isinstance(dsk, _ExprSequence) else ()
    graph = _Graph()
    if not roots or not all(isinstance(root, ArrayExpr) and graph.add(root) for root in roots):
        return None
    layers = HighLevelGraph(graph.layers, graph.dependencies)
    residents = None if options.resident_bytes is None else Residents(options.resident_bytes)
    tasks, lazy = divided(layers, flatten(dsk.__dask_keys__()), options.fuse_layers, residents)
    return Symbolic(tasks, lazy, declared=layers)


class _Graph:
    """The layers of expressions, by name."""

    def __init__(self) -> None:
        self.layers: dict[str, Layer] = {}
        self.dependencies: dict[str, set[str]] = {}

    def add(self, root: Any) -> bool:
        """Add the layers of an expression and of all that it depends on; return False if others are among them."""
        from dask_mars.dask_api.expressions import ArrayExpr

        stack = [root]
        while stack:
            expression = stack.pop()
            if expression._name in self.layers:
                continue
            if not isinstance(expression, ArrayExpr):
                return False
            self._add(expression)
            stack += expression.dependencies()
        return True

    def _add(self, expression: Any) -> None:
        from dask_mars.dask_api.expressions import FusedBlockwise

        if isinstance(expression, FusedBlockwise):
            # The layers' front fuses its steps again, into programs that it can read.
            first, *others = expression.exprs
            layer = _layer(first, expression._name)
            if layer is not None:
                self._keep(expression._name, first, layer)
                for member in others:
                    self._keep(member._name, member, _layer(member, member._name))
                return
        self._keep(expression._name, expression, _layer(expression, expression._name))

    def _keep(self, name: str, expression: Any, layer: Layer | None) -> None:
        if layer is None:
            layer = MaterializedLayer(expression._layer())
        layer.collection_annotations = _said(expression)
        self.layers[name] = layer
        self.dependencies[name] = {source._name for source in expression.dependencies()}


def _said(expression: Any) -> dict[str, Any] | None:
    """Return what `dask.array` notes about the array of a layer, None if that is unknown."""
    try:
        meta = expression._meta
        return {"chunks": expression.chunks, "dtype": meta.dtype, "chunk_type": typename(type(meta))}
    except Exception:
        return None


def _layer(expression: Any, name: str) -> Layer | None:
    """Return an expression as a layer of blocks with a name, or None if it has to make its own tasks."""
    from dask_mars.dask_api import expressions

    makers: tuple[tuple[type, Callable[[Any, str], Layer | None]], ...] = (
        (expressions.Blockwise, _blockwise),
        (expressions.BroadcastTrick, _full),
        (expressions.Random, _random),
        (expressions.OverlapInternal, _overlap),
    )
    kind = type(expression)
    for known, make in makers:
        # A subclass may make its blocks in another way.
        if issubclass(kind, known) and kind._layer is known._layer:  # type: ignore[attr-defined]
            try:
                return make(expression, name)
            except Exception as reason:
                # Its own tasks are right, or raise what Dask's schedulers would.
                logger.debug("%s makes its own tasks: %r", name, reason)
                return None
    return None


def _blockwise(expression: Any, name: str) -> Layer | None:
    from dask_mars.dask_api.expressions import BlockwiseDep, blockwise, normalize_arg, unpack_collections

    arguments: list[Any] = []
    counts = {}
    collections: list[Any] = []
    for argument, indices in zip(expression.args[::2], expression.args[1::2], strict=True):
        given = argument
        if indices is None:
            given, found = unpack_collections(normalize_arg(argument))
            collections += found
        elif not isinstance(argument, BlockwiseDep):
            if argument.ndim != len(indices):
                return None
            given = argument._name
            counts[given] = argument.numblocks
        arguments += given, indices
    keywords = {}
    for keyword, value in expression.kwargs.items():
        keywords[keyword], found = unpack_collections(normalize_arg(value))
        collections += found
    if any(map(is_dask_collection, collections)):
        return None
    layer: Layer = blockwise(
        expression.func,
        name,
        expression.out_ind,
        *arguments,
        numblocks=counts,
        new_axes=expression.new_axes,
        concatenate=expression.concatenate,
        **keywords,
    )
    return layer


def _full(expression: Any, name: str) -> Layer | None:
    from dask_mars.dask_api.expressions import ArrayChunkShapeDep, blockwise, broadcast_trick

    # With the original of a function that dask-array has copied.
    function = partial(broadcast_trick(expression.func), **expression._wrapped_func.keywords)
    indices = tuple(range(expression.ndim))
    shapes = ArrayChunkShapeDep(expression.chunks)
    layer: Layer = blockwise(function, name, indices, shapes, indices, numblocks={})
    return layer


def _random(expression: Any, name: str) -> Layer | None:
    from dask_mars.dask_api.expressions import ArrayChunkShapeDep, ArrayValuesDep, blockwise

    if expression.dependencies():
        return None
    seeds, _, _, generator, apply = expression._info
    chunks = expression.chunks
    indices = tuple(range(len(chunks)))
    blocks = itertools.product(*[range(len(sizes)) for sizes in chunks])
    shapes = ArrayChunkShapeDep(expression._base_chunks)
    layer: Layer = blockwise(
        apply,
        name,
        indices,
        *(generator, None, expression.distribution, None),
        *(ArrayValuesDep(chunks, dict(zip(blocks, seeds, strict=True))), indices),
        *(shapes, indices[: len(shapes.chunks)]),
        *(tuple(expression.args), None, dict(expression.kwargs), None),
        numblocks={},
    )
    return layer


def _overlap(expression: Any, name: str) -> Layer | None:
    source = expression.array
    token = name.partition("-")[2]
    return ArrayOverlapLayer(source.name, expression.axes, source.chunks, source.numblocks, token)
