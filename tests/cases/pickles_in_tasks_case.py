"""Tasks that pickle, read and hand to other processes what the script defines."""

from __future__ import annotations

import concurrent.futures
import copy
import dataclasses
import enum
import functools
import inspect
import multiprocessing
import pickle
import shelve
import sys
import tempfile
import typing
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd

from tests.cases.comparing import case, main


@dataclasses.dataclass
class Reading:
    value: int

    class Unit:
        def __eq__(self, other: object) -> bool:
            return type(self) is type(other)


class Colour(enum.Enum):
    RED = 1


class Pair(typing.NamedTuple):
    first: int
    second: int


class Kind:
    names: typing.ClassVar[list[str]] = []
    scale = 1

    def __init_subclass__(cls) -> None:
        Kind.names.append(cls.__name__)


class Special(Kind):
    pass


class Unmentioned:
    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)


def square(number: int) -> int:
    return number * number


@functools.lru_cache
def cached(number: int) -> int:
    return number + 1


@functools.singledispatch
def described(value: object) -> str:
    return "something"


@described.register
def _(value: Reading) -> str:
    return "a reading"


def there_and_back(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def squares_elsewhere(numbers: list[int]) -> list[int]:
    # Not forked: the user's process has threads, and Python warns of that.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return [*pool.map(square, numbers), pool.submit(Reading, 3).result().value]


@case
def identity() -> Any:
    def same() -> list[bool]:
        things = (square, Reading, Colour, Colour.RED, Pair, Special, described)
        return [there_and_back(thing) is thing for thing in things]

    return dask.delayed(same)().compute()


@case
def instances() -> Any:
    def copies() -> Any:
        return [there_and_back(thing) for thing in (Reading(1), Colour.RED, Pair(1, 2))]

    return dask.delayed(copies)().compute(), dask.delayed(there_and_back)(Reading(2)).compute()


@case
def identity_of_arguments_and_results() -> Any:
    given = dask.delayed(lambda function, kind: (function is square, kind is Reading))(square, Reading)
    made = dask.delayed(lambda: (square, Reading, Colour.RED))().compute()
    return given.compute(), made[0] is square, made[1] is Reading, made[2] is Colour.RED


@case
def files() -> Any:
    def write_and_read() -> Any:
        folder = Path(tempfile.mkdtemp())
        np.save(folder / "array.npy", np.array([Reading(1), None], dtype=object))
        pd.Series([Colour.RED]).to_pickle(folder / "series.pkl")
        with shelve.open(str(folder / "shelf")) as shelf:
            shelf["reading"] = Reading(4)
        with shelve.open(str(folder / "shelf")) as shelf:
            kept = shelf["reading"]
        array = np.load(folder / "array.npy", allow_pickle=True)
        return array.tolist(), pd.read_pickle(folder / "series.pkl")[0] is Colour.RED, kept

    return dask.delayed(write_and_read)().compute()


@case
def written_here_and_read_in_a_task() -> Any:
    path = Path(tempfile.mkdtemp(), "pickle")
    path.write_bytes(pickle.dumps([Unmentioned(), Reading.Unit()]))
    return dask.delayed(lambda: pickle.loads(path.read_bytes()))().compute()


@case
def by_name_alone() -> Any:
    def looked_up() -> Any:
        import __main__

        return __main__.square(3), sys.modules["__main__"].Unmentioned() is not None

    def imported() -> Any:
        from __main__ import Unmentioned

        return Unmentioned.__name__

    return dask.delayed(looked_up)().compute(), dask.delayed(imported)().compute()


@case
def where_main_is_from() -> Any:
    def origin() -> Any:
        import __main__

        return __main__.__file__, __main__.__spec__, __main__.__name__, hasattr(__main__, "channel")

    return dask.delayed(origin)().compute()


@case
def new_processes() -> Any:
    return dask.delayed(squares_elsewhere)([1, 2]).compute()


@case
def other_ways() -> Any:
    def ways() -> Any:
        hints = typing.get_type_hints(Reading)["value"]
        return (
            copy.deepcopy(Reading(2)),
            hints,
            len(inspect.getsource(square)) > 5,
            len(inspect.getsource(Pair)) > 5,
            cached(1),
            described(Reading(1)),
            described(1),
        )

    return dask.delayed(ways)().compute()


@case
def a_class_that_is_defined_anew() -> Any:
    def replaced(step: int) -> Any:
        class Result:
            def __eq__(self, other: object) -> bool:
                return type(self) is type(other)

            number = step

        Result.__qualname__ = "Result"
        globals()["Result"] = Result

        def used() -> Any:
            return there_and_back(Result()).number, there_and_back(Result) is Result

        return dask.delayed(used)().compute()

    return [replaced(step) for step in range(3)]


@case
def classes_of_the_users_stay_as_they_are() -> Any:
    before = Kind.names.copy()
    made = dask.delayed(Special)()
    Kind.scale += 1
    changed = Kind.scale
    kind = type(made.compute())
    return kind is Special, before == Kind.names, Kind.scale == changed


if __name__ == "__main__":
    main()
