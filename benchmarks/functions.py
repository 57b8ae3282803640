"""The functions that tasks call in worker processes.

This module imports nothing heavy, so that a worker which unpickles ``noop`` is not charged for
importing ``dask.array`` while its cold start is timed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def noop() -> None:
    """Do nothing: what remains is the scheduler's own cost of a task."""


def one() -> int:
    """Return 1, the leaf of a tree whose root then counts its leaves."""
    return 1


def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


def hold_gil(iterations: int) -> int:
    """Loop in pure Python, which never gives up the GIL of its own accord.

    Parameters
    ----------
    iterations
        How often to loop.

    Returns
    -------
    int
        The count of odd numbers below `iterations`.
    """
    odd = 0
    for number in range(iterations):
        odd += number & 1
    return odd


def four_point_mean(block: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace each inner element by the mean of its four neighbours.

    Parameters
    ----------
    block
        A two-dimensional block with its halo.

    Returns
    -------
    numpy.ndarray
        A new block of the same shape; its outermost ring is unchanged.
    """
    mean = block.copy()
    vertical = block[:-2, 1:-1] + block[2:, 1:-1]
    horizontal = block[1:-1, :-2] + block[1:-1, 2:]
    mean[1:-1, 1:-1] = (vertical + horizontal) / 4
    return mean
