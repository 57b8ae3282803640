"""Names of layers, and those of `dask.array` if the program has imported it: a graph without arrays needs none."""

from __future__ import annotations

from typing import Any

from dask_mars.dask_api import Gone, optional
from dask_mars.import_locks import is_loaded

# For speed: layers as rows of chunks.
Blockwise, _get_coord_mapping, blockwise_token, optimize_blockwise = optional(
    "dask.blockwise", "Blockwise", "_get_coord_mapping", "blockwise_token", "optimize_blockwise"
)
ArrayChunkShapeDep, ArrayOverlapLayer = optional("dask.layers", "ArrayChunkShapeDep", "ArrayOverlapLayer")


class _Arrays:
    """Has the names of `dask_mars.dask_api.arrays`: stand-ins until the program has imported `dask.array`."""

    def __getattr__(self, name: str) -> Any:
        if not is_loaded("dask.array"):
            return Gone
        from dask_mars.dask_api import arrays

        vars(self)[name] = found = getattr(arrays, name)
        return found


arrays = _Arrays()
