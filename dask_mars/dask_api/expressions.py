"""Names of dask-array, the arrays on expressions; import it only after `dask_array`.

The package has copies of functions of `dask.array` that return the same values. Our passes and native programs
know the originals, so a copy is replaced where it is met.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_mars.dask_api import is_gone, optional
from dask_mars.dask_api.core import ORIGINALS

if TYPE_CHECKING:
    from dask.blockwise import BlockwiseDep, blockwise
    from dask.delayed import unpack_collections
    from dask.layers import ArrayChunkShapeDep, ArraySliceDep, ArrayValuesDep
    from dask_array._blockwise import Blockwise, FusedBlockwise
    from dask_array._chunk import getitem
    from dask_array._core_utils import getter, getter_nofancy, normalize_arg
    from dask_array._expr import ArrayExpr, ChunksOverride, RootAlias
    from dask_array._overlap import OverlapInternal
    from dask_array._rechunk import TasksRechunk, plan_rechunk
    from dask_array.creation._ones_zeros import BroadcastTrick
    from dask_array.io._from_array import FromArray
    from dask_array.manipulation._expand import ExpandDims
    from dask_array.random._expr import Random
    from dask_array.reductions._arg_reduction import ArgChunk
    from dask_array.reductions._reduction import PartialReduce
    from dask_array.slicing._basic import SliceSlicesIntegers
    from dask_array.slicing._utils import _slice_1d
    from dask_array.stacking._concatenate import Concatenate

    broadcast_trick: Any
else:
    BlockwiseDep, blockwise = optional("dask.blockwise", "BlockwiseDep", "blockwise")
    unpack_collections = optional("dask.delayed", "unpack_collections")
    ArrayChunkShapeDep, ArraySliceDep, ArrayValuesDep = optional(
        "dask.layers", "ArrayChunkShapeDep", "ArraySliceDep", "ArrayValuesDep"
    )
    # For speed: expressions as layers; without these names they become plain tasks.
    ArrayExpr, ChunksOverride, RootAlias = optional("dask_array._expr", "ArrayExpr", "ChunksOverride", "RootAlias")
    Blockwise, FusedBlockwise = optional("dask_array._blockwise", "Blockwise", "FusedBlockwise")
    getter, getter_nofancy, normalize_arg = optional(
        "dask_array._core_utils", "getter", "getter_nofancy", "normalize_arg"
    )
    BroadcastTrick = optional("dask_array.creation._ones_zeros", "BroadcastTrick")
    broadcast_trick = optional("dask.array.wrap", "broadcast_trick")
    Random = optional("dask_array.random._expr", "Random")
    FromArray = optional("dask_array.io._from_array", "FromArray")
    TasksRechunk, plan_rechunk = optional("dask_array._rechunk", "TasksRechunk", "plan_rechunk")
    OverlapInternal = optional("dask_array._overlap", "OverlapInternal")
    ExpandDims = optional("dask_array.manipulation._expand", "ExpandDims")
    ArgChunk = optional("dask_array.reductions._arg_reduction", "ArgChunk")
    PartialReduce = optional("dask_array.reductions._reduction", "PartialReduce")
    SliceSlicesIntegers = optional("dask_array.slicing._basic", "SliceSlicesIntegers")
    _slice_1d = optional("dask_array.slicing._utils", "_slice_1d")
    Concatenate = optional("dask_array.stacking._concatenate", "Concatenate")
    getitem = optional("dask_array._chunk", "getitem")

#: Copies of functions: the module that has them, that of the originals, and their names.
_COPIES = (
    ("dask_array._chunk", "dask.array.chunk", ("astype", "getitem", "trim")),
    (
        "dask_array._core_utils",
        "dask.array.core",
        ("_enforce_dtype", "concatenate3", "finalize", "getter", "getter_inline", "getter_nofancy"),
    ),
    ("dask_array._histogram", "dask.array.routines", ("_block_hist",)),
    ("dask_array.io._store", "dask.array.core", ("load_chunk", "load_store_chunk")),
    ("dask_array.linalg._qr", "dask.array.linalg", ("_wrapped_qr",)),
    ("dask_array.linalg._tensordot", "dask.array.routines", ("_matmul",)),
    ("dask_array.random._expr", "dask.array.random", ("_apply_random_func",)),
    (
        "dask_array.reductions._common",
        "dask.array.reductions",
        ("chunk_max", "chunk_min", "mean_chunk", "mean_combine", "mean_agg", "moment_chunk", "moment_combine")
        + ("moment_agg", "nannumel", "numel"),
    ),
)


def _register() -> None:
    for module, original_module, names in _COPIES:
        for name in names:
            copy, original = optional(module, name), optional(original_module, name)
            if not (is_gone(copy) or is_gone(original)) and copy is not original:
                ORIGINALS[id(copy)] = copy, original
    # A function within another.
    chunk_sum = optional("dask.array.routines", "_chunk_sum")
    if not is_gone(chunk_sum):
        name = "_sum_wo_cat.<locals>._chunk_sum"
        ORIGINALS["dask_array.linalg._tensordot", name] = None, chunk_sum


_register()
