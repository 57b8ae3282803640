"""The chunk graph: a prepared Dask graph, and all that the scheduler and workers know of it.

A chunk is one intermediate value; an operand describes how chunks of one kind are computed. An operand is a short
straight-line program (`Step`s in static single assignment form) over the chunk's inputs and literals. Chunks
computed the same way share it, so that a chunk itself is no more than a few integers and its literals.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: A Dask key: a str, bytes, int, float or a (nested) tuple of them.
Key = Hashable


def refuse_unhashable(key: Any) -> None:
    """Raise TypeError with the name of something that cannot be a key of a graph."""
    try:
        hash(key)
    except TypeError as error:
        raise TypeError(f"Key {key!r} cannot be a key: {error}") from None


#: Operand number of a chunk whose value is known before anything runs.
DATA = -1


class Step(NamedTuple):
    """One call of an operand's program."""

    # Values are numbered: first the chunk's inputs, then its literals, then the result of each step in turn.

    #: Position of the callable in `Operand.functions`.
    function: int
    #: Numbers of the values passed as positional arguments, then as keyword arguments.
    slots: tuple[int, ...]
    #: Names for the last ``len(keywords)`` slots.
    keywords: tuple[str, ...]


class Operand:
    """The program that computes chunks of one kind from their inputs and literals."""

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
        #: Display name: that of the last function called.
        self.name = name
        #: The callables that the steps use, each once.
        self.functions = functions
        #: The program; the result of the last step is the chunk's value.
        self.steps = steps
        #: Number of values before the first step's result.
        self.input_count = input_count
        self.literal_count = literal_count
        #: Whether it must run in the user's own process.
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

    def replaced(self, functions: Iterable[Callable[..., Any]], steps: Iterable[Step]) -> Operand:
        """Return an operand of the same values with other functions and steps."""
        counts = self.input_count, self.literal_count
        return Operand(self.name, tuple(functions), tuple(steps), *counts, self.in_client)

    def reordered(
        self, functions: Iterable[Callable[..., Any]], steps: Sequence[Step], order: Iterable[int]
    ) -> Operand:
        """Return an operand with those of other steps that are in `order`, renumbered."""
        before = self.input_count + self.literal_count
        kept = list(order)
        new = {before + index: before + place for place, index in enumerate(kept)}
        return self.replaced(
            functions,
            [steps[at]._replace(slots=tuple([new.get(slot, slot) for slot in steps[at].slots])) for at in kept],
        )

    def run(self, inputs: list[Any], literals: tuple[Any, ...]) -> Any:
        """Compute one chunk."""
        # The list of inputs is consumed: entries are dropped after their last use, so that a temporary is freed as
        # soon as no later step needs it.
        if self._plan is None:
            self._plan = _make_plan(self)
        inputs.extend(literals)
        _execute(self._plan, inputs)
        return inputs.pop()

    def run_all(self, inputs: list[Any], outputs: tuple[int, ...]) -> list[Any]:
        """Compute one chunk, consuming a list of inputs and literals; return the results of several steps."""
        # `outputs` must be the same in every call.
        if self._plan is None:
            self._plan = _make_plan(self, outputs)
        _execute(self._plan, inputs)
        return [inputs[self.input_count + self.literal_count + step] for step in outputs]


_PlannedStep = tuple[Callable[..., Any], tuple[int, ...], tuple[str, ...], tuple[int, ...]]


def _execute(plan: list[_PlannedStep], values: list[Any]) -> None:
    """Append the result of each step to the values."""
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


def _make_plan(operand: Operand, outputs: tuple[int, ...] = ()) -> list[_PlannedStep]:
    """Resolve functions and find, for each step, the values that no later step uses and that are not outputs."""
    last_use: dict[int, int] = {}
    for index, step in enumerate(operand.steps):
        for slot in step.slots:
            last_use[slot] = index
    dead: list[list[int]] = [[] for _ in operand.steps]
    kept = {operand.input_count + operand.literal_count + step for step in outputs}
    for slot, index in last_use.items():
        if slot not in kept:
            dead[index].append(slot)
    return [
        (operand.functions[step.function], step.slots, step.keywords, tuple(dead[index]))
        for index, step in enumerate(operand.steps)
    ]


