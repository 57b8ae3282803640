"""Objects that have every attribute, raise for each, lie about their class, or cannot be unpickled."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any
from unittest import mock

import dask
import dask.array as da
import numpy as np

from tests.cases.comparing import case, main

ones = da.ones(8, chunks=4)


class Everything:
    """Has all attributes, and each is the object itself."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__dask"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any) -> int:
        return 3


class Nothing:
    """Raises whatever it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__dask"):
            raise AttributeError(name)
        raise RuntimeError(name)

    def __call__(self, *args: Any) -> int:
        return 4


class Liar:
    """Says that it is an array."""

    @property
    def __class__(self) -> Any:
        return np.ndarray

    def __call__(self, *args: Any) -> int:
        return 5


class LyingFunction(Liar):
    """Says that it is a partial function."""

    @property
    def __class__(self) -> Any:
        return functools.partial


class Unhashable:
    """Has neither a hash nor a truth nor a comparison."""

    def __eq__(self, other: object) -> Any:
        raise RuntimeError("no comparison")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __call__(self, *args: Any) -> int:
        return 6


class Unnamed:
    """Its module, name and function are no text and no function."""

    __name__ = 5
    func = 7

    @property
    def __module__(self) -> Any:
        raise RuntimeError("no module")

    def __call__(self, *args: Any) -> int:
        return 7


class NotLoaded:
    """Can be pickled, and not unpickled."""

    def __init__(self) -> None:
        self.value = 8

    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("no state")

    def __call__(self, *args: Any) -> int:
        return 8


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    reading: int


class Undecodable(UnicodeDecodeError):
    """Python's own members of it are filled by a constructor with other arguments."""

    def __init__(self, *, at: int) -> None:
        super().__init__("utf-8", b"\xff", at, at + 1, "no text")
        self.at = at


KINDS = [Everything, Nothing, Liar, LyingFunction, Unhashable, Unnamed, NotLoaded]


def kind_of(value: Any) -> str:
    return type(value).__name__


def raise_frozen() -> None:
    raise Frozen(3)


def raise_undecodable() -> None:
    raise Undecodable(at=0)


@case
def called() -> Any:
    with dask.annotate(retries=0):
        return dask.compute(*[dask.delayed(functools.partial(kind()), pure=False)(1) for kind in KINDS])


@case
def called_in_a_graph() -> Any:
    get = dask.base.get_scheduler()
    return [get({"a": (kind(), 1), "b": (functools.partial(kind(), 2), "a")}, "b") for kind in KINDS]


@case
def returned_and_handed_on() -> Any:
    made = [dask.delayed(kind, pure=False)() for kind in KINDS]
    handed = [dask.delayed(lambda value: value, pure=False)(value) for value in made]
    kinds = [dask.delayed(kind_of, pure=False)(value) for value in handed]
    return list(map(kind_of, dask.compute(*handed))), dask.compute(*kinds)


@case
def blocks() -> Any:
    return [ones.map_blocks(kind(), dtype=int, meta=np.ones(0)).to_delayed()[0].compute() for kind in KINDS]


@case
def mocks() -> Any:
    function = mock.Mock(side_effect=lambda block: block * 2)
    total = float(ones.map_blocks(function, dtype=float, meta=np.ones(0)).sum().compute())
    simple = mock.MagicMock(return_value=4)
    given = dask.delayed(lambda value: value.foo.bar is not None)(mock.MagicMock()).compute()
    arrays = dask.delayed(kind_of)(mock.Mock(spec=np.ndarray)).compute()
    return total, function.call_count, dask.delayed(simple)(1).compute(), simple.call_args, given, arrays


@case
def error_that_refuses_attributes() -> Any:
    # Dask's own way to shorten tracebacks sets one.
    get = dask.base.get_scheduler()
    try:
        get({"a": (raise_frozen,)}, "a")
    except Frozen as error:
        return error.args, error.reading


@case
def error_with_members_of_python_s_own() -> Any:
    try:
        dask.delayed(raise_undecodable)().compute()
    except Undecodable as error:
        return str(error), error.encoding, error.at


if __name__ == "__main__":
    main()
