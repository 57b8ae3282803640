"""Replaces functions of an operand by faster ones before its first run."""

from __future__ import annotations

import sys
from functools import partial
from types import FunctionType
from typing import Any

import dask
import numpy as np

from dask_mars.graph.callables import attribute
from dask_mars.graph.chunks import Operand
from dask_mars.worker.grouped_sums import grouped_sums
from dask_mars.worker.number_keys import number_keys
from dask_mars.worker.parquet_reads import native_reads
from dask_mars.worker.partition_numbers import partition_numbers
from dask_mars.worker.running_sums import running_sums
from dask_mars.worker.substitutes import with_substitutes
from dask_mars.worker.table_reads import joined_reads
from dask_mars.worker.text_keys import text_keys
from dask_mars.worker.zarr_chunks import direct_zarr

#: Modules of functions that are rewritten even in operands of a single step.
_WORTH_A_LOOK = frozenset({"dask.array.random", "dask.array.reductions", "dask.array.routines"})
#: Packages whose functions are not traced.
_LIBRARIES = frozenset({"dask", "dask_array", "dask_mars", "flox", "numpy", "pandas", "scipy", "xarray"})


def made_fast(operand: Operand) -> Operand:
    """Replace functions by faster substitutes, and chains of elementwise steps as the configuration says."""
    reductions = dask.config.get("dask-mars.expressions.reductions", True)
    sums = partial(grouped_sums, reductions=reductions)
    others = [native_reads, number_keys, partition_numbers]
    # Without it there are no arrays, and tracing would import it.
    if "dask.array" in sys.modules:
        others.append(_traced)
    operand = with_substitutes(text_keys(joined_reads(operand)), direct_zarr, sums, running_sums, *others)
    # A single step gains nothing, except Dask's partial moments, random numbers and histograms.
    if len(operand.steps) < 2:
        function = operand.functions[0]
        if type(function) is not partial and attribute(function, "__module__") not in _WORTH_A_LOOK:
            return operand
    if not ("dask.array" in sys.modules or any(map(_is_elementwise, operand.functions))):
        return operand
    # This imports Dask's arrays, for which other operands need not wait.
    from dask_mars.expressions.rewrite import with_expressions

    return with_expressions(operand, reductions)


def _is_elementwise(function: Any) -> bool:
    """Return whether a function may be part of an expression."""
    return type(function) is np.ufunc or attribute(function, "__module__") == "_operator"


def _traced(function: Any) -> Any:
    """Return a function of the user's wrapped in `Traced`, and other functions unchanged."""
    if type(function) is not FunctionType:
        return function
    module = function.__globals__.get("__name__")
    if type(module) is str and module.partition(".")[0] in _LIBRARIES:
        return function
    from dask_mars.expressions.tracing import Traced

    return Traced(function)
