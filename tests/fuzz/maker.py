"""A program in the making: how statements are added to it.

Each is carried out as soon as it is written, by Dask's synchronous scheduler, so that the next can be written for
what there is; one that cannot be carried out is dropped. The results of statements that compute something are what
is expected later.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz.drawing import MOST_ELEMENTS, Draw, Unfit
from tests.fuzz.metadata import blocks, elements, metadata
from tests.fuzz.operations import LETTERS, OPERATIONS, SOURCES, Operation, Variable, kind_of
from tests.fuzz.programs import Program, Raised, Step, new_namespace

#: Most blocks of a collection: it is not size that is tested here.
_MOST_BLOCKS = 64
_NAME = re.compile(r"\b[a-z]+\d+\b")


class Maker(Draw):
    """A program in the making: source of random choices for operations, and of variables that there are."""

    def __init__(self, random: Random, size: str) -> None:
        super().__init__(random, size)
        self.variables: list[Variable] = []
        self.program = Program(size)
        #: What a hole of an expression has kept for the others.
        self.last: Any = None
        self._namespace = new_namespace()
        self._count = 0

    # -- for operations -------------------------------------------------------------------------------------------

    def another(self, kind: str, fits: Callable[[Any], bool] = lambda value: True) -> Variable:
        """Return some variable of a kind."""
        return self.choice([it for it in self.variables if it.kind == kind and fits(it.value)])

    def some(self, most: int, kinds: set[str] | None = None) -> list[Variable]:
        """Return some variables, the latest ones more often."""
        fitting = [it for it in self.variables if kinds is None or it.kind in kinds]
        if not fitting:
            raise Unfit
        chosen = {self._recent(fitting).name: None for _ in range(self.integer(1, most))}
        return [it for it in fitting if it.name in chosen]

    def _recent(self, variables: list[Variable]) -> Variable:
        return variables[-1 - self.integer(0, self.integer(0, len(variables) - 1))]

    def next_name(self, letter: str) -> str:
        """Return a name that is not taken."""
        self._count += 1
        return f"{letter}{self._count}"

    # -- statements -----------------------------------------------------------------------------------------------

    def operate(self) -> bool:
        """Add a statement that makes a collection of others."""
        start = self._recent(self.variables)
        fitting = {
            operation: operation.weight
            for operation in OPERATIONS.get(start.kind, [])
            if not (operation.decides and start.rounded) and operation.fits(start.value)
        }
        return bool(fitting) and self._assign(self.weighted(fitting), start)

    def begin(self, kind: str) -> bool:
        """Add a statement that makes a collection of nothing."""
        sources = SOURCES.get(kind, [])
        return bool(sources) and self._assign(self.weighted({it: it.weight for it in sources}))

    def _assign(self, operation: Operation, *start: Variable) -> bool:
        try:
            text = operation.write(self, *start)
        except Exception as error:
            # What there is does not lend itself to it: an axis is missing, say.
            self.program.dropped[f"{operation.kind} {operation.name} not written: {error!r:.60}"] += 1
            return False
        rounded = self.rounded(text)
        if rounded and operation.decides:
            return False
        prefix = f"with dask.annotate(priority={self.integer(-5, 5)}): " if self.chance(0.02) else ""
        return self.add(text, operation.name, prefix=prefix, rounded=rounded or operation.rounds)

    def rounded(self, text: str) -> bool:
        """Return whether one of the variables in a text may differ by rounding."""
        named = set(_NAME.findall(text))
        return any(it.rounded for it in self.variables if it.name in named)

    def add(
        self,
        text: str,
        operation: str,
        prefix: str = "",
        rounded: bool = False,
        like: list[Variable] | None = None,
    ) -> bool:
        """Add an expression that can be carried out, of several collections if `like` says so."""
        try:
            with self.program.configured("synchronous"):
                exec(prefix + f"_ = {text}", self._namespace)
            made = self._namespace.pop("_")
            made = list(made) if like else [made]
            if len(made) > 1 and any(it.rounded for it in like or []):
                rounded = True
            kinds = [kind_of(value) for value in made]
            if any(blocks(it) > _MOST_BLOCKS or elements(it) > MOST_ELEMENTS[self.size] for it in made):
                raise Unfit
            known = [metadata(value) for value in made]
        except Exception as error:
            self._namespace.pop("_", None)
            self.program.dropped[
                f"{self.program.theme} {operation}: {type(error).__name__} {str(error)[:60]}"
            ] += 1
            return False
        names = [self.next_name(LETTERS[kind]) for kind in kinds]
        for name, kind, value in zip(names, kinds, made, strict=True):
            # Integers are added up exactly in any order.
            exact = kind in ("array", "xarray") and value.dtype.kind not in "fcOV"
            self.variables.append(Variable(name, value, kind, rounded and not exact))
            self._namespace[name] = self.program.kept[name] = value
        left = ", ".join(names) + ("," if like and len(names) == 1 else "")
        step = Step(f"{prefix}{left} = {text}", operation, tuple(names), expected=known)
        self.program.steps.append(step)
        return True

    def compute(self, text: str, operation: str, prefix: str = "") -> None:
        """Add a statement that computes, and remember its result or what it raises."""
        name = self.next_name("r")
        step = Step(f"{prefix}{name} = {text}", operation, (name,), True, self.rounded(text))
        with self.program.configured("synchronous"):
            try:
                step.expected = step.run(self._namespace)
            except Exception as error:
                step.expected = Raised.by(error)
        self.program.steps.append(step)

    def delete(self) -> None:
        """Add a statement that deletes a variable."""
        if len(self.variables) > 2:
            variable = self.choice(self.variables[:-1])
            self.variables.remove(variable)
            del self._namespace[variable.name]
            self.program.steps.append(Step(f"del {variable}", "delete", (), expected=[]))
