"""Which operations there are: small functions that write an expression for the values of a program.

An operation is text, such as ``a1.rechunk((3, 3))``. So a program can be printed, copied and run by hand, and what
is run by the fuzzer is what is printed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fuzz.drawing import Unfit

Writer = Callable[..., str | list[str]]


@dataclass(eq=False)
class Variable:
    """A collection of a program, by its name; `rounded` if it depends on the order in which floats were added."""

    name: str
    value: Any
    kind: str
    rounded: bool

    def __str__(self) -> str:
        return self.name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.value, attribute)


@dataclass(frozen=True)
class Operation:
    """A way to make a value of others."""

    # `write` returns an expression, or several of which one is drawn, for the program in the making and a variable
    # of the kind. It `rounds` if schedulers may choose the order in which it adds up, and `decides` if a last bit
    # of its input may make a large difference: a comparison, say.

    name: str
    kind: str
    weight: float
    write: Writer
    fits: Callable[[Any], bool]
    rounds: bool
    decides: bool


#: By kind; sources by the kind that they make.
OPERATIONS: dict[str, list[Operation]] = {}
SOURCES: dict[str, list[Operation]] = {}

#: The kinds, each with the letter that its variables' names begin with.
LETTERS = {
    "array": "a",
    "scalar": "n",
    "xarray": "x",
    "dataset": "y",
    "frame": "f",
    "series": "s",
    "index": "j",
    "bag": "b",
    "item": "i",
    "delayed": "d",
}


def _always(value: Any) -> bool:
    return True


def operation(
    kind: str,
    weight: float = 1.0,
    fits: Callable[[Any], bool] = _always,
    rounds: bool = False,
    decides: bool = False,
) -> Callable[[Writer], Writer]:
    """Add a function to the operations on values of a kind."""

    def decorate(function: Writer) -> Writer:
        made = Operation(function.__name__, kind, weight, function, fits, rounds, decides)
        OPERATIONS.setdefault(kind, []).append(made)
        return function

    return decorate


def source(kind: str, weight: float = 1.0) -> Callable[[Writer], Writer]:
    """Add a function to those that make values of a kind out of nothing."""

    def decorate(function: Writer) -> Writer:
        made = Operation(function.__name__, "", weight, function, _always, False, False)
        SOURCES.setdefault(kind, []).append(made)
        return function

    return decorate


@functools.cache
def _types() -> dict[str, Any]:
    import dask.array as da
    import dask.bag as db
    import dask.dataframe as dd
    import xarray as xr
    from dask.delayed import Delayed

    return {
        "array": da.Array,
        "xarray": xr.DataArray,
        "dataset": xr.Dataset,
        "frame": dd.DataFrame,
        "series": dd.Series,
        "index": dd.Index,
        "scalar": dd.Scalar,
        "bag": db.Bag,
        "item": db.Item,
        "delayed": Delayed,
    }


def kind_of(value: Any) -> str:
    """Name the kind of a value; raise `Unfit` if it is none that programs go on with."""
    # An index of Dask is a series too.
    if isinstance(value, _types()["index"]):
        return "index"
    for name, type_ in _types().items():
        if isinstance(value, type_):
            return name
    raise Unfit
