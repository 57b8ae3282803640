"""What a workload is: a computation that every peer can be asked to do, and what bounds its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import Get

Group = Literal["array", "expressions", "persisted", "zarr", "real", "frames", "cold", "tasks", "latency"]
Bounds = tuple[float, float]

#: How far apart two peers' results may lie. They add in different orders, so the last digits differ.
RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Setting:
    """What one run of a workload is made for."""

    scale: float
    #: Another one for each run, so that no peer can answer from what it computed before.
    seed: int
    #: The scheduler.
    get: Get
    #: Where the data are that `Workload.make` has made, and where results may be written.
    directory: Path = Path()


@dataclass(frozen=True, slots=True)
class Workload:
    """A computation that every peer can be asked to do."""

    name: str
    group: Group
    #: One line for people.
    summary: str
    #: Makes what need not be timed and returns the call to time.
    prepare: Callable[[Setting], Callable[[], Any]]
    #: Turns what the call returned into a few numbers, outside the timing.
    digest: Callable[[Any], NDArray[np.float64]]
    #: Given scale, the range in which the largest number of the digest must lie.
    bounds: Callable[[float], Bounds]
    #: Given scale, the number of tasks, where tasks per second mean something.
    tasks: Callable[[float], int] | None = None
    #: Given scale and directory, makes the files that it reads, unless they are there.
    make: Callable[[float, Path], None] | None = None
    #: What must be importable besides what Dask's arrays need.
    modules: tuple[str, ...] = ()
    #: Relative; wider where numbers of four bytes are added.
    tolerance: float = RELATIVE_TOLERANCE


def scaled(size: float, scale: float) -> int:
    """Multiply a size by the scale.

    Parameters
    ----------
    size
        The full size.
    scale
        The factor.

    Returns
    -------
    int
        The scaled size, at least 1.
    """
    return max(1, round(size * scale))


def numbers(result: Any) -> NDArray[np.float64]:
    """Return the numbers of a result in a row."""
    return np.atleast_1d(np.asarray(result, dtype=np.float64)).ravel()


def near(centre: float, tolerance: float) -> Bounds:
    """Return the range of numbers that differ by no more than a tolerance."""
    return centre - tolerance, centre + tolerance
