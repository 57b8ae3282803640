"""Names of Dask's arrays; importing this loads `dask.array`. Other fronts and passes use `loaded`."""

from __future__ import annotations

from typing import Any

import dask

from dask_mars.dask_api import optional
from dask_mars.errors import UnknownDask

try:
    # Without recognizing stores we would write to a copy of the user's array.
    from dask.array.core import load_chunk, load_store_chunk
except ImportError as _error:
    raise UnknownDask(dask.__version__, str(_error)) from None

# For speed: layers as rows of chunks.
optimize_arrays, fuse_slice = optional("dask.array.optimization", "optimize", "fuse_slice")
concatenate_axes, concatenate_shaped = optional("dask.array.core", "concatenate_axes", "concatenate_shaped")
# Compared by identity: functions with native programs.
finalize, _enforce_dtype, getter, getter_inline, getter_nofancy = optional(
    "dask.array.core", "finalize", "_enforce_dtype", "getter", "getter_inline", "getter_nofancy"
)
astype, getitem = optional("dask.array.chunk", "astype", "getitem")
broadcast_trick = optional("dask.array.wrap", "_broadcast_trick_inner.func")
_wrapped_qr = optional("dask.array.linalg", "_wrapped_qr")
_apply_random_func = optional("dask.array.random", "_apply_random_func")
_block_hist, _chunk_sum, _matmul = optional("dask.array.routines", "_block_hist", "_chunk_sum", "_matmul")
chunk_max, chunk_min, mean_chunk, moment_chunk, nannumel, numel = optional(
    "dask.array.reductions", "chunk_max", "chunk_min", "mean_chunk", "moment_chunk", "nannumel", "numel"
)
_cumprod_merge, _cumsum_merge = optional("dask.array.reductions", "_cumprod_merge", "_cumsum_merge")
reductions = optional("dask.array", "reductions")
