"""Replaces functions of operands by faster ones with the same results."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from tlz.functoolz import Compose

from dask_mars.graph.chunks import Operand, Subprogram

#: Returns the substitute of a function, or the function itself.
Substitute = Callable[[Any], Any]


def with_substitutes(operand: Operand, *substitutes: Substitute) -> Operand:
    """Return an operand with functions replaced, inner ones included; itself if there is nothing to replace."""
    functions = tuple([_substituted(function, substitutes) for function in operand.functions])
    if all(map(operator.is_, functions, operand.functions)):
        return operand
    return operand.replaced(functions, operand.steps)


def _substituted(function: Any, substitutes: Collection[Substitute]) -> Any:
    kind = type(function)
    if kind is Subprogram:
        operand = with_substitutes(function.operand, *substitutes)
        return function if operand is function.operand else Subprogram(operand, function.literals)
    if kind is partial:
        called = _substituted(function.func, substitutes)
        # Flox's last step receives its combining function as this keyword.
        named = {
            name: _substituted(value, substitutes) if name == "combine" else value
            for name, value in function.keywords.items()
        }
        if called is function.func and all(map(operator.is_, named.values(), function.keywords.values())):
            return function
        return partial(called, *function.args, **named)
    if kind is Compose:
        # `Compose` takes the first function last.
        parts = [*reversed(function.funcs), function.first]
        others = [_substituted(part, substitutes) for part in parts]
        return function if all(map(operator.is_, parts, others)) else Compose(others)
    for substitute in substitutes:
        function = substitute(function)
    return function
