"""The functions that tasks call in worker processes.

This module imports nothing heavy, so that a worker which unpickles ``noop`` is not charged for
importing ``dask.array`` while its cold start is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


FIRST_OF_EIGHT_DIGITS = 10_000_000


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


def angles(count: int, turn: int) -> NDArray[np.float64]:
    """Return evenly spaced angles.

    Parameters
    ----------
    count
        How many to the full turn.
    turn
        Which turn.

    Returns
    -------
    numpy.ndarray
        Of `count` elements. A turn is as good as the other to sines and cosines.
    """
    # Imported here, see above.
    import numpy as np

    return np.arange(count) * (2 * np.pi / count) + 2 * np.pi * turn


def norm(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Add up sin² of the one and cos² of the other, which takes several times as long as making them."""
    import numpy as np

    return float((np.sin(left) ** 2).sum() + (np.cos(right) ** 2).sum())


def counting(count: int, start: int) -> NDArray[np.float64]:
    """Return `count` numbers from `start` on."""
    import numpy as np

    return np.arange(start, start + count, dtype=np.float64)


def table(number: int, rows: int, keys: int = 1 << 20) -> Any:
    """Return a dataframe of random keys, which are less than `keys`, and seven columns of random numbers."""
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(number)
    return pd.DataFrame({"key": rng.integers(0, keys, rows), **{f"x{n}": rng.random(rows) for n in range(7)}})


def register(number: int, rows: int) -> Any:
    """Return a dataframe whose keys no other number's has, in any order, and seven columns of random numbers."""
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(number)
    keys = number * rows + rng.permutation(rows)
    return pd.DataFrame({"key": keys, **{f"y{n}": rng.random(rows) for n in range(7)}})


def column_total(frame: Any) -> Any:
    """Return the sum of a column of a dataframe, as a dataframe."""
    import pandas as pd

    return pd.DataFrame({"total": [frame["x0"].sum()]})


def total(block: NDArray[np.float64]) -> float:
    """Add up the elements of a block."""
    return float(block.sum())


def filled(count: int, seed: int) -> NDArray[np.float64]:
    """Return `count` numbers that add up to `count` and half the seed."""
    import numpy as np

    numbers = np.ones(count)
    numbers[0] += seed / 2
    return numbers


def plus_total(block: NDArray[np.float64], table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add the sum of a table to each element of a block."""
    return block + table.sum()


def total_of_filled(count: int, seed: int) -> float:
    """Make `count` numbers for itself, and return their sum."""
    return total(filled(count, seed))


def length_of_bytes(count: int) -> int:
    """Make a bytearray for itself and write to each of its pages, and return its length."""
    return len(bytearray(b"x") * count)


def entries(count: int) -> int:
    """Make a dict of numbers and their digits for itself, and return its length."""
    return len({str(number): number for number in range(count)})


def part(measure: Callable[[Any], float], value: Any, whole: float) -> float:
    """Return what is measured of a value, as a part of a whole."""
    return measure(value) / whole


def strings(count: int, start: int) -> Any:
    """Return a series of `count` Python strings of 32 characters."""
    import pandas as pd

    return pd.Series([f"{number:032d}" for number in range(start, start + count)], dtype=object)


def characters(series: Any) -> float:
    """Return how many characters the strings of a series have."""
    return float(sum(map(len, series)))


def arrow_table(count: int, start: int) -> Any:
    """Return an Arrow table of `count` numbers of eight digits, and of the same as strings."""
    import pyarrow as pa

    numbers = pa.arange(FIRST_OF_EIGHT_DIGITS + start, FIRST_OF_EIGHT_DIGITS + start + count)
    return pa.table({"number": numbers, "text": numbers.cast(pa.string())})


def arrow_total(table: Any) -> float:
    """Return the sum of the numbers of a table, and the characters of its strings."""
    import pyarrow.compute as pc

    return float(pc.sum(table["number"]).as_py() + pc.sum(pc.utf8_length(table["text"])).as_py())


def number_of(text: str) -> int:
    """Return the number in a text such as ``id000042``."""
    return int(text[2:])


def sorted_rows(block: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sort each row of a block."""
    import numpy as np

    return np.sort(block, axis=-1)


def smooth(block: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace each element of a block by the mean of itself and its eight neighbours."""
    import numpy as np
    from scipy.signal import fftconvolve

    return fftconvolve(block, np.full((3, 3), 1 / 9), mode="same")


def dozed(value: Any) -> int:
    """Sleep for 5 ms, as if something were computed on a processor that this machine does not have."""
    time.sleep(0.005)
    return 0


def dozed_array(number: int, size_bytes: int) -> NDArray[np.uint8]:
    """Sleep for 5 ms, and return an array of a size, whose elements are whatever they are."""
    import numpy as np

    time.sleep(0.005)
    return np.empty(size_bytes, np.uint8)
