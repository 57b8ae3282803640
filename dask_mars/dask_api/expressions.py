"""Names of dask-array, the arrays on expressions; import it only after `dask_array`.

The package has copies of functions of `dask.array` that return the same values. Our passes and native programs
know the originals, so a copy is replaced where it is met.
"""

from __future__ import annotations

from typing import Any

from dask_mars.dask_api import arrays, is_gone, optional
from dask_mars.dask_api.core import ORIGINALS

BlockwiseDep, blockwise = optional("dask.blockwise", "BlockwiseDep", "blockwise")
unpack_collections = optional("dask.delayed", "unpack_collections")
ArrayChunkShapeDep, ArraySliceDep, ArrayValuesDep = optional(
    "dask.layers", "ArrayChunkShapeDep", "ArraySliceDep", "ArrayValuesDep"
)
# For speed: expressions as layers; without these names they become plain tasks.
ArrayExpr, ChunksOverride, RootAlias = optional("dask_array._expr", "ArrayExpr", "ChunksOverride", "RootAlias")
Blockwise, FusedBlockwise = optional("dask_array._blockwise", "Blockwise", "FusedBlockwise")
normalize_arg = optional("dask_array._core_utils", "normalize_arg")
BroadcastTo = optional("dask_array._broadcast_to", "BroadcastTo")
BroadcastTrick = optional("dask_array.creation._ones_zeros", "BroadcastTrick")
broadcast_trick = optional("dask.array.wrap", "broadcast_trick")
Random = optional("dask_array.random._expr", "Random")
FromArray = optional("dask_array.io._from_array", "FromArray")
FromMap, _map_block = optional("dask_array.io._from_map", "FromMap", "_map_block")
TasksRechunk, plan_rechunk = optional("dask_array._rechunk", "TasksRechunk", "plan_rechunk")
Shuffle, _getitem, concatenate_arrays = optional(
    "dask_array._shuffle", "Shuffle", "_getitem", "concatenate_arrays"
)
OverlapInternal = optional("dask_array._overlap", "OverlapInternal")
ExpandDims = optional("dask_array.manipulation._expand", "ExpandDims")
ReshapeLowered = optional("dask_array.manipulation._reshape", "ReshapeLowered")
Squeeze = optional("dask_array.manipulation._squeeze", "Squeeze")
ArgChunk = optional("dask_array.reductions._arg_reduction", "ArgChunk")
PartialReduce = optional("dask_array.reductions._reduction", "PartialReduce")
CumReduction, _cum_tail = optional("dask_array.reductions._cumulative", "CumReduction", "_cum_tail")
HistogramBinned = optional("dask_array._histogram", "HistogramBinned")
SliceSlicesIntegers = optional("dask_array.slicing._basic", "SliceSlicesIntegers")
_slice_1d = optional("dask_array.slicing._utils", "_slice_1d")
Concatenate = optional("dask_array.stacking._concatenate", "Concatenate")
Stack = optional("dask_array.stacking._stack", "Stack")

#: Functions of `dask.array` that dask-array has copied, by the module of the copies.
_COPIED = {
    "dask_array._chunk": ("astype", "getitem"),
    "dask_array._core_utils": ("_enforce_dtype", "finalize", "getter", "getter_inline", "getter_nofancy"),
    "dask_array._histogram": ("_block_hist",),
    "dask_array.io._store": ("load_chunk", "load_store_chunk"),
    "dask_array.linalg._qr": ("_wrapped_qr",),
    "dask_array.linalg._tensordot": ("_matmul",),
    "dask_array.random._expr": ("_apply_random_func",),
    "dask_array.reductions._common": ("chunk_max", "chunk_min", "mean_chunk", "moment_chunk", "nannumel", "numel"),
    "dask_array.reductions._cumulative": ("_cumprod_merge", "_cumsum_merge"),
}
_COPIES = [(optional(module, name), getattr(arrays, name)) for module, names in _COPIED.items() for name in names]
ORIGINALS.update(
    (id(copy), (copy, original)) for copy, original in _COPIES if not (is_gone(copy) or is_gone(original))
)
if not is_gone(arrays._chunk_sum):
    # A function within another.
    ORIGINALS["dask_array.linalg._tensordot", "_sum_wo_cat.<locals>._chunk_sum"] = None, arrays._chunk_sum
