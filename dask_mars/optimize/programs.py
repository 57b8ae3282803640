"""Programs under construction: operands whose inputs, literals and steps are being collected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType
from typing import Any

from dask_mars.dask_api.core import GraphNode
from dask_mars.graph.callables import is_parquet_reader
from dask_mars.graph.chunks import Constant, Key, Operand, Step, Subprogram
from dask_mars.labels import function_label


def make_list(*items: Any) -> list[Any]:
    """Build a list from computed items."""
    return list(items)


def make_tuple(*items: Any) -> tuple[Any, ...]:
    """Build a tuple from computed items."""
    return items


def make_set(*items: Any) -> set[Any]:
    """Build a set from computed items."""
    return set(items)


def make_dict(*items: Any) -> dict[Any, Any]:
    """Build a dict from alternating keys and values."""
    return dict(zip(items[::2], items[1::2], strict=True))


def identity(value: Any) -> Any:
    """Return the value."""
    return value


def call_node(node: GraphNode, keys: tuple[Key, ...], *values: Any) -> Any:
    """Run an unknown kind of Dask node in the way Dask would."""
    return node(dict(zip(keys, values, strict=True)))


class Program:
    """A program under construction."""

    # Values get codes while their final numbers are unknown: ``~k`` for literal k, ``2 * i`` for input i, ``2 * s
    # + 1`` for the result of step s.

    __slots__ = ("functions", "input_keys", "inputs", "literals", "steps")

    def __init__(self) -> None:
        self.inputs: dict[Key, int] = {}
        self.input_keys: list[Key] = []
        self.literals: list[Any] = []
        self.steps: list[tuple[int, tuple[int, ...], tuple[str, ...]]] = []
        self.functions: list[Callable[..., Any]] = []

    def input(self, key: Key) -> int:
        """Return the code of an input."""
        code = self.inputs.get(key)
        if code is None:
            code = self.inputs[key] = 2 * len(self.input_keys)
            self.input_keys.append(key)
        return code

    def literal(self, value: Any) -> int:
        """Add a literal and return its code."""
        self.literals.append(value)
        return ~(len(self.literals) - 1)

    def step(self, function: Callable[..., Any], codes: tuple[int, ...], keywords: tuple[str, ...] = ()) -> int:
        """Add a call and return the code of its result; keywords name the last of its arguments."""
        self.functions.append(function)
        self.steps.append((id(function), codes, keywords))
        return 2 * len(self.steps) - 1

    def hold_literals(self, constant_of: Callable[[Any], Constant | None]) -> None:
        """Let steps at the beginning return the literals for which there are constants."""
        steps, functions, literals = self.steps, self.functions, self.literals
        held = [constant_of(value) for value in literals]
        self.steps, self.functions, self.literals = [], [], []
        codes = [
            self.literal(value) if constant is None else self.step(constant, ())
            for value, constant in zip(literals, held, strict=True)
        ]
        added = 2 * len(self.steps)
        for function, (_, taken, keywords) in zip(functions, steps, strict=True):
            moved = [codes[~code] if code < 0 else code + added if code & 1 else code for code in taken]
            self.step(function, tuple(moved), keywords)


def finish_operand(program: Program, name: str, in_client: bool = False) -> Operand:
    """Return a program as an operand: every value gets its final number and every function its place."""
    input_count, literal_count = len(program.input_keys), len(program.literals)
    first_step = input_count + literal_count
    places: dict[int, int] = {}
    functions: list[Callable[..., Any]] = []
    steps = []
    for function, (function_id, codes, keywords) in zip(program.functions, program.steps, strict=True):
        place = places.setdefault(function_id, len(functions))
        if place == len(functions):
            functions.append(function)
        slots = tuple(
            [
                input_count + ~code if code < 0 else code >> 1 if code & 1 == 0 else first_step + (code >> 1)
                for code in codes
            ]
        )
        steps.append(Step(place, slots, keywords))
    return Operand(name, tuple(functions), tuple(steps), input_count, literal_count, in_client)


def name_of(functions: list[Callable[..., Any]]) -> str:
    """Name a program after the last functions that it calls."""
    called = [function for function in functions if type(function) is not Constant]
    return "-".join(function_label(function) for function in called[-4:])


class BoundSubprogram(Subprogram):
    """A subprogram with values for its last inputs."""

    __slots__ = ("values",)

    def __init__(self, operand: Operand, literals: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        super().__init__(operand, literals)
        self.values = values

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundSubprogram, (self.operand, self.literals, self.values)

    def __call__(self, *inputs: Any) -> Any:
        """Run the program."""
        return self.operand.run([*inputs, *self.values], self.literals)


def token_of(value: Any) -> Any:
    """Return a value that is equal for equal values, as far as known."""
    kind = type(value)
    if kind is partial:
        keywords = tuple([(name, token_of(item)) for name, item in value.keywords.items()])
        return partial, token_of(value.func), tuple(map(token_of, value.args)), keywords
    if kind is MethodType:
        return MethodType, id(value.__self__), id(value.__func__)
    if kind is tuple:
        return tuple, tuple(map(token_of, value))
    if kind is int or kind is str or kind is bool:
        return kind, value
    if is_parquet_reader(kind):
        return kind, _token_of_state(vars(value))
    return id(value)


def _token_of_state(state: Mapping[str, Any]) -> Any:
    """Return a value that is equal for objects with equal lists of columns and the same options."""
    found = []
    for name, item in state.items():
        if type(item) is dict:
            item = _token_of_state(item)
        found.append((name, token_of(tuple(item) if type(item) is list else item)))
    return tuple(found)
