"""Functions that do the same as others in less time, put in their places wherever an operand calls them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from tlz.functoolz import Compose

from dask_mars.graph.chunks import Operand, Subprogram

#: Returns what is to be called in place of a function, or the function.
Substitute = Callable[[Any], Any]


def with_substitutes(operand: Operand, *substitutes: Substitute) -> Operand:
    """Return an operand that calls substitutes, itself and by what it calls.

    Parameters
    ----------
    operand : Operand
        Is not changed.
    *substitutes : callable
        Each returns what is to be called in place of a function, or the function.

    Returns
    -------
    Operand
        The same if it calls nothing that has a substitute.
    """
    functions = tuple([_substituted(function, substitutes) for function in operand.functions])
    if all(map(operator.is_, functions, operand.functions)):
        return operand
    return Operand(
        operand.name, functions, operand.steps, operand.input_count, operand.literal_count, operand.in_client
    )


def _substituted(function: Any, substitutes: Collection[Substitute]) -> Any:
    kind = type(function)
    if kind is Subprogram:
        operand = with_substitutes(function.operand, *substitutes)
        return function if operand is function.operand else Subprogram(operand, function.literals)
    if kind is partial:
        called = _substituted(function.func, substitutes)
        # So flox's last step is told how the others are done.
        named = {
            name: _substituted(value, substitutes) if name == "combine" else value
            for name, value in function.keywords.items()
        }
        if called is function.func and all(map(operator.is_, named.values(), function.keywords.values())):
            return function
        return partial(called, *function.args, **named)
    if kind is Compose:
        # What is called first comes last.
        parts = [*reversed(function.funcs), function.first]
        others = [_substituted(part, substitutes) for part in parts]
        return function if all(map(operator.is_, parts, others)) else Compose(others)
    for substitute in substitutes:
        function = substitute(function)
    return function


__all__ = ["Substitute", "with_substitutes"]
