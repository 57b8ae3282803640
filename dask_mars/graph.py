"""The chunk graph: what Dask's graph is once prepared, and all that the scheduler and workers know of it.

A chunk is one intermediate value; an operand says how chunks of one kind are made. An operand is a short
straight-line program (`Step`s in static single assignment form) over the chunk's inputs and literals, shared by
every chunk that is made the same way, so that a chunk itself is no more than a few integers and its literals.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: A Dask key: a str, bytes, int, float or a (nested) tuple of them.
Key = Hashable

#: Operand number of a chunk whose value is known before anything runs.
DATA = -1


class Step(NamedTuple):
    """One call of an operand's program.

    Values are numbered: first the chunk's inputs, then its literals, then the result of each step in turn.

    Attributes
    ----------
    function : int
        Position of the callable in `Operand.functions`.
    slots : tuple of int
        Numbers of the values passed as positional arguments, then as keyword arguments.
    keywords : tuple of str
        Names for the last ``len(keywords)`` slots.
    """

    function: int
    slots: tuple[int, ...]
    keywords: tuple[str, ...]


class Operand:
    """How chunks of one kind are computed from their inputs and literals.

    Attributes
    ----------
    name : str
        For people: the name of the last function called.
    functions : tuple of callable
        The callables that the steps use, each once.
    steps : tuple of Step
        The program; the result of the last step is the chunk's value.
    input_count, literal_count : int
        How many values stand before the first step's result.
    in_client : bool
        True if it must run in the user's own process.
    """

    __slots__ = ("_plan", "functions", "in_client", "input_count", "literal_count", "name", "steps")

    def __init__(
        self,
        name: str,
        functions: tuple[Callable[..., Any], ...],
        steps: tuple[Step, ...],
        input_count: int,
        literal_count: int,
        in_client: bool = False,
    ) -> None:
        self.name = name
        self.functions = functions
        self.steps = steps
        self.input_count = input_count
        self.literal_count = literal_count
        self.in_client = in_client
        self._plan: list[_PlannedStep] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Operand, (
            self.name,
            self.functions,
            self.steps,
            self.input_count,
            self.literal_count,
            self.in_client,
        )

    def __repr__(self) -> str:
        return f"<Operand {self.name} steps={len(self.steps)}>"

    def run(self, inputs: list[Any], literals: tuple[Any, ...]) -> Any:
        """Compute one chunk.

        Parameters
        ----------
        inputs : list
            Values of the chunk's inputs. The list is consumed: entries are dropped after their last use, so that
            a temporary is freed as soon as no later step needs it.
        literals : tuple
            The chunk's literals.
        """
        plan = self._plan
        if plan is None:
            plan = self._plan = _make_plan(self)
        values = inputs
        values.extend(literals)
        for function, slots, keywords, dead in plan:
            arguments = [values[slot] for slot in slots]
            for slot in dead:
                values[slot] = None
            if keywords:
                split = len(arguments) - len(keywords)
                named = dict(zip(keywords, arguments[split:], strict=True))
                del arguments[split:]
                result = function(*arguments, **named)
                del named
            else:
                result = function(*arguments)
            del arguments
            values.append(result)
            del result
        return values.pop()


_PlannedStep = tuple[Callable[..., Any], tuple[int, ...], tuple[str, ...], tuple[int, ...]]


def _make_plan(operand: Operand) -> list[_PlannedStep]:
    """Resolve functions and find, for each step, the values that no later step uses."""
    last_use: dict[int, int] = {}
    for number, step in enumerate(operand.steps):
        for slot in step.slots:
            last_use[slot] = number
    dead: list[list[int]] = [[] for _ in operand.steps]
    for slot, number in last_use.items():
        dead[number].append(slot)
    return [
        (operand.functions[step.function], step.slots, step.keywords, tuple(dead[number]))
        for number, step in enumerate(operand.steps)
    ]


class Subprogram:
    """A callable operand without literals of its own: one function to the program that calls it.

    Dask shares one inner graph between all blocks of a fused layer; so do we.
    """

    __slots__ = ("literals", "operand")

    def __init__(self, operand: Operand, literals: tuple[Any, ...]) -> None:
        self.operand = operand
        self.literals = literals

    @property
    def __name__(self) -> str:
        """The operand's name, which is what Dask shows of a callable."""
        return self.operand.name

    def __reduce__(self) -> tuple[Any, ...]:
        return Subprogram, (self.operand, self.literals)

    def __call__(self, *inputs: Any) -> Any:
        """Run the program."""
        return self.operand.run(list(inputs), self.literals)


class Held:
    """A function without parameters that returns what an operand holds for all of its chunks.

    A lambda that a thousand chunks are given is a part of their operand, and travels with that: as a literal it
    would travel with every chunk.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return Held, (self.value,)

    def __call__(self) -> Any:
        """Return the value."""
        return self.value


@dataclass(slots=True)
class ChunkGraph:
    """A whole computation, by dense integer ids in a good order of execution.

    Every chunk's inputs have smaller ids than the chunk itself. All lists are indexed by chunk id.
    """

    #: Dask's key of each chunk.
    keys: list[Key] = field(default_factory=list)
    #: Number of each chunk's operand in `operands`, or `DATA`.
    operand_of: list[int] = field(default_factory=list)
    #: Each chunk's literals, as its operand expects them.
    literals: list[tuple[Any, ...]] = field(default_factory=list)
    #: Each chunk's inputs, as its operand expects them; the same chunk may stand more than once.
    inputs: list[tuple[int, ...]] = field(default_factory=list)
    #: The operands, each once.
    operands: list[Operand] = field(default_factory=list)
    #: Values of the chunks whose operand is `DATA`.
    values: dict[int, Any] = field(default_factory=dict)
    #: Ids of the chunks that the user asked for.
    outputs: list[int] = field(default_factory=list)
    #: Chunk id of every key that can be looked up, aliases included.
    ids: dict[Key, int] = field(default_factory=dict)
    #: Chunks that must run in the user's own process although their operand need not.
    in_client: set[int] = field(default_factory=set)
    #: Allowed failures of a chunk where the user annotated them.
    retries: dict[int, int] = field(default_factory=dict)
    #: What the user's `dask.annotate(priority=...)` says of a chunk; larger runs first.
    priorities: dict[int, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    def layer_of(self, chunk: int) -> str:
        """Name of the Dask layer that a chunk belongs to."""
        key = self.keys[chunk]
        return str(key[0]) if isinstance(key, tuple) and key else str(key)
