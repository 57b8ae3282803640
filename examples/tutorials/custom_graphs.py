"""Compute graphs that are written by hand, and a collection of our own.

It follows the chapters on custom workloads of Dask's manual (https://docs.dask.org/en/stable/custom-graphs.html
and https://docs.dask.org/en/stable/custom-collections.html): a pipeline of functions as a dictionary, given to the
scheduler as it is, and a class that Dask computes, persists and optimises as its own. Run it with::

    python examples/tutorials/custom_graphs.py
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

import dask
from dask.base import DaskMethodsMixin, tokenize
from dask.optimization import cull
from dask.task_spec import Task, TaskRef

import dask_mars

LINES = (
    "the rain falls on the roof and the rain falls on the road",
    "the river takes the rain to the sea",
    "out of the sea the sun takes the rain to the cloud",
)


def load(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def clean(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def count(words: list[str]) -> Counter[str]:
    return Counter(words)


def merge(parts: list[Counter[str]]) -> Counter[str]:
    return sum(parts, Counter())


def best(counts: Counter[str], number: int) -> list[tuple[str, int]]:
    # Words come in the order of the alphabet where they are as frequent.
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:number]


def pipeline(folder: Path, get: Callable[..., Any]) -> None:
    """Count words by a dictionary of tuples, as Dask has taken them from its first day."""
    graph: dict[Hashable, Any] = {}
    for number, line in enumerate(LINES):
        path = folder / f"{number}.txt"
        path.write_text(line, encoding="utf-8")
        graph[("load", number)] = (load, str(path))
        graph[("clean", number)] = (clean, ("load", number))
        graph[("count", number)] = (count, ("clean", number))
    graph["merge"] = (merge, [("count", number) for number in range(len(LINES))])
    graph["best"] = (best, "merge", 3)

    top, parts = get(graph, ["best", [("count", 0), ("count", 2)]])
    assert top == best(Counter(clean(" ".join(LINES))), 3), f"the most frequent words are {top}"
    assert list(parts) == [count(clean(LINES[0])), count(clean(LINES[2]))], "the first or third file is wrong"
    print("most frequent words:", ", ".join(f"{word} {times}" for word, times in top))


class Series(DaskMethodsMixin):
    """Numbers in pieces: a collection with the methods that Dask asks for, and one of its own."""

    __dask_scheduler__ = staticmethod(dask.threaded.get)

    def __init__(self, graph: dict[Hashable, Any], name: str, pieces: int) -> None:
        self.graph, self.name, self.pieces = graph, name, pieces

    @classmethod
    def of(cls, numbers: Iterable[int], size: int) -> Series:
        """Cut numbers into pieces of one size."""
        every = list(numbers)
        name = "numbers-" + tokenize(every, size)
        starts = range(0, len(every), size)
        return cls({(name, i): every[start : start + size] for i, start in enumerate(starts)}, name, len(starts))

    def map(self, function: Callable[[int], int]) -> Series:
        """Apply a function to each number."""
        name = "mapped-" + tokenize(self, function)
        new: dict[Hashable, Any] = {
            (name, i): Task((name, i), each, function, TaskRef((self.name, i))) for i in range(self.pieces)
        }
        return Series({**self.graph, **new}, name, self.pieces)

    def __dask_graph__(self) -> dict[Hashable, Any]:
        return self.graph

    def __dask_keys__(self) -> list[Hashable]:
        return [(self.name, i) for i in range(self.pieces)]

    @staticmethod
    def __dask_optimize__(graph: Any, keys: Any, **options: Any) -> Any:
        return cull(dict(graph), list(keys))[0]

    def __dask_tokenize__(self) -> Any:
        return self.name

    def __dask_postcompute__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return join, ()

    def __dask_postpersist__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return restored, (self.name, self.pieces)


def each(function: Callable[[int], int], piece: list[int]) -> list[int]:
    return [function(number) for number in piece]


def join(pieces: Iterable[list[int]]) -> list[int]:
    return [number for piece in pieces for number in piece]


def restored(graph: Any, name: str, pieces: int, *, rename: dict[str, str] | None = None) -> Series:
    new_name = (rename or {}).get(name, name)
    return Series({(new_name, i): graph[(new_name, i)] for i in range(pieces)}, new_name, pieces)


def collection(get: Callable[..., Any]) -> None:
    """Compute and persist a collection of our own, alone and beside a value that is delayed."""
    squares = Series.of(range(100), 12).map(lambda number: number * number)
    expected = [number * number for number in range(100)]
    (kept,) = dask.persist(squares, scheduler=get)
    halves = kept.map(lambda number: number // 2)
    total = dask.delayed(sum)(squares)
    assert kept.compute(scheduler=get) == expected, "squares that were persisted are others"
    values, value = dask.compute(halves, total, scheduler=get)
    assert values == [number // 2 for number in expected], "halves of squares are wrong"
    assert value == sum(expected), f"the sum of squares is {value}"
    print(f"{kept.pieces} pieces; squares sum up to {value}, and half of the last is {values[-1]}")


def main(scheduler: str = "mars") -> None:
    get = dask_mars.get if scheduler == "mars" else dask.base.get_scheduler(scheduler=scheduler)
    with tempfile.TemporaryDirectory() as folder:
        pipeline(Path(folder), get)
    collection(get)


if __name__ == "__main__":
    main(*sys.argv[1:])
