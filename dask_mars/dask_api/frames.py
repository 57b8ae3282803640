"""Names of Dask's dataframes; to be imported once `dask.dataframe` is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_mars.dask_api import optional

if TYPE_CHECKING:
    from dask.dataframe.dask_expr._expr import (
        Apply,
        Blockwise,
        BlockwiseHead,
        BlockwiseHeadIndex,
        BlockwiseTail,
        BlockwiseTailIndex,
        Fused,
        Index,
        MapPartitions,
        optimize_blockwise_fusion,
    )
    from dask.dataframe.dask_expr._merge import BlockwiseMerge
    from dask.dataframe.dask_expr._shuffle import DiskShuffle, barrier, collect
else:
    _EXPR = "dask.dataframe.dask_expr._expr"
    # For speed: partitionwise steps are fused, and are rows of one operand.
    Blockwise, Fused, MapPartitions, optimize_blockwise_fusion = optional(
        _EXPR, "Blockwise", "Fused", "MapPartitions", "optimize_blockwise_fusion"
    )
    # Compared by identity: expressions whose partitions are made alike.
    Apply, BlockwiseHead, BlockwiseHeadIndex, BlockwiseTail, BlockwiseTailIndex, Index = optional(
        _EXPR, "Apply", "BlockwiseHead", "BlockwiseHeadIndex", "BlockwiseTail", "BlockwiseTailIndex", "Index"
    )
    BlockwiseMerge = optional("dask.dataframe.dask_expr._merge", "BlockwiseMerge")
    # The steps of a shuffle through files, which the store replaces.
    DiskShuffle, barrier, collect = optional(
        "dask.dataframe.dask_expr._shuffle", "DiskShuffle", "barrier", "collect"
    )
