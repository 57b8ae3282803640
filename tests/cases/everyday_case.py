"""What most programs do: arrays, delayed functions of the script, bags, an error and a warning."""

from __future__ import annotations

import warnings
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import numpy as np

from tests.cases.comparing import case, main


class Reading:
    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reading) and self.value == other.value


class BadReading(ValueError):
    pass


def checked(value: int) -> Reading:
    if value < 0:
        raise BadReading(value, "is below zero")
    if value > 2:
        warnings.warn(f"{value} is large", stacklevel=1)
    return Reading(value)


@case
def array() -> Any:
    x = da.from_array(np.arange(20.0), chunks=7)
    return dask.compute(x.sum(), (x + 1).astype("f4"), x.map_blocks(lambda block: block[::-1]))


@case
def objects_and_a_warning() -> Any:
    return dask.compute(*[dask.delayed(checked)(value) for value in range(4)])


@case
def error() -> Any:
    return dask.delayed(checked)(-1).compute()


@case
def bag() -> Any:
    numbers = db.from_sequence(range(10), npartitions=3)
    return numbers.map(checked).map(lambda reading: reading.value % 3).frequencies().compute()


@case
def printed() -> Any:
    return dask.delayed(print)("from a task").compute()


if __name__ == "__main__":
    main()