class Subprogram:
    """An operand as a callable: one function in the program that calls it."""

    __slots__ = ("literals", "operand")

    def __init__(self, operand: Operand, literals: tuple[Any, ...]) -> None:
        self.operand = operand
        self.literals = literals

    @property
    def __name__(self) -> str:
        """Return the operand's name, which Dask shows for a callable."""
        return self.operand.name

    def __reduce__(self) -> tuple[Any, ...]:
        return Subprogram, (self.operand, self.literals)

    def __call__(self, *inputs: Any) -> Any:
        """Run the program."""
        return self.operand.run(list(inputs), self.literals)


class Constant:
    """A function without parameters that returns a value that all chunks of an operand share."""

    # As a part of the operand the value travels once; as a literal it would travel with every chunk.

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return Constant, (self.value,)

    def __call__(self) -> Any:
        """Return the value."""
        return self.value


class Declared(NamedTuple):
    """Declaration of a Dask collection about the chunks of one of its layers."""

    #: Dtype of every chunk.
    dtype: Any
    #: Sizes of the chunks along each dimension, NaN where unknown before they are computed.
    chunks: tuple[tuple[int, ...], ...]
    #: Whether the elements of a chunk share memory with each other, or with its input.
    is_broadcast: bool = False


class Restriction(NamedTuple):
    """The user's annotation of where a chunk may be computed on a cluster."""

    #: Addresses, names or hosts; empty for any.
    workers: tuple[str, ...]
    #: Whether other workers will do if these are absent.
    loose: bool
    #: Amounts of a worker's resources that the chunk takes while it is computed.
    resources: tuple[tuple[str, float], ...]


#: Data of a graph by chunk id that are not there for every chunk.
_BY_CHUNK = ("values", "retries", "priorities", "restrictions", "saves", "joined_bytes")


