"""What is known of a collection before it is computed: it has to be the same whoever computes."""

from __future__ import annotations

import math
from typing import Any

from tests.fuzz.operations import kind_of


def metadata(value: Any) -> str:
    """Describe a collection by all that can be seen of it without computing."""
    match kind_of(value):
        case "array":
            return f"{value.dtype!r} {value.chunks} {type(value._meta).__name__}"
        case "xarray":
            return f"{value.name} {value.dims} {value.dtype} {value.shape} {value.chunks} {list(value.coords)}"
        case "dataset":
            return " ".join(f"{name}: {value[name].dtype} {value[name].chunks}" for name in value.variables)
        case "frame":
            return f"{dict(value.dtypes)} {value.divisions}"
        case "series" | "index":
            return f"{value.name} {value.dtype} {value.divisions}"
        case "bag":
            return f"{value.npartitions} partitions"
        case other:
            return other


def blocks(value: Any) -> int:
    """Count the blocks of a collection."""
    match kind_of(value):
        case "array":
            return math.prod(value.numblocks)
        case "xarray":
            return math.prod(len(cuts) for cuts in value.chunks or ())
        case "dataset":
            return max([1, *(blocks(it) for it in value.data_vars.values())])
        case "frame" | "series" | "index" | "bag":
            return int(value.npartitions)
        case _:
            return 1


def elements(value: Any) -> float:
    """Count the elements of an array; what is not known counts as nothing."""
    match kind_of(value):
        case "array" | "xarray":
            return 0 if any(math.isnan(length) for length in value.shape) else math.prod(value.shape)
        case "dataset":
            return sum(elements(it) for it in value.data_vars.values())
        case _:
            return 0
