"""Which operations there are: the catalogue, read, and the kinds of values.

An operation is text, such as ``a1.rechunk((3, 3))``. So a program can be printed, copied and run by hand, and what
is run by the fuzzer is what is printed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.fuzz import catalogue, writing
from tests.fuzz.drawing import Unfit

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
_HOLE = re.compile(r"\$(\w+(?:\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))?)")


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


class _Names(dict[str, Any]):
    """What a hole may name: a variable, what `writing` has, and what draws."""

    def __missing__(self, name: str) -> Any:
        if found := getattr(writing, name, None):
            return functools.partial(found, self["make"]) if callable(found) else found
        try:
            return getattr(self["make"], name)
        except AttributeError:
            raise KeyError(name) from None


@dataclass(frozen=True)
class Operation:
    """A way to make a value of a kind, or of others: an entry of the catalogue."""

    name: str
    kind: str
    weight: float
    texts: tuple[str, ...]
    condition: str
    rounds: bool
    decides: bool

    def fits(self, value: Any) -> bool:
        """Return whether it can be done with a value."""
        return not self.condition or bool(eval(self.condition, vars(writing), {LETTERS[self.kind]: value}))

    def write(self, make: Any, *variables: Variable) -> str:
        """Return one of its expressions, with the holes filled."""
        names = _Names({LETTERS[it.kind]: it for it in variables}, make=make)
        return _HOLE.sub(lambda hole: str(eval(hole[1], {}, names)), make.choice(self.texts))


def _read(table: str) -> Iterator[Operation]:
    for entry in re.split(r"\n(?=\S)", table.strip()):
        head, *lines = entry.splitlines()
        told, _, condition = head.partition(": ")
        kind, name, weight, *flags = told.split()
        texts = tuple([text for line in lines for text in re.split(r"\s{2,}", line.strip())])
        yield Operation(name, kind, float(weight), texts, condition, "rounds" in flags, "decides" in flags)


def _by_kind(table: str) -> dict[str, list[Operation]]:
    operations = list(_read(table))
    return {kind: [it for it in operations if it.kind == kind] for kind in {it.kind for it in operations}}


#: By kind; sources by the kind that they make.
OPERATIONS = _by_kind(catalogue.OPERATIONS)
SOURCES = _by_kind(catalogue.SOURCES)


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
