"""Chunks whose values cannot be pickled, on their way to the user's process, which computes them.

An agent of a cluster defers a result that its worker process cannot send. The deferred chunk has the steps to
compute it, with their inputs. Chunks that read it are deferred too, so that a lock stays one lock, and a generator
is read once.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dask.sizeof import sizeof

from dask_mars.graph.chunks import Key, Operand
from dask_mars.protocol import tracebacks
from dask_mars.protocol.locks import interprocess
from dask_mars.protocol.pickling import dumps, loads


class _Result(NamedTuple):
    """Stands for the result of another step among inputs."""

    token: str


class DeferredStep(NamedTuple):
    """The computation of one chunk; each step comes after its inputs."""

    token: str
    key: Key
    operand: Operand
    literals: tuple[Any, ...]
    inputs: tuple[Any, ...]

    @property
    def needs(self) -> list[str]:
        """Tokens of the steps whose results this one reads."""
        return [value.token for value in self.inputs if type(value) is _Result]

    def run(self, known: Mapping[str, Any]) -> Any:
        """Compute the chunk, given the results of its inputs."""
        values = [known[value.token] if type(value) is _Result else value for value in self.inputs]
        try:
            return self.operand.run(values, tuple([interprocess(literal) for literal in self.literals]))
        except Exception as error:
            tracebacks.add_note(error, f"dask_mars: raised by task {self.key!r}")
            raise


class Deferred:
    """A chunk to compute later, with all its steps. It can be pickled."""

    __slots__ = ("steps",)

    def __init__(self, steps: Sequence[DeferredStep]) -> None:
        self.steps = tuple(steps)

    def value(self, known: dict[str, Any] | None = None) -> Any:
        """Compute the chunk here."""
        # Values of chunks that were computed here before are `known`; new ones are added, so that readers share
        # one object. An exception of a task gets a note that names it.
        known = {} if known is None else known
        for step in self.steps:
            if step.token not in known:
                known[step.token] = step.run(known)
        return known[self.steps[-1].token]

    def __reduce__(self) -> tuple[Any, ...]:
        return _read, (dumps(self.steps),)

    def __sizeof__(self) -> int:
        return sum([sizeof(value) for step in self.steps for value in (*step.inputs, *step.literals)])

    def __repr__(self) -> str:
        return f"<Deferred {self.steps[-1].key!r}>"


def _read(data: bytes) -> Deferred:
    return Deferred(loads(data))


def defer(key: Key, operand: Operand, literals: tuple[Any, ...], inputs: Sequence[Any]) -> Deferred:
    """Return a deferred chunk."""
    before: dict[str, DeferredStep] = {}
    for value in inputs:
        if type(value) is Deferred:
            before.update({step.token: step for step in value.steps})
    taken = tuple([_Result(value.steps[-1].token) if type(value) is Deferred else value for value in inputs])
    return Deferred([*before.values(), DeferredStep(uuid.uuid4().hex, key, operand, literals, taken)])


def resolved(value: Any, known: dict[str, Any] | None = None) -> Any:
    """Return the value of a deferred chunk, computed here; other values unchanged."""
    return value.value(known) if type(value) is Deferred else value