@dataclass(slots=True)
class ChunkGraph:
    """A whole computation, by dense integer ids in a good order of execution."""

    # Every chunk's inputs have smaller ids than the chunk itself. All lists are indexed by chunk id.

    #: Dask's key of each chunk.
    keys: list[Key] = field(default_factory=list)
    #: Number of each chunk's operand in `operands`, or `DATA`.
    operand_of: list[int] = field(default_factory=list)
    #: Each chunk's literals, as its operand expects them.
    literals: list[tuple[Any, ...]] = field(default_factory=list)
    #: Each chunk's inputs, as its operand expects them; the same chunk may stand more than once.
    inputs: list[tuple[int, ...]] = field(default_factory=list)
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
    #: The user's `dask.annotate(priority=...)` of a chunk; larger runs first.
    priorities: dict[int, float] = field(default_factory=dict)
    #: The user's `dask.annotate(workers=..., resources=...)` of a chunk. A single machine ignores it.
    restrictions: dict[int, Restriction] = field(default_factory=dict)
    #: The user's `dask.annotate(checkpoint=...)` of a chunk: save it at any cost, or never.
    saves: dict[int, bool] = field(default_factory=dict)
    #: Declarations about the chunks of a layer, by the layer's name.
    declared: Mapping[str, Declared] = field(default_factory=dict)
    #: Declared bytes of chunks whose value is a tuple of several chunks' values.
    joined_bytes: dict[int, int] = field(default_factory=dict)
    #: Context of its tasks, if another process has set it.
    surroundings: Mapping[str, bytes] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def take_over(self, graph: ChunkGraph, new: Sequence[int]) -> None:
        """Take over another graph's data about chunks; `new` has the id of each here, -1 for those left out."""
        for name in _BY_CHUNK:
            facts = getattr(graph, name).items()
            setattr(self, name, {new[chunk]: fact for chunk, fact in facts if new[chunk] >= 0})
        self.outputs = [new[chunk] for chunk in graph.outputs]
        self.in_client = {new[chunk] for chunk in graph.in_client if new[chunk] >= 0}

    def chunks_for_client(self) -> set[int]:
        """Return the chunks that must run in the user's process, because of their operand or by `in_client`."""
        client_operands = {operand_id for operand_id, operand in enumerate(self.operands) if operand.in_client}
        if not client_operands:
            return set(self.in_client)
        return self.in_client.union(
            [chunk for chunk, operand in enumerate(self.operand_of) if operand in client_operands]
        )

    def layer_of(self, chunk: int) -> str:
        """Return the name of the Dask layer that a chunk belongs to."""
        return layer_of(self.keys[chunk])

    def shape_of(self, chunk: int) -> tuple[int, ...] | None:
        """Return the declared shape of a chunk, or None if there is none or a dimension is unknown."""
        declared, index = self._declared(chunk)
        return None if declared is None else _shape(declared, index)

    def dtype_of(self, chunk: int) -> Any:
        """Return the declared dtype of a chunk, or None if there is none."""
        declared, _ = self._declared(chunk)
        return None if declared is None else declared.dtype

    def declared_bytes(self, chunk: int) -> int | None:
        """Return the bytes of an array of a chunk's declared shape and dtype, or None without a declaration."""
        # An estimate by collections that have not seen the values. Dask's declarations err in these ways: partial
        # results of mean, var and moment are dicts of two or three such arrays, and those of argmin and argmax
        # have pairs as elements; a boolean index, and its consumers, are declared as if all elements were
        # selected; topk and bincount have a few elements where one is declared. Masks come on top. A wrong
        # declaration of the user's for `map_blocks` is believed.
        if chunk in self.joined_bytes:
            return self.joined_bytes[chunk]
        key: Any = self.keys[chunk]
        # Inlined, because callers ask for each chunk several times.
        declared = self.declared.get(key[0]) if type(key) is tuple and key else None
        if declared is None or declared.dtype is None or len(declared.chunks) != len(key) - 1:
            return None
        size: Any = declared.dtype.itemsize
        for at, along in zip(key[1:], declared.chunks, strict=True):
            if not isinstance(at, int) or not 0 <= at < len(along):
                return None
            if not declared.is_broadcast:
                size *= along[at]
        # Objects lie outside the array; an unknown size is NaN, the one number unequal to itself.
        return None if declared.dtype.hasobject or size != size else int(size)

    def _declared(self, chunk: int) -> tuple[Declared | None, tuple[int, ...]]:
        """Return the declaration of a chunk's layer, and the chunk's index if that is within it."""
        key = self.keys[chunk]
        if not isinstance(key, tuple) or not key or chunk in self.joined_bytes:
            return None, ()
        declared, index = self.declared.get(key[0]), _index(key)
        if declared is None or len(index) != len(declared.chunks):
            return None, ()
        if not all(0 <= at < len(sizes) for at, sizes in zip(index, declared.chunks, strict=True)):
            return None, ()
        return declared, index


class DeclaredSizes(Sequence[int | None]):
    """Declared bytes of each chunk of a graph in the store, None without a declaration."""

    # They are computed on demand, as most are never needed.

    __slots__ = ("_graph", "_inline_bytes")

    def __init__(self, graph: ChunkGraph, inline_bytes: int = 0) -> None:
        self._graph = graph
        self._inline_bytes = inline_bytes

    def __len__(self) -> int:
        return len(self._graph)

    def __getitem__(self, chunk: Any) -> Any:
        declared = self._graph.declared_bytes(chunk)
        return 0 if declared is not None and declared <= self._inline_bytes else declared


def layer_of(key: Key) -> str:
    """Return the name of the Dask layer that a key belongs to."""
    return str(key[0]) if isinstance(key, tuple) and key else str(key)


def flatten(keys: Any) -> list[Key]:
    """List the keys in an arbitrarily nested list of keys."""
    if not isinstance(keys, list):
        return [keys]
    flat: list[Key] = []
    stack = [iter(keys)]
    while stack:
        for item in stack[-1]:
            if isinstance(item, list):
                stack.append(iter(item))
                break
            flat.append(item)
        else:
            stack.pop()
    return flat


def _shape(declared: Declared, index: tuple[int, ...]) -> tuple[int, ...] | None:
    sizes = [along[at] for along, at in zip(declared.chunks, index, strict=True)]
    # An unknown size is NaN, the one number unequal to itself.
    return None if any(size != size for size in sizes) else tuple(map(int, sizes))


def _index(key: Key) -> tuple[int, ...]:
    """Return the index at the end of a key of an array's chunk."""
    if isinstance(key, tuple) and all(isinstance(at, int) for at in key[1:]):
        return key[1:]
    return ()
