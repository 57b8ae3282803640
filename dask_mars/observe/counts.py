"""Progress of a computation in numbers. Every import of dask_mars loads this module, so it imports little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class ChunkCounts(NamedTuple):
    """Progress of a computation, in chunks.

    Attributes
    ----------
    total : int
        Chunks to compute; 0 before the graph is prepared.
    waiting, running, finished, failed : int
        Chunks that wait, are dispatched, are computed, and have failed.
    """

    total: int = 0
    waiting: int = 0
    running: int = 0
    finished: int = 0
    failed: int = 0

    @property
    def fraction(self) -> float:
        """Fraction of the chunks that are computed."""
        return self.finished / self.total if self.total else 0.0


class LayerCounts(NamedTuple):
    """Progress of one layer of a computation, and its cost.

    Attributes
    ----------
    name, label : str
        Dask's name of the layer, and a label for users: the name without its token.
    total, finished, running, failed : int
        Chunks.
    seconds : float
        Time that workers have spent on it.
    bytes : int
        Store size of its results when they were computed, without small values.
    """

    name: str
    label: str
    total: int = 0
    finished: int = 0
    running: int = 0
    failed: int = 0
    seconds: float = 0.0
    bytes: int = 0


class BlockStates(NamedTuple):
    """The blocks of a layer."""

    numblocks: list[int]
    #: A letter for each block, the last dimension first: w waits, r runs, f finished, x failed, . is not a task.
    states: str
    truncated: bool


class Source(Protocol):
    """Progress of a running computation."""

    def counts(self) -> ChunkCounts:
        """Count its chunks."""

    def layers(self) -> Sequence[LayerCounts]:
        """Count the chunks of each layer."""

    def edges(self) -> list[tuple[int, int]]:
        """Return which layers read which, by their indices in `layers`."""

    def blocks(self, layer: str) -> BlockStates:
        """Return the blocks of a layer, `KeyError` for an unknown one."""

    def explain(self, key: object = None, patience_s: float | None = None) -> str:
        """Return what it waits for, or why a key is not computed; `TimeoutError` if the engine is busy."""

    def final(self, is_finished: bool) -> Source:
        """Return the record of an ended computation, without values and graph. It may count layers later."""


def remaining_s(elapsed_s: float, layers: Sequence[LayerCounts]) -> float | None:
    """Return an estimate of the remaining time, None without one."""
    seconds, done = sum([layer.seconds for layer in layers]), sum([layer.finished for layer in layers])
    if not done:
        return None
    if not seconds:
        return elapsed_s * (sum([layer.total for layer in layers]) - done) / done
    # A layer without finished chunks counts as the average of all.
    mean_s = seconds / done
    left_s = sum(
        [
            (layer.total - layer.finished) * (layer.seconds / layer.finished if layer.finished else mean_s)
            for layer in layers
        ]
    )
    return left_s * elapsed_s / seconds
