"""Likely problems of a plan, and remedies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dask_mars import units
from dask_mars.observe.planning.layers import PlannedLayer

#: Number of chunks that take seconds to schedule, and mean size below which that is worth a warning, in bytes.
_MANY, _TINY_BYTES = 50_000, 64 << 10
#: Good chunk size, as in Dask, in bytes.
_GOOD_BYTES = 100 << 20
#: Ratio of a rechunk's writes to its reads that is worth a warning.
_REWRITES = 3


class Advice(NamedTuple):
    """A likely problem, and its remedy.

    Attributes
    ----------
    kind : str
        Kind of the problem: ``"chunk over the limit"``, ``"large chunks"``, ``"tiny chunks"``, ``"rechunk"``,
        ``"spilling"`` or ``"large result"``.
    message : str
        The problem, with numbers.
    remedy : str
        What to change.
    """

    kind: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}"


class Outlook(NamedTuple):
    """The facts of a plan to judge."""

    layers: Sequence[PlannedLayer]
    chunks: int
    chunks_before: int
    total_bytes: int
    num_workers: int
    memory_limit: int
    process_bytes: int
    spilled_bytes: int
    #: Peak if nothing had to be spilled, in bytes.
    unlimited_bytes: int | None
    result_bytes: int


def advise(outlook: Outlook) -> Iterator[Advice]:
    """Yield likely problems, the worst first."""
    yield from _of_large_chunks(outlook)
    yield from _of_the_result(outlook)
    yield from _of_spilling(outlook)
    yield from _of_rechunks(outlook)
    yield from _of_tiny_chunks(outlook)


def _of_large_chunks(outlook: Outlook) -> Iterator[Advice]:
    room = max(outlook.memory_limit - outlook.process_bytes, 0)
    layer = max(outlook.layers, key=lambda layer: layer.needed_bytes, default=None)
    if layer is None:
        return
    needed, limit = units.size(layer.needed_bytes), units.size(outlook.memory_limit)
    if layer.needed_bytes > room:
        yield Advice(
            "chunk over the limit",
            f"A chunk of {layer.label!r} takes {needed} with its inputs and temporaries; of the limit of {limit} "
            f"processes leave {units.size(room)}",
            f"Make chunks at least {_times(layer.needed_bytes, room)} times smaller (`rechunk`, or `chunks=` "
            "where data are read), or raise `memory_limit`.",
        )
    elif outlook.num_workers > 1 and layer.needed_bytes * outlook.num_workers > room and layer.chunks > 1:
        fitting = max(room // layer.needed_bytes, 1)
        yield Advice(
            "large chunks",
            f"A chunk of {layer.label!r} takes {needed} with its inputs and temporaries: of {outlook.num_workers} "
            f"workers {fitting} can compute one at the same time within {limit}",
            f"Make chunks {_times(layer.needed_bytes * outlook.num_workers, room)} times smaller, or raise "
            "`memory_limit`.",
        )


def _of_the_result(outlook: Outlook) -> Iterator[Advice]:
    if 2 * outlook.result_bytes > outlook.memory_limit:
        yield Advice(
            "large result",
            f"The result takes {units.size(outlook.result_bytes)} in this process, of a limit of "
            f"{units.size(outlook.memory_limit)}",
            "Write it to a store (`to_zarr`, `da.store`), leave it to the workers (`persist`), or reduce it "
            "before `compute`.",
        )


def _of_spilling(outlook: Outlook) -> Iterator[Advice]:
    if not outlook.spilled_bytes:
        return
    most = max(outlook.layers, key=lambda layer: layer.spilled_bytes)
    enough = "" if outlook.unlimited_bytes is None else f" to {units.size(outlook.unlimited_bytes)}"
    yield Advice(
        "spilling",
        f"{units.size(outlook.spilled_bytes)} go to disk, {units.size(most.spilled_bytes)} of that from "
        f"{most.label!r}: what is needed again does not fit into {units.size(outlook.memory_limit)}",
        f"It works, at the disk's speed. Without: raise `memory_limit`{enough}, compute less at once, or read the "
        "data again where they are needed a second time.",
    )


def _of_rechunks(outlook: Outlook) -> Iterator[Advice]:
    for layer in outlook.layers:
        if layer.rechunk_reads_bytes and layer.rechunk_writes_bytes >= _REWRITES * layer.rechunk_reads_bytes:
            times = _times(layer.rechunk_writes_bytes, layer.rechunk_reads_bytes)
            yield Advice(
                "rechunk",
                f"The rechunk that ends in {layer.label!r} reads {units.size(layer.rechunk_reads_bytes)} and "
                f"writes {units.size(layer.rechunk_writes_bytes)}, {times} times as much, in steps",
                "Read the data in chunks that are nearer to the requested ones, or allow larger steps: "
                '`dask.config.set({"array.rechunk.threshold": 100})`.',
            )


def _of_tiny_chunks(outlook: Outlook) -> Iterator[Advice]:
    count = outlook.chunks_before
    if count >= _MANY and outlook.total_bytes < count * _TINY_BYTES:
        mean = outlook.total_bytes // count
        good = max(outlook.total_bytes // _GOOD_BYTES, 1)
        yield Advice(
            "tiny chunks",
            f"{count:,} chunks of {units.size(mean)} on average: to make and to schedule them takes longer than "
            "to compute them",
            f"Use fewer and larger chunks: {units.plural(good, 'chunk')} of some {units.size(_GOOD_BYTES)} would "
            "hold the same.",
        )


def _times(large: int, small: int) -> str:
    ratio = large / max(small, 1)
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"
