"""A computation that is run beside a limit of memory, and the sizes that follow from the limit.

Sizes follow the limit, so that a smoke test walks the same paths with little of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask.array

from benchmarks.peers import Get

# Dask has few annotations. Saying so once keeps the type checker strict with all the rest.
da: Any = dask.array

ITEM_BYTES = 8
#: How many chunks of the usual size are as large as the limit.
CHUNKS_IN_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Case:
    """A computation on more data than fits into the limit, or in tasks that take more than there is."""

    name: str
    #: One line for people.
    summary: str
    #: Given a scheduler, the limit in bytes and a seed.
    run: Callable[[Get, int, int], float]
    #: Given the limit, the range in which the answer must lie.
    bounds: Callable[[int], tuple[float, float]]
    #: The limit in bytes, where nobody asks for another.
    limit_bytes: int
    #: Whether the limit is that of a control group, which schedulers are to find by themselves.
    in_control_group: bool = False


def chunk_length(limit_bytes: int) -> int:
    """Return the elements of a chunk of the usual size."""
    return max(1, limit_bytes // CHUNKS_IN_LIMIT // ITEM_BYTES)


def array_length(limits: float, limit_bytes: int) -> int:
    """Return the elements of an array, in whole chunks.

    Parameters
    ----------
    limits
        How many times the limit it is to take.
    limit_bytes
        The limit.
    """
    return round(limits * CHUNKS_IN_LIMIT) * chunk_length(limit_bytes)


def random_array(limits: float, limit_bytes: int, seed: int) -> Any:
    """Return an array of uniform random numbers, in chunks of the usual size.

    Parameters
    ----------
    limits
        How many times the limit it is to take.
    limit_bytes
        The limit.
    seed
        Of the numbers.
    """
    shape, chunks = array_length(limits, limit_bytes), chunk_length(limit_bytes)
    return da.random.default_rng(seed).random(shape, chunks=chunks)
