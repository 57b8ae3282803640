"""What MEP 0002's records save, by the comparisons that it was argued with: ``python -m studies records``.

Nothing here starts a worker. Each comparison makes, names or packs the same things in several forms; Mars's own
classes are stood in for by ones that do the same work.
"""

from __future__ import annotations

import operator
import os
import pickle
import timeit
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import click
import numpy as np
from dask.base import tokenize

from benchmarks import options
from benchmarks.machine import describe_machine, machine_facts
from benchmarks.report import markdown_table, plain_console
from dask_mars.graph.chunks import ChunkGraph, Operand, Step
from dask_mars.graph.functions import FunctionRegistry
from dask_mars.graph.ids import subtask_id, write_subtask_id
from dask_mars.protocol.columns import (
    pack_chunks,
    pack_numbers,
    pack_operand,
    unpack_chunks,
    unpack_numbers,
    unpack_operand,
)
from dask_mars.protocol.pickling import dumps, loads

#: Chunks whose message is packed, or whose keys are made, as one.
CHUNKS = 2_000
FLOAT = np.dtype("f8")


@dataclass(frozen=True, slots=True)
class Form:
    """One way to do what a comparison is about.

    Attributes
    ----------
    name : str
        What is special about it.
    make : callable
        Does it.
    count : int
        How many things `make` makes; figures are for one of them.
    read : callable, optional
        Undoes it, given what `make` returned.
    size : callable, optional
        Returns the bytes of what `make` returned.
    """

    name: str
    make: Callable[[], Any]
    count: int = 1
    read: Callable[[Any], Any] | None = None
    size: Callable[[Any], int] | None = None


# -- making records -------------------------------------------------------------------------------------------


class Field:
    """An attribute that is kept in its object's dict of values, as Mars's fields are."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return instance.values[self._name]

    def __set__(self, instance: Any, value: Any) -> None:
        instance.values[self._name] = value


class Serializable:
    """Stands in for the base of Mars's records."""

    __slots__ = ("values",)

    def __init__(self, **fields: Any) -> None:
        self.values: dict[str, Any] = {}
        for name, value in fields.items():
            setattr(self, name, value)


class ChunkWithoutId(Serializable):
    """One class, and no identity beside the key."""

    shape, order, index, extra, key = Field(), Field(), Field(), Field(), Field()

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


class ChunkWithId(Serializable):
    """One class, with an id beside the key."""

    shape, order, index, extra, key, id = Field(), Field(), Field(), Field(), Field(), Field()

    def __init__(self, **fields: Any) -> None:
        super().__init__(id=str(id(self)), **fields)


class EntityData(Serializable):
    """What all records of Mars have."""

    key, id, extra = Field(), Field(), Field()

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


class ChunkData(EntityData):
    """The chunk's own fields, on a second level of classes."""

    shape, order, index = Field(), Field(), Field()

    def __init__(self, **fields: Any) -> None:
        super().__init__(id=str(id(self)), **fields)


class Entity(Serializable):
    """The handle through which Mars reaches a chunk's data."""

    data = Field()

    def __init__(self, data: ChunkData) -> None:
        super().__init__(data=data)


@dataclass(slots=True)
class FlatChunk:
    """What our columns say of a chunk, as one record without a dict."""

    key: Any
    op_id: int
    op_args: tuple[Any, ...]
    inputs: tuple[Any, ...]
    index: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: Any


_FIELDS = {"shape": (1000, 1000), "order": "C", "index": (3, 4), "extra": {"_i": 0}, "key": ("x", 3, 4)}


def _append_row(graph: ChunkGraph) -> None:
    """Add a chunk as the conversion does."""
    key = ("x", 3, 4)
    graph.ids[key] = len(graph.keys)
    graph.keys.append(key)
    graph.operand_of.append(0)
    graph.literals.append(())
    graph.inputs.append(())


def _rows() -> ChunkGraph:
    graph = ChunkGraph()
    for _ in range(CHUNKS):
        _append_row(graph)
    return graph


