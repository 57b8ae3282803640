"""The front of array expressions (`dask_array`): each becomes a layer as of `dask.array`, for the layers' front.

An expression that this module does not know stays a layer of its own tasks, and its neighbours are not concerned.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from dask import is_dask_collection
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.utils import typename

from dask_mars.dask_api import is_gone
from dask_mars.dask_api.core import CompositeExpr, Expr, TaskRef, _ExprSequence, original_of
from dask_mars.dask_api.loaded import ArrayOverlapLayer, arrays
from dask_mars.graph.chunks import flatten
from dask_mars.lazy_numpy import np
from dask_mars.optimize.fronts.array_blocks import (
    ConcatenatedBlocks,
    CumulativeBlocks,
    ExpressionLayer,
    HistogramBlocks,
    OtherNames,
    ReducedBlocks,
    ReshapedBlocks,
    ShuffledBlocks,
    SlicedBlocks,
    SqueezedBlocks,
    StackedBlocks,
    name_of_scans,
)
from dask_mars.optimize.fronts.base import LayerRecords, ReadOptions, Symbolic
from dask_mars.optimize.fronts.layers import divided
from dask_mars.optimize.fronts.parts import Residents
from dask_mars.optimize.fronts.rechunk import DirectRechunk, are_known, array_bytes

logger = logging.getLogger(__name__)

#: Maximum edges of a histogram, and indices of a shuffle, that each block has among its literals.
_MOST_EDGES = _MOST_INDICES = 1 << 12


def read_array_expressions(dsk: Any, options: ReadOptions) -> Symbolic | None:
    """Read expressions of `dask_array`; return None if there are others among them."""
    if "dask_array" not in sys.modules or not isinstance(dsk, Expr):
        return None
    roots = dsk.dependencies() if isinstance(dsk, _ExprSequence) else ()
    graph = _Graph()
    if not roots or not all(map(graph.add, roots)):
        return None
    residents = None if options.resident_bytes is None else Residents(options.resident_bytes)
    graph.reserve_rechunks(residents if options.fuse_layers else None)
    layers = HighLevelGraph(graph.layers, graph.dependencies)
    tasks, lazy = divided(layers, flatten(dsk.__dask_keys__()), options.fuse_layers, residents)
    return Symbolic(tasks, lazy, fuses_slices=False, declared=layers)


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
            if not isinstance(expression, (ArrayExpr, CompositeExpr)):
                return False
            self._add(expression)
            stack += expression.dependencies()
        return True

    def reserve_rechunks(self, residents: Residents | None) -> None:
        """Leave rechunks and shuffles in one step only where memory has room for their arrays."""
        sizes = {name: size for name, layer in self.layers.items() if (size := _resident_bytes(layer))}
        if residents is not None and residents.reserve(sum(sizes.values())):
            return
        for name in sizes:
            layer = self.layers[name]
            self.layers[name] = tasks = MaterializedLayer(dict(layer))
            tasks.collection_annotations = layer.collection_annotations

    def _add_source(self, expression: Any) -> None:
        """Add the layer of the object that blocks are read from, once for all of them."""
        source = _original(expression._name)
        self.layers[source] = MaterializedLayer({source: expression.array})
        self.dependencies[source] = set()
        self.dependencies[expression._name].add(source)

    def _add(self, expression: Any) -> None:
        from dask_mars.dask_api.expressions import FusedBlockwise

        if isinstance(expression, FusedBlockwise):
            # The layers' front fuses its steps again, into programs that it can read.
            first, *others = expression.exprs
            layer = None if any(map(_contracts, expression.exprs)) else _layer(first, expression._name)
            if layer is not None:
                self._keep(expression._name, first, layer)
                for member in others:
                    self._keep(member._name, member, _layer(member, member._name))
                return
        self._keep(expression._name, expression, _layer(expression, expression._name))

    def _add_scans(self, expression: Any) -> None:
        """Add the layer of the running sums of each block alone."""
        name = name_of_scans(expression._name)
        self.layers[name] = layer = _scans(expression, name)
        layer.collection_annotations = _said(expression)
        self.dependencies[name] = self.dependencies[expression._name]
        self.dependencies[expression._name] = {name}

    def _keep(self, name: str, expression: Any, layer: Layer | None) -> None:
        from dask_mars.dask_api.expressions import CumReduction, FromArray

        if layer is None:
            layer = MaterializedLayer(expression._layer())
        layer.collection_annotations = _said(expression)
        self.layers[name] = layer
        self.dependencies[name] = {source._name for source in expression.dependencies()}
        if layer.is_materialized():
            return
        if isinstance(expression, FromArray) and not expression.inline_array:
            self._add_source(expression)
        elif isinstance(expression, CumReduction):
            self._add_scans(expression)


def _resident_bytes(layer: Layer) -> int:
    """Return the bytes of the blocks whose parts a layer reads in place."""
    if isinstance(layer, DirectRechunk):
        return array_bytes(layer.new, (layer.collection_annotations or {})["dtype"])
    return layer.resident_bytes if isinstance(layer, ExpressionLayer) else 0


def _contracts(expression: Any) -> bool:
    """Return whether a step of a fused expression gets a block where alone it would get a list of one."""
    from dask_mars.dask_api.expressions import Blockwise

    if not isinstance(expression, Blockwise):
        return False
    known = {*expression.out_ind, *expression.new_axes}
    return not all(known.issuperset(indices) for indices in expression.args[1::2] if indices is not None)


def _said(expression: Any) -> dict[str, Any] | None:
    """Return the annotations of the collection that `dask.array` gives a layer, None if they are unknown."""
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
        (expressions.BroadcastTo, _broadcast),
        (expressions.Random, _random),
        (expressions.OverlapInternal, _overlap),
        (expressions.PartialReduce, partial(_blocks, ReducedBlocks)),
        (expressions.SliceSlicesIntegers, partial(_blocks, SlicedBlocks)),
        (expressions.RootAlias, partial(_blocks, OtherNames)),
        (expressions.ChunksOverride, partial(_blocks, OtherNames)),
        (expressions.Concatenate, _concatenate),
        (expressions.Stack, partial(_blocks, StackedBlocks)),
        (expressions.ReshapeLowered, partial(_blocks, ReshapedBlocks)),
        (expressions.ExpandDims, _expand),
        (expressions.Squeeze, partial(_blocks, SqueezedBlocks)),
        (expressions.CumReduction, _cumulative),
        (expressions.HistogramBinned, _histogram),
        (expressions.ArgChunk, _arg_chunk),
        (expressions.FromArray, _from_array),
        (expressions.FromMap, _from_map),
        (expressions.TasksRechunk, _rechunk),
        (expressions.Shuffle, _shuffle),
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


def _mapped(
    function: Callable[..., Any],
    name: str,
    indices: Iterable[int],
    *arguments: Any,
    source: Any = None,
    **more: Any,
) -> Layer:
    """Return a layer of a function of the blocks of an array, or of none, and of other arguments."""
    from dask_mars.dask_api.expressions import blockwise

    numblocks = {} if source is None else {source._name: source.numblocks}
    layer: Layer = blockwise(function, name, tuple(indices), *arguments, numblocks=numblocks, **more)
    return layer


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
    from dask_mars.dask_api.expressions import ArrayChunkShapeDep, broadcast_trick

    # With the original of a function that dask-array has copied.
    function = partial(broadcast_trick(expression.func), **expression._wrapped_func.keywords)
    indices = tuple(range(expression.ndim))
    return _mapped(function, name, indices, ArrayChunkShapeDep(expression.chunks), indices)


def _broadcast(expression: Any, name: str) -> Layer | None:
    from dask_mars.dask_api.expressions import ArrayChunkShapeDep

    source, chunks = expression.array, expression.chunks
    indices = tuple(range(len(chunks)))
    of_source = source._name, indices[len(chunks) - source.ndim :]
    shapes = ArrayChunkShapeDep(chunks), indices
    return _mapped(np.broadcast_to, name, indices, *of_source, *shapes, source=source)


def _random(expression: Any, name: str) -> Layer | None:
    from dask_mars.dask_api.expressions import ArrayChunkShapeDep, ArrayValuesDep

    if expression.dependencies():
        return None
    seeds, _, _, generator, apply = expression._info
    chunks = expression.chunks
    indices = tuple(range(len(chunks)))
    # Without a tuple for each block.
    by_block = np.empty(len(seeds), object)
    by_block[:] = seeds
    shapes = ArrayChunkShapeDep(expression._base_chunks)
    return _mapped(
        apply,
        name,
        indices,
        *(generator, None, expression.distribution, None),
        *(ArrayValuesDep(chunks, by_block.reshape(tuple(map(len, chunks)))), indices),
        *(shapes, indices[: len(shapes.chunks)]),
        *(tuple(expression.args), None, dict(expression.kwargs), None),
    )


def _overlap(expression: Any, name: str) -> Layer | None:
    source = expression.array
    token = name.partition("-")[2]
    return ArrayOverlapLayer(source.name, expression.axes, source.chunks, source.numblocks, token)


def _blocks(records: Callable[..., LayerRecords], expression: Any, name: str) -> Layer | None:
    return ExpressionLayer(name, expression, records)


def _rechunk(expression: Any, name: str) -> Layer | None:
    from dask_mars.dask_api.expressions import plan_rechunk

    source, meta, new = expression.array, expression._meta, expression.chunks
    if type(meta) is not np.ndarray or meta.dtype.hasobject or not are_known(source.chunks, new):
        return None
    limits = expression.threshold, expression.block_size_limit
    if len(plan_rechunk(source.chunks, new, meta.dtype.itemsize, *limits)) > 1:
        return None
    return DirectRechunk(ExpressionLayer(name, expression, OtherNames), name, source._name, source.chunks, new)


def _shuffle(expression: Any, name: str) -> Layer | None:
    source, meta = expression.array, expression._meta
    if type(meta) is not np.ndarray or meta.dtype.hasobject or not are_known(source.chunks, source.chunks):
        return None
    if max(map(len, expression._new_chunks), default=0) > _MOST_INDICES:
        return None
    return ExpressionLayer(name, expression, ShuffledBlocks, array_bytes(source.chunks, meta.dtype))


def _concatenate(expression: Any, name: str) -> Layer | None:
    # Blocks without elements may be more in one array than in another.
    if not all(size > 0 for sizes in expression.chunks for size in sizes):
        return None
    return ExpressionLayer(name, expression, ConcatenatedBlocks)


def _expand(expression: Any, name: str) -> Layer | None:
    source, new = expression.array, sorted(expression.axes)
    indices = range(expression.ndim)
    of_source = source._name, tuple([axis for axis in indices if axis not in new])
    more = {"source": source, "new_axes": dict.fromkeys(new, 1)}
    return _mapped(np.expand_dims, name, indices, *of_source, tuple(new), None, **more)


def _arg_chunk(expression: Any, name: str) -> Layer | None:
    from dask_mars.dask_api.expressions import ArrayValuesDep

    source, axis = expression.array, expression.axis
    starts = [list(itertools.accumulate(sizes[:-1], initial=0)) for sizes in source.chunks]
    offsets = itertools.product(*starts)
    values = [(offset, source.shape) if expression.ravel else offset[axis[0]] for offset in offsets]
    blocks = itertools.product(*map(range, source.numblocks))
    indices = tuple(range(source.ndim))
    by_block = ArrayValuesDep(source.chunks, dict(zip(blocks, values, strict=True))), indices
    of_source = source._name, indices, axis, None
    return _mapped(expression.chunk_func, name, indices, *of_source, *by_block, source=source)


def _cumulative(expression: Any, name: str) -> Layer | None:
    # An unknown size is NaN, which is unequal to itself.
    if any(size != size for sizes in expression.chunks for size in sizes):
        return None
    _takes_dtype(expression.func)
    return ExpressionLayer(name, expression, CumulativeBlocks)


def _scans(expression: Any, name: str) -> Layer:
    """Return the layer of a cumulative function of each block alone."""
    source, function = expression.array, partial(expression.func, axis=expression.axis)
    if _takes_dtype(expression.func):
        function = partial(function, dtype=expression.dtype)
    indices = tuple(range(source.ndim))
    return _mapped(function, name, indices, source._name, indices, source=source)


def _takes_dtype(function: Callable[..., Any]) -> bool:
    """Return whether dask-array passes a dtype to a cumulative function."""
    try:
        return "dtype" in inspect.signature(function).parameters
    except ValueError:
        is_ufunc = isinstance(getattr(function, "__self__", None), np.ufunc)
        return is_ufunc and function.__name__ == "accumulate"


def _histogram(expression: Any, name: str) -> Layer | None:
    bins, ends = expression.bins, (expression.range_start, expression.range_stop)
    # Edges to compute are chunks themselves, and many edges are stored once for all blocks.
    if type(bins) is not np.ndarray or bins.size > _MOST_EDGES:
        return None
    if any(isinstance(end, Expr) or is_dask_collection(end) for end in ends):
        return None
    return ExpressionLayer(name, expression, HistogramBlocks)


def _original(name: str) -> str:
    """Return the key of the object that the blocks of a layer are read from, as Dask names it."""
    return f"original-{name}"


def _from_array(expression: Any, name: str) -> Layer | None:
    from dask_mars.dask_api import expressions

    source, lock, region = expression.array, expression.lock, expression._region
    if type(source) in (np.ndarray, np.ma.MaskedArray) and not lock:
        # Dask cuts arrays in memory at once, into blocks that are views.
        return None
    get = expression.operand("getitem")
    if get is None:
        get = arrays.getter if expression.fancy else arrays.getter_nofancy
    elif original_of(get) not in (arrays.getter, arrays.getter_nofancy):
        return None
    if is_gone(get):
        return None
    slices = expressions.ArraySliceDep(expression.chunks)
    if region is not None:
        offsets = [part.indices(length)[0] for part, length in zip(region, source.shape, strict=True)]
        slices.starts = tuple(
            [
                tuple([start + offset for start in starts])
                for starts, offset in zip(slices.starts, offsets, strict=True)
            ]
        )
    is_plain = expression.asarray_arg and not lock
    indices = tuple(range(len(expression.chunks)))
    arguments = source if expression.inline_array else TaskRef(_original(name)), None, slices, indices
    options = {} if is_plain else {"asarray": expression.asarray_arg, "lock": lock}
    return _mapped(get, name, indices, *arguments, _data_producer=True, **options)


def _from_map(expression: Any, name: str) -> Layer | None:
    from dask_mars.dask_api.expressions import ArrayChunkShapeDep, ArrayValuesDep, _map_block

    function, values = expression.operand("func"), expression.operand("values")
    keywords, chunks = expression.operand("kwargs") or {}, expression.chunks
    if is_gone(_map_block) or any(map(is_dask_collection, [function, *keywords.values()])):
        return None
    indices = tuple(range(len(chunks)))
    blocks = ArrayValuesDep(chunks, values), indices, ArrayChunkShapeDep(chunks), indices
    return _mapped(_map_block, name, indices, function, None, *blocks, keywords, None)
