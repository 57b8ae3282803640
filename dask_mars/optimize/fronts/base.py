"""The protocol of fronts: what they return, and layers that are compiled when one of their keys is met.

The first elements of its keys name a layer. It is compiled at its first key; from then on each key costs one
record: the operand that computes the block, its literals and the keys that it reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from dask.highlevelgraph import HighLevelGraph

from dask_mars.dask_api.core import GraphNode
from dask_mars.graph.chunks import Constant, Key
from dask_mars.optimize.programs import Program

logger = logging.getLogger(__name__)


#: One block: its operand, its literals and the keys of its inputs. That of `DATA` has the value as its literal.
ChunkRecord = tuple[int, tuple[Any, ...], Sequence[Key]]
#: In place of the operand of a block that is its only input under another name.
ALIAS = -2


class NotSymbolic(Exception):
    """Dask has to materialise the layer."""


class LayerRecords(Protocol):
    """The blocks of one layer, compiled."""

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        """Return whether a key with one of the layer's names is that of a block."""

    def record(self, key: tuple[Any, ...]) -> ChunkRecord | None:
        """Return the record of a block, or None if there is no such block.

        A block of an unknown kind raises `NotSymbolic`.
        """


class TaskCompiler(Protocol):
    """Compiles the tasks of layers, as `compiler.Compiler` does."""

    def emit_argument(self, program: Program, argument: Any, local: dict[Key, int]) -> int:
        """Emit the steps of an argument and return the code of its value; `local` has the codes of keys."""

    def emit_result(self, program: Program, node: GraphNode, local: dict[Key, int]) -> None:
        """Add the steps of a node whose value is the program's result."""

    def shared_constant(self, value: Any) -> Constant | None:
        """Return a literal as a constant of the operand, which travels once; None for plain ones."""

    def operand_of(self, key: Key, program: Program) -> int:
        """Return the number of the operand of all chunks with the same program."""


class LazyLayer(NamedTuple):
    """A layer that has not been materialised."""

    #: First elements of its keys.
    names: tuple[str, ...]
    #: Makes its records, or raises `NotSymbolic`.
    compile: Callable[[TaskCompiler], LayerRecords]
    #: Lets Dask make its tasks.
    materialise: Callable[[], Mapping[Key, Any]]


class ReadOptions(NamedTuple):
    """Options of fronts."""

    #: Fuse consecutive blockwise layers, as Dask's optimizer does.
    fuse_layers: bool = True
    #: Returns how many bytes may stay in memory for readers of parts in place. None: they read copies of the
    #: parts, each a value of its own.
    resident_bytes: Callable[[], int] | None = None


class Symbolic(NamedTuple):
    """A graph, part of it without task objects."""

    #: Tasks of the materialised layers.
    tasks: dict[Key, Any]
    layers: list[LazyLayer]
    #: Whether chains may become one chunk, as Dask itself fuses tasks of such graphs.
    composable: bool = True
    #: Whether Dask fuses reading a block with taking a slice of it. It does not in array expressions.
    fuses_slices: bool = True
    #: The graph whose layers declare shapes and dtypes, if Dask's expression is not made of such graphs.
    declared: HighLevelGraph | None = None


#: Reads one kind of graph, with as few layers materialised as possible; returns None for other kinds, and if the
#: user has disabled optimisation.
Front = Callable[[Any, ReadOptions], "Symbolic | None"]


class LazyLayers:
    """Finds the records of a key, compiling its layer if need be."""

    def __init__(
        self, layers: Iterable[LazyLayer], compiler: TaskCompiler, asked_for: Collection[Key] = ()
    ) -> None:
        self._compiler = compiler
        self._layers = {name: layer for layer in layers for name in layer.names}
        self._compiled: dict[Any, LayerRecords] = {}
        self._asked_for = asked_for
        #: Tells of the keys with a name whether they are blocks, for compiled layers.
        self.has_block: dict[Any, Callable[[Any], bool]] = {}
        #: Blocks that were requested, and lie outside their layer's bounds.
        self.beyond: set[Key] = set()
        #: Tasks of the layers that Dask had to materialise after all.
        self.materialised: dict[Key, Any] = {}

    def record(self, key: Key) -> ChunkRecord | None:
        """Return the record of a key's block, or None if no layer has it."""
        if type(key) is not tuple or not key:
            return None
        records = self._compiled.get(key[0]) or self._compile(key[0])
        if records is None:
            return None
        try:
            return records.record(key)
        except NotSymbolic as reason:
            self._materialise(self._layers[key[0]], reason)
            return None

    def __contains__(self, key: Key) -> bool:
        """Return whether one of the layers makes a key."""
        if type(key) is not tuple or not key:
            return False
        records = self._compiled.get(key[0]) or self._compile(key[0])
        if records is None:
            return key in self.materialised
        if key in records or key in self._asked_for:
            return True
        self.beyond.add(key)
        return False

    def _compile(self, name: Any) -> LayerRecords | None:
        """Compile the layer of a name, if there is one and it is supported."""
        layer = self._layers.get(name)
        if layer is None:
            return None
        try:
            records = layer.compile(self._compiler)
        except Exception as reason:
            # Dask's own graph of an unsupported layer is right.
            self._materialise(layer, reason)
            return None
        self._compiled.update(dict.fromkeys(layer.names, records))
        self.has_block.update(dict.fromkeys(layer.names, records.__contains__))
        return records

    def _materialise(self, layer: LazyLayer, reason: Exception) -> None:
        logger.debug("layer %s is materialised by Dask: %r", layer.names[-1], reason)
        self.materialised.update(layer.materialise())
        for name in layer.names:
            del self._layers[name]
            self._compiled.pop(name, None)
            self.has_block.pop(name, None)
