"""Tasks by their shape: later tasks of a shape give the values that Dask makes of them."""

from __future__ import annotations

import functools
import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import dask
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, Dict, List, Task, TaskRef, Tuple

from dask_mars.optimize.compiler import Compiler
from dask_mars.optimize.convert import convert
from dask_mars.optimize.programs import Program
from tests.symbolic import evaluate


def collect(*args: Any, **kwargs: Any) -> Any:
    return [*args, sorted(kwargs.items())]


def other(*args: Any, **kwargs: Any) -> Any:
    return ["other", *args, sorted(kwargs.items())]


#: Functions from a key, another key and a literal to a task.
MAKERS: list[Callable[[Any, Any, Any], Any]] = [
    lambda x, y, n: Task("k", collect, TaskRef(x), TaskRef(y), n),
    lambda x, y, n: Task("k", collect, TaskRef(x), TaskRef(x), n),
    lambda x, y, n: Task("k", collect, n, TaskRef(x), TaskRef(y)),
    lambda x, y, n: Task("k", other, TaskRef(x), TaskRef(y), n),
    lambda x, y, n: Task("k", collect, TaskRef(x), a=TaskRef(y), b=n),
    lambda x, y, n: Task("k", collect, TaskRef(x), b=TaskRef(y), a=n),
    lambda x, y, n: Task("k", collect, Task(None, collect, TaskRef(x), n), TaskRef(y)),
    lambda x, y, n: Task("k", collect, Task(None, other, TaskRef(x), n), TaskRef(y)),
    lambda x, y, n: Task("k", collect, List(TaskRef(x), TaskRef(y)), n),
    lambda x, y, n: Task("k", collect, Tuple(TaskRef(x), TaskRef(y)), n),
    lambda x, y, n: Task("k", collect, Dict({"a": TaskRef(x), "b": n}), Alias(y)),
    lambda x, y, n: Task("k", collect, DataNode(None, n), [n], (n, None), {"n": n}, TaskRef(y)),
    lambda x, y, n: Task("k", functools.partial(collect, n), TaskRef(x)),
    lambda x, y, n: Task("k", functools.partial(collect, 1), TaskRef(x), collect, np.dtype(int)),
    lambda x, y, n: (collect, x, y, n),
    lambda x, y, n: (collect, x, x, n),
    lambda x, y, n: (collect, (other, x, n), y),
    lambda x, y, n: (collect, [x, y], n),
    lambda x, y, n: (collect, [[x], [y, x]], (slice(n), None), "text"),
    lambda x, y, n: (collect, [x, n], [n, n], []),
    lambda x, y, n: (collect, (n, (n, None)), x, 1.0),
]
VALUES = {("x", 0): 10, ("x", 1): 11, "y": 12, 7: 13}


@pytest.mark.parametrize("order", [1, -1])
def test_tasks_of_all_shapes_in_one_graph(order: int) -> None:
    sources = [(("x", 0), "y"), (("x", 1), ("x", 0)), ("y", "y"), ("y", 7)]
    dsk: dict[Any, Any] = dict(VALUES)
    # Of the numbers, 7 is a key to a legacy task.
    for number, (make, (x, y), n) in enumerate(itertools.product(MAKERS[::order], sources, [1, 7, 2, True])):
        dsk["task", number] = make(x, y, n)
    keys = [key for key in dsk if key not in VALUES]
    values = evaluate(convert(dsk, keys))
    for key, expected in zip(keys, dask.get(dsk, keys), strict=True):
        assert values[key] == expected, dsk[key]


def test_a_later_task_of_a_shape_needs_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    program_of = Compiler.program_of

    def counting(self: Compiler, key: Any, value: Any) -> Any:
        compiled.append(key)
        return program_of(self, key, value)

    monkeypatch.setattr(Compiler, "program_of", counting)
    dsk: dict[Any, Any] = {("t", number): Task(None, collect, number) for number in range(5)}
    dsk |= {("u", number): (collect, ("t", number), 1) for number in range(5)}
    graph = convert(dsk, [("u", number) for number in range(5)])
    assert len(compiled) == 2
    assert len(graph.operands) == 2


def test_the_data_of_a_graph_are_freed_without_the_collector() -> None:
    class Value:
        pass

    value = Value()
    reference = weakref.ref(value)
    dsk: dict[Any, Any] = {number: Task(number, collect, value, value) for number in range(3)}
    dsk |= {("u", number): (collect, number, 1) for number in range(3)}
    gc.disable()
    try:
        assert len(convert(dsk, [("u", number) for number in range(3)])) == 6
        del dsk, value
        assert reference() is None
    finally:
        gc.enable()


def test_a_program_that_says_more_than_its_shape_is_made_for_each_task() -> None:
    compiler = Compiler({})
    task = Task("k", collect, 1)
    shape = compiler.shapes.of(task)
    assert shape is not None
    program = Program()
    program.step(collect, (program.literal("another"),))
    compiler.shapes.add("k", task, shape, program, compiler.operand_of("k", program))
    assert compiler.shapes.record("l", shape) is None