def constructions() -> list[list[Form]]:
    """Compare ways to make a record of a chunk."""
    forms = [
        Form("fields over a dict, two levels of classes, an id, a handle", lambda: Entity(ChunkData(**_FIELDS))),
        Form("without the handle", lambda: ChunkData(**_FIELDS)),
        Form("and with one level of classes", lambda: ChunkWithId(**_FIELDS)),
        Form("and without the id", lambda: ChunkWithoutId(**_FIELDS)),
        Form("a flat record: slots", lambda: FlatChunk(("x", 3, 4), 7, (), (), (3, 4), (1000, 1000), FLOAT)),
        Form("a row of `graph.ChunkGraph`", _rows, count=CHUNKS),
    ]
    return [forms]


# -- operands on their way ------------------------------------------------------------------------------------


class RandomSample(Serializable):
    """Stands in for an operand of Mars."""

    seed, size, gpu, dtype = Field(), Field(), Field(), Field()


def _pickled(
    form: str, make: Callable[[], Any], count: int = 1, read: Callable[[Any], Any] = pickle.loads
) -> Form:
    return Form(form, make, count, read, len)


def operands() -> list[list[Form]]:
    """Compare an operand as an instance with its op id and arguments."""
    instance = RandomSample(seed=1001, size=100, gpu=False, dtype=FLOAT)
    described = (574610788, (1001, 100, False, FLOAT))
    ours = Operand(
        "multiply-add-sum",
        (operator.mul, operator.add, np.sum),
        (Step(0, (0, 1), ()), Step(1, (4, 2), ()), Step(2, (5, 3), ("axis",))),
        1,
        3,
    )
    mapping = FunctionRegistry()
    for function in ours.functions:
        function_id = mapping.function_id(function)
        assert function_id is not None
        mapping.learn(function_id, mapping.path(function_id))
    of_mars = [
        _pickled("Mars: the instance", lambda: pickle.dumps(instance)),
        _pickled("Mars: op id and arguments", lambda: pickle.dumps(described)),
    ]
    here = [
        _pickled("here: the operand, with cloudpickle", lambda: dumps(ours)),
        _pickled(
            "here: op ids and steps",
            lambda: pickle.dumps(pack_operand(ours, mapping, dumps), protocol=5),
            read=lambda payload: unpack_operand(pickle.loads(payload), mapping, loads),
        ),
    ]
    return [of_mars, here]


def messages() -> list[list[Form]]:
    """Compare a message's chunks as one record each with the columns that are sent."""
    groups = []
    for name, literals, inputs in (
        ("no arguments", [()] * CHUNKS, [()] * CHUNKS),
        ("two inputs", [()] * CHUNKS, [(number, number + 1) for number in range(CHUNKS)]),
        ("a literal", [((number, number + 10),) for number in range(CHUNKS)], [()] * CHUNKS),
        ("100 literals", [tuple(range(100, 200)) for _ in range(CHUNKS)], [()] * CHUNKS),
    ):
        records = _pickled(f"{name}: records", _as_records(literals, inputs), CHUNKS, _read_records)
        columns = _pickled(f"{name}: columns", _as_columns(literals, inputs), CHUNKS, _read_columns)
        groups.append([records, columns])
    return groups


_NUMBERS = list(range(CHUNKS))


def _as_records(literals: list[Any], inputs: list[Any]) -> Callable[[], bytes]:
    def make() -> bytes:
        records = list(zip([0] * CHUNKS, inputs, literals, strict=True))
        return pickle.dumps((_NUMBERS, dumps(records)), protocol=5)

    return make


def _read_records(payload: bytes) -> Any:
    numbers, records = pickle.loads(payload)
    return [(number, *record) for number, record in zip(numbers, pickle.loads(records), strict=True)]


def _as_columns(literals: list[Any], inputs: list[Any]) -> Callable[[], bytes]:
    def make() -> bytes:
        columns = pack_chunks([0] * CHUNKS, inputs, literals, dumps)
        return pickle.dumps((pack_numbers(_NUMBERS), columns), protocol=5)

    return make


def _read_columns(payload: bytes) -> Any:
    numbers, columns = pickle.loads(payload)
    return list(zip(unpack_numbers(numbers), *unpack_chunks(columns, loads), strict=False))


# -- names ----------------------------------------------------------------------------------------------------


