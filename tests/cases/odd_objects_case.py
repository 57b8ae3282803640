"""Objects that have every attribute, raise for each, lie about their class, or cannot be unpickled."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any
from unittest import mock

import dask
import dask.array as da
import dask.bag as db
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


class Station(np.ndarray):
    """An array with an attribute."""

    def __array_finalize__(self, other: Any) -> None:
        self.name = getattr(other, "name", None)


@dataclasses.dataclass(slots=True)
class Pair:
    left: int
    right: list[int] = dataclasses.field(default_factory=list)


class Wanting(Exception):
    """Its class wants two arguments, and it has one."""

    def __new__(cls, first: int, second: int) -> Wanting:
        return super().__new__(cls, first, second)

    def __init__(self, first: int, second: int) -> None:
        super().__init__("built")
        self.sum = first + second


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


def station(values: Any) -> Any:
    array = np.asarray(values).view(Station)
    array.name = "north"
    return array


def raise_frozen() -> None:
    raise Frozen(3)


def raise_undecodable() -> None:
    raise Undecodable(at=0)


def raise_wanting() -> None:
    try:
        raise Wanting(1, 2)
    except Wanting as error:
        raise Wanting(3, 4) from error


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
def given() -> Any:
    get = dask.base.get_scheduler()
    return [get({"a": (kind_of, kind())}, "a") for kind in KINDS]


@case
def in_bags() -> Any:
    made = db.from_sequence(range(len(KINDS)), npartitions=3).map(lambda number: KINDS[number]())
    return made.map(kind_of).compute(), list(map(kind_of, made.compute()))


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
def arrays_of_subclasses() -> Any:
    source = da.from_array(station(np.arange(8.0)), chunks=4, asarray=False)
    made = dask.delayed(station)(np.arange(5))
    names = dask.compute(
        dask.delayed(lambda array: array.name)(made),
        dask.delayed(lambda array: array.name)(station(np.arange(20_000.0))),
        source.map_blocks(lambda block: np.array([block.name == "north"]), dtype=bool),
    )
    return names, made.compute().name, dask.delayed(lambda: station(np.arange(20_000)))().compute().name


@case
def other_byte_orders() -> Any:
    found = []
    for code in (">M8[s]", ">m8[ns]", ">i4", ">c16", ">U3", ">f2", [("a", ">M8[s]"), ("b", ">i2")]):
        for length in (8, 30_000):
            array = da.from_array(np.arange(length).astype("i2").astype(code), chunks=length // 2)
            target = np.zeros(length, code)
            da.store(array.map_blocks(lambda block: block), target, lock=False)
            persisted = array.map_blocks(lambda block: block[::-1]).persist()
            block = array.map_blocks(lambda block: block).to_delayed()[0]
            dtypes = block.dtype.compute(), block[::2].dtype.compute(), persisted.compute().dtype
            found.append([target, *[str(np.dtype(dtype).descr) for dtype in dtypes]])
    return found


@case
def classes_with_slots() -> Any:
    pair = dask.delayed(Pair)(1, [2])
    more = dask.delayed(lambda pair: Pair(pair.left + 1, [*pair.right, 3]))(pair).compute()
    try:
        more.other = 1
    except AttributeError:
        return dask.delayed(hasattr)(pair, "__dict__").compute(), more.left, more.right


@case
def error_of_a_class_with_a_constructor_of_its_own() -> Any:
    try:
        dask.delayed(raise_wanting)().compute()
    except Wanting as error:
        return error.args, error.sum, str(error), type(error.__cause__) is Wanting, error.__cause__.sum


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


@case
def views_of_memory() -> Any:
    view = dask.delayed(lambda: memoryview(b"abc"))()
    return dask.delayed(kind_of)(view).compute(), kind_of(view.compute()), view.compute().tolist()


if __name__ == "__main__":
    main()
