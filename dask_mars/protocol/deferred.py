"""Chunks that only the user's process can have, because their values cannot be pickled, on their way to it.

An agent of a cluster finds out that a result is of that kind when its worker process cannot send it. What stands
for it from there on is how to compute it, with all that this takes; and whatever is computed with it is put off
likewise, so that a lock is one lock and a generator is read once.
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
    """Stands among inputs for the result of another step."""

    token: str


class Step(NamedTuple):
    """How one chunk is computed; each comes after those that it needs."""

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
        """Compute the chunk, given the results of all that it needs."""
        values = [known[value.token] if type(value) is _Result else value for value in self.inputs]
        try:
            return self.operand.run(values, tuple([interprocess(literal) for literal in self.literals]))
        except Exception as error:
            tracebacks.add_note(error, f"dask_mars: raised by task {self.key!r}")
            raise


class Deferred:
    """A chunk that is yet to be computed, and all that this takes. It can be pickled.

    Parameters
    ----------
    steps : sequence of Step
        The last one gives the value.
    """

    __slots__ = ("steps",)

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)

    def value(self, known: dict[str, Any] | None = None) -> Any:
        """Compute the chunk here.

        Parameters
        ----------
        known : dict, optional
            Values of chunks that were computed here before; those that are computed now are added. Two that need
            the same chunk get the same object of it.

        Raises
        ------
        Exception
            What a task raises, with a note that names it.
        """
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
    """Return what stands for a chunk that is not to be computed here.

    Parameters
    ----------
    key : Key
        Of the chunk.
    operand, literals
        How it is computed.
    inputs : sequence
        Values, some of which may be deferred themselves.
    """
    before: dict[str, Step] = {}
    for value in inputs:
        if type(value) is Deferred:
            before.update({step.token: step for step in value.steps})
    taken = tuple([_Result(value.steps[-1].token) if type(value) is Deferred else value for value in inputs])
    return Deferred([*before.values(), Step(uuid.uuid4().hex, key, operand, literals, taken)])


def resolved(value: Any, known: dict[str, Any] | None = None) -> Any:
    """Return the value of a chunk that was deferred, computed here; any other value as it is."""
    return value.value(known) if type(value) is Deferred else value


__all__ = ["Deferred", "Step", "defer", "resolved"]