def ids() -> list[list[Form]]:
    """Compare ways to get an id for a subtask."""
    page = bytearray(64)
    forms = [
        Form("24 characters drawn at random", lambda: b64encode(os.urandom(18)), size=len),
        Form("a UUID's 32 digits", lambda: uuid.uuid4().hex, size=len),
        Form("a token's first 24 digits", lambda: tokenize("task", 1, 1)[:24], size=len),
        Form("`ids.subtask_id`", lambda: subtask_id(1, 1, 1), size=len),
        Form("`ids.write_subtask_id`, in place", lambda: write_subtask_id(page, 1, 1, 1)),
    ]
    return [forms]


def keys() -> list[list[Form]]:
    """Compare ways to name the chunks of an operand."""
    parameters = ("multiply", (1000, 1000), FLOAT, 2.0)

    def with_index() -> list[Any]:
        name = tokenize(*parameters)
        return [(name, number, 0) for number in _NUMBERS]

    forms = [
        Form(
            "a token for each chunk",
            lambda: [tokenize(*parameters, (number, 0)) for number in _NUMBERS],
            count=CHUNKS,
        ),
        Form("a token for the operand, and the index", with_index, count=CHUNKS),
    ]
    return [forms]


#: Every comparison, by its title: groups of forms that do the same.
COMPARISONS: dict[str, Callable[[], list[list[Form]]]] = {
    "Making the record of a chunk": constructions,
    "Sending an operand": operands,
    f"Sending {CHUNKS:,} chunks of one operand": messages,
    "Getting an id": ids,
    f"Naming the {CHUNKS:,} chunks of an operand": keys,
}


# -- measuring ------------------------------------------------------------------------------------------------


def _best_s(call: Callable[[], Any], repeat: int, least_s: float) -> float:
    """Return the seconds of one call, in the best of several runs that take about `least_s` each."""
    timer = timeit.Timer(call)
    number = 1
    while (taken_s := timer.timeit(number)) < least_s:
        number = max(2 * number, round(number * least_s / max(taken_s, 1e-9)))
    return min(timer.repeat(repeat, number)) / number


class Figures(NamedTuple):
    """What one form takes for one thing."""

    make_ns: float
    read_ns: float | None
    size_bytes: float | None


def measure(form: Form, repeat: int, least_s: float) -> Figures:
    """Measure one form."""
    made = form.make()
    read_ns = size_bytes = None
    if form.read is not None:
        read_ns = _best_s(partial(form.read, made), repeat, least_s) * 1e9 / form.count
    if form.size is not None:
        size_bytes = form.size(made) / form.count
    return Figures(_best_s(form.make, repeat, least_s) * 1e9 / form.count, read_ns, size_bytes)


def measured(forms: list[Form], repeat: int, least_s: float) -> Iterator[list[str]]:
    """Yield a row of figures for each form; bytes and times also as parts of the first one's."""
    first: Figures | None = None
    for form in forms:
        figures = measure(form, repeat, least_s)
        first = first or figures
        row = [form.name]
        for value, base, shown in zip(figures, first, ("{:,.0f}", "{:,.0f}", "{:,.4g}"), strict=True):
            row += ["", ""] if value is None else [shown.format(value), f"{value / (base or value):.3g}"]
        yield row


@options.command("records")
@options.repeat(7, "Runs per figure, of which the best counts.")
@click.option(
    "--least",
    "least_s",
    default=0.05,
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="What one run takes at least.",
)
def records(repeat: int, least_s: float) -> None:
    """Show what small records save, as Markdown.

    The comparisons are those of Mars's proposal to simplify its data structures, and what became of them here. All
    figures are for one chunk, operand or id; ratios are to the first form that does the same.
    """
    console = plain_console()
    console.print(describe_machine(machine_facts()), soft_wrap=True)
    for title, forms in COMPARISONS.items():
        rows = [row for group in forms() for row in measured(group, repeat, least_s)]
        headings = ["form", "make ns", "ratio", "read ns", "ratio", "bytes", "ratio"]
        kept = [column for column in range(len(headings)) if any(row[column] for row in rows)]
        table = markdown_table(*[headings[column] for column in kept], words=("form",))
        for row in rows:
            table.add_row(*[row[column] for column in kept])
        console.print(f"\n### {title}")
        console.print(table)
