"""Names of Dask's dataframes; import it only after `dask.dataframe`."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from dask_mars.dask_api import Gone, is_gone, optional

_EXPR = "dask.dataframe.dask_expr._expr"
# For speed: partitionwise steps are fused, and become rows of one operand.
Blockwise, Fused, MapPartitions, optimize_blockwise_fusion = optional(
    _EXPR, "Blockwise", "Fused", "MapPartitions", "optimize_blockwise_fusion"
)
# Compared by identity: expressions with equal tasks for all partitions.
Apply, BlockwiseHead, BlockwiseHeadIndex, BlockwiseTail, BlockwiseTailIndex, Index = optional(
    _EXPR, "Apply", "BlockwiseHead", "BlockwiseHeadIndex", "BlockwiseTail", "BlockwiseTailIndex", "Index"
)
BlockwiseMerge = optional("dask.dataframe.dask_expr._merge", "BlockwiseMerge")
# Compared by identity: joins, for which Dask makes the graph of some partitions wrongly.
HashJoinP2P = optional("dask.dataframe.dask_expr._merge", "HashJoinP2P")
# For speed: functions mapped over lists become rows of one operand.
FromMap, FromMapProjectable = optional("dask.dataframe.dask_expr.io.io", "FromMap", "FromMapProjectable")
# For speed: partitions of a frame in memory.
FromPandas = optional("dask.dataframe.dask_expr.io.io", "FromPandas")
# The steps of a shuffle through files, which our store replaces.
DiskShuffle, barrier, collect = optional("dask.dataframe.dask_expr._shuffle", "DiskShuffle", "barrier", "collect")
# The steps of a shuffle by tasks, which our store replaces.
SimpleShuffle = optional("dask.dataframe.dask_expr._shuffle", "SimpleShuffle")
_concat = optional("dask.dataframe.core", "_concat")
# The steps of a shuffle between workers, and what does the same without them.
AssignPartitioningIndex, _shuffle_transfer = optional(
    "dask.dataframe.dask_expr._shuffle", "AssignPartitioningIndex", "_shuffle_transfer"
)
merge_chunk = optional("dask.dataframe.multi", "merge_chunk")
#: Names of distributed for such a shuffle, by module.
_P2P = {
    "_core": ("P2PBarrierTask", "p2p_barrier"),
    "_shuffle": ("DataFrameShuffleSpec", "shuffle_unpack"),
    "_merge": ("merge_unpack",),
}


def names_of_p2p() -> Any:
    """Return what distributed has for shuffles of dataframes, with stand-ins; None if Dask lacks a function."""
    if is_gone(AssignPartitioningIndex) or is_gone(merge_chunk):
        return None
    # The graph of a shuffle imports the modules that it needs.
    return SimpleNamespace(
        **{
            name: getattr(sys.modules.get(f"distributed.shuffle.{module}"), name, Gone)
            for module, names in _P2P.items()
            for name in names
        }
    )


def frame_in_memory(expression: Any) -> tuple[Any, Any, list[slice]] | None:
    """Return a `FromPandas`'s frame, the columns that are selected if any are, and the rows of each partition."""
    try:
        columns = expression.operand("columns")
        if columns is not None:
            columns = expression.columns[0] if expression._series else expression.columns
        starts = expression._locations()
        rows = [slice(starts[at], starts[at + 1]) for at in expression._partitions]
        return expression.frame._data, columns, rows
    except AttributeError:
        # For speed: Dask then cuts the frame.
        return None
