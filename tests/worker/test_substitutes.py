"""Functions that are called in place of others: wherever an operand calls them."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

from tlz.functoolz import Compose, compose

from dask_mars.graph.chunks import Operand, Step, Subprogram
from dask_mars.worker.substitutes import with_substitutes

STEP = Step(0, (0, 1), ())


def subtract_for_add(function: Any) -> Any:
    return operator.sub if function is operator.add else function


def operand_of(function: Any) -> Operand:
    return Operand("named", (function,), (STEP,), 2, 0, True)


def substituted(function: Any) -> Any:
    made = with_substitutes(operand_of(function), subtract_for_add)
    assert (made.name, made.steps, made.input_count, made.in_client) == ("named", (STEP,), 2, True)
    return made.functions[0]


def test_a_function_itself() -> None:
    assert substituted(operator.add) is operator.sub


def test_in_partial_functions() -> None:
    made = substituted(partial(operator.add, 1))
    assert type(made) is partial
    assert (made.func, made.args, made.keywords) == (operator.sub, (1,), {})
    made = substituted(partial(max, 1, key=operator.add, combine=partial(operator.add, 2)))
    assert (made.func, made.args) == (max, (1,))
    assert made.keywords["key"] is operator.add
    assert made.keywords["combine"].func is operator.sub


def test_in_composed_functions() -> None:
    made = substituted(compose(abs, operator.neg, operator.add))
    assert type(made) is Compose
    assert made(2, 5) == 3
    assert made.first is operator.sub
    assert made.funcs == (operator.neg, abs)


def test_in_programs_of_programs() -> None:
    program = Subprogram(operand_of(operator.add), ())
    made = substituted(program)
    assert made(5, 3) == 2
    assert program(5, 3) == 8


def test_what_has_none_stays_what_it_is() -> None:
    for function in (
        operator.mul,
        partial(operator.mul, 1),
        partial(max, combine=operator.mul),
        compose(abs, operator.mul),
        Subprogram(operand_of(operator.mul), ()),
    ):
        operand = operand_of(function)
        assert with_substitutes(operand, subtract_for_add) is operand


def test_substitutes_have_substitutes() -> None:
    def other(function: Any) -> Any:
        return operator.mul if function is operator.sub else function

    assert with_substitutes(operand_of(operator.add), subtract_for_add, other).functions == (operator.mul,)
