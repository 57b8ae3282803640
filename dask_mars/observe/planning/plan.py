"""`plan`: estimates the costs of collections before a computation."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from dask_mars import config, limits, units
from dask_mars.graph.chunks import ChunkGraph, DeclaredSizes, Key
from dask_mars.observe.graphs import before_and_after, handed_over
from dask_mars.observe.planning.layers import PlannedLayer, layers_of
from dask_mars.observe.planning.sizes import Sizes
from dask_mars.optimize.known import temporaries_of
from dask_mars.scheduler.events import GraphPlan
from dask_mars.scheduler.forecast import Forecast, forecast
from dask_mars.scheduler.policies.plugins import load_policy
from dask_mars.tables import Table, Tabular

#: Private memory of a worker process after computing arrays, and of those that they are forked from, in bytes.
_WORKER_BYTES, _TEMPLATE_BYTES = 12_000_000, 90_000_000
#: Fraction of the limit at which free memory is returned to the system.
_PRESSURE = 7 / 8
#: Maximum number of chunks to simulate, at some 20 us each.
SIMULATED = 200_000
_FAR = 1 << 60
#: Maximum number of rows of layers in a table.
_MOST_ROWS = 25
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
        The change to make.
    """

    kind: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}"


@dataclass(frozen=True, repr=False)
class Plan(Tabular):
    """The costs of computing some collections. In terminals and notebooks it is a table.

    Attributes
    ----------
    chunks, operands : int
        Number of chunks, and of their different programs.
    chunks_before : int
        Number of chunks of Dask's layers that they contain.
    layers : tuple of PlannedLayer
        The chunks by layer.
    num_workers, memory_limit : int
        The planned workers and memory limit.
    process_bytes : int
        Memory of processes and libraries without any results.
    peak_bytes : int or None
        Peak memory of all processes together; None if there are too many chunks to simulate.
    spilled_bytes : int
        Bytes that are spilled.
    result_bytes : int
        Bytes that are returned to the user's process.
    largest_chunk, largest_bytes
        Dask's key of the chunk with the largest result, and its size.
    passes : tuple of tuple
        Name of each pass over the graph that changed the number of chunks, with the numbers before and after it.
    unknown : int
        Number of chunks of unknown size; they count as small.
    warnings : tuple of Advice
        Likely problems, and remedies.
    """

    chunks: int
    operands: int
    chunks_before: int
    layers: tuple[PlannedLayer, ...]
    num_workers: int
    memory_limit: int
    process_bytes: int
    peak_bytes: int | None
    spilled_bytes: int
    result_bytes: int
    largest_chunk: Key | None
    largest_bytes: int
    passes: tuple[tuple[str, int, int], ...]
    unknown: int
    warnings: tuple[Advice, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain dicts and lists."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain["layers"] = self.records()
        plain["warnings"] = [advice._asdict() for advice in self.warnings]
        return plain

    def records(self) -> list[dict[str, Any]]:
        """Return the layers as plain dicts."""
        return [dataclasses.asdict(layer) for layer in self.layers]

    def tables(self) -> list[Table]:
        """Return its tables."""
        shown = set(sorted(self.layers, key=lambda layer: (-layer.result_bytes, -layer.chunks))[:_MOST_ROWS])
        rows = [_row(layer) for layer in self.layers if layer in shown]
        others = len(self.layers) - len(shown)
        if others:
            rows.append((f"{others} other layers", "", "", "", "", "", ""))
        columns = ("layer", "computes", "chunks", "of", "results", "largest", "to disk")
        notes = [*self._facts(), *[f"! {advice}" for advice in self.warnings]]
        return [Table(columns, rows, self._title(), texts=2, notes=notes)]

    def _title(self) -> str:
        workers = units.plural(self.num_workers, "worker")
        chunks = units.plural(self.chunks, "chunk")
        return f"{chunks} on {workers} within {units.size(self.memory_limit)}"

    def _facts(self) -> list[str]:
        composed = f"composed of {units.plural(self.chunks_before, 'chunk')} by {_count(self.operands)}"
        if self.chunks == self.chunks_before:
            composed = f"nothing to compose, {_count(self.operands)}"
        peak = "too many chunks to forecast the peak"
        if self.peak_bytes is not None:
            share = units.percent(self.peak_bytes, self.memory_limit)
            peak = f"peak about {units.size(self.peak_bytes)}, {share} of the limit"
            peak += f", {units.size(self.process_bytes)} of it processes and libraries"
        facts = [
            composed,
            *[
                f"{name.replace('_', ' ')}: {units.plural(before, 'chunk')} to {after:,}"
                for name, before, after in self.passes
            ],
            peak,
            f"to disk {units.size(self.spilled_bytes)}",
        ]
        if self.largest_chunk is not None:
            facts.append(f"largest chunk {units.size(self.largest_bytes)}: {self.largest_chunk!r}")
        if self.unknown:
            facts.append(f"of {units.plural(self.unknown, 'chunk')} nothing says how large they are")
        return facts


def plan(
    *collections: Any,
    num_workers: int | None = None,
    memory_limit: int | float | str | None = None,
    traverse: bool = True,
    optimize_graph: bool = True,
    simulated: int = SIMULATED,
) -> Plan:
    """Estimate the costs of computing collections, before anything runs.

    It simulates the scheduler's decisions, with the declared sizes of collections; nothing is computed.

    Parameters
    ----------
    *collections : object
        Dask collections, as `dask.compute` takes them.
    num_workers : int, optional
        Number of workers. Default: as many as `dask_mars.get` would have.
    memory_limit : int, float or str, optional
        Memory limit in bytes, as a share of the available memory, or as text like ``"4 GiB"``. Default:
        ``dask-mars.memory-limit``.
    traverse, optimize_graph : bool, optional
        As for `dask.compute`.
    simulated : int, optional
        Maximum number of chunks for which the peak of memory is simulated, at some 20 microseconds a chunk.

    Returns
    -------
    Plan
        Chunks and operands by layer, the estimate of memory, and remedies. It shows itself as a table, and has
        `to_dict` and `to_pandas`.

    Raises
    ------
    ValueError
        There are no collections, or an argument is invalid.

    Examples
    --------
    >>> import dask.array as da, dask_mars
    >>> x = da.ones((4000, 4000), chunks=1000)
    >>> dask_mars.plan((x + x.T).sum(), num_workers=2, memory_limit="1 GiB").spilled_bytes
    0
    """
    settings = config.settings(num_workers, memory_limit)
    load_policy(settings.policy)
    dsk, keys = handed_over(collections, traverse, optimize_graph)
    passes: list[tuple[str, int, int]] = []
    before, after = before_and_after(dsk, keys, settings, lambda *each: passes.append(each))
    sizes = Sizes(before, after, settings.inline_bytes)
    process_bytes = _process_bytes(settings.num_workers)
    computed = [chunk for chunk, operand in enumerate(after.operand_of) if operand >= 0]
    expected = unlimited = None
    if len(computed) <= simulated:
        room = max(settings.memory_limit - process_bytes, settings.store_limit // 4)
        store_limit = min(settings.store_limit, room)
        expected = _forecast(after, sizes, settings, store_limit, max(room, store_limit))
        if expected.spilled_bytes:
            unlimited = process_bytes + _forecast(after, sizes, settings, _FAR, _FAR).shared_bytes
    layers = layers_of(after, sizes, {} if expected is None else expected.spilled_by)
    largest = max(computed, key=lambda chunk: (sizes.result_bytes[chunk] or 0, -chunk), default=None)
    result_bytes = sum([sizes.result_bytes[chunk] or 0 for chunk in after.outputs])
    computed_before = [chunk for chunk, operand in enumerate(before.operand_of) if operand >= 0]
    found = Plan(
        chunks=len(computed),
        operands=len({after.operand_of[chunk] for chunk in computed}),
        chunks_before=len(computed_before),
        layers=tuple(layers),
        num_workers=settings.num_workers,
        memory_limit=settings.memory_limit,
        process_bytes=process_bytes,
        peak_bytes=None if expected is None else _peak_bytes(expected, process_bytes, settings.memory_limit),
        spilled_bytes=0 if expected is None else expected.spilled_bytes,
        result_bytes=result_bytes,
        largest_chunk=None if largest is None else after.keys[largest],
        largest_bytes=0 if largest is None else sizes.result_bytes[largest] or 0,
        passes=tuple([each for each in passes if each[1] != each[2]]),
        unknown=sum([sizes.result_bytes[chunk] is None for chunk in computed]),
        warnings=(),
    )
    total_bytes = sum([before.declared_bytes(chunk) or 0 for chunk in computed_before])
    return dataclasses.replace(found, warnings=tuple(advise(found, total_bytes, unlimited)))


def _forecast(
    graph: ChunkGraph, sizes: Sizes, settings: config.Settings, store_limit: int, memory_limit: int
) -> Forecast:
    in_client = graph.chunks_for_client() | graph.in_client
    graph_plan = GraphPlan(
        inputs=graph.inputs,
        outputs=graph.outputs,
        operand_of=graph.operand_of,
        in_client=frozenset(in_client),
        priorities=graph.priorities,
        declared_bytes=DeclaredSizes(graph, settings.inline_bytes),
        temporaries=temporaries_of(graph.operands),
    )
    return forecast(graph_plan, sizes, settings.num_workers, store_limit, memory_limit, settings.policy)


def _process_bytes(num_workers: int) -> int:
    """Return the memory of processes without any results: this one now, and workers after their start."""
    own = [os.getpid()]
    own_bytes = limits.estimate_memory(own) + limits.library_bytes(own)
    return own_bytes + _TEMPLATE_BYTES + num_workers * _WORKER_BYTES


def _peak_bytes(expected: Forecast, process_bytes: int, memory_limit: int) -> int:
    # Workers keep freed memory for later results, but return it where memory is short.
    kept = max(expected.results_bytes, min(expected.shared_bytes, int(_PRESSURE * memory_limit) - process_bytes))
    return process_bytes + kept


def _row(layer: PlannedLayer) -> tuple[str, ...]:
    computes = " · ".join(layer.operands)
    return (
        layer.label,
        computes if len(computes) <= 40 else f"{computes[:39]}…",
        f"{layer.chunks:,}",
        f"{layer.composed_of:,}" if layer.composed_of != layer.chunks else "",
        units.size(layer.result_bytes) if layer.unknown < layer.chunks else "unknown",
        units.size(layer.largest_bytes) if layer.largest_bytes else "",
        units.size(layer.spilled_bytes) if layer.spilled_bytes else "",
    )


def _count(operands: int) -> str:
    return units.plural(operands, "operand")


def advise(plan: Plan, total_bytes: int, unlimited_bytes: int | None) -> Iterator[Advice]:
    """Yield likely problems, the worst first, given the bytes of all chunks, and the peak without spilling."""
    yield from _of_large_chunks(plan)
    yield from _of_the_result(plan)
    yield from _of_spilling(plan, unlimited_bytes)
    yield from _of_rechunks(plan)
    yield from _of_tiny_chunks(plan, total_bytes)


def _of_large_chunks(plan: Plan) -> Iterator[Advice]:
    room = max(plan.memory_limit - plan.process_bytes, 0)
    layer = max(plan.layers, key=lambda layer: layer.needed_bytes, default=None)
    if layer is None:
        return
    needed, limit = units.size(layer.needed_bytes), units.size(plan.memory_limit)
    if layer.needed_bytes > room:
        yield Advice(
            "chunk over the limit",
            f"A chunk of {layer.label!r} takes {needed} with its inputs and temporaries; of the limit of {limit} "
            f"processes leave {units.size(room)}",
            f"Make chunks at least {_times(layer.needed_bytes, room)} times smaller (`rechunk`, or `chunks=` "
            "where data are read), or raise `memory_limit`.",
        )
    elif plan.num_workers > 1 and layer.needed_bytes * plan.num_workers > room and layer.chunks > 1:
        fitting = max(room // layer.needed_bytes, 1)
        yield Advice(
            "large chunks",
            f"A chunk of {layer.label!r} takes {needed} with its inputs and temporaries: of {plan.num_workers} "
            f"workers {fitting} can compute one at the same time within {limit}",
            f"Make chunks {_times(layer.needed_bytes * plan.num_workers, room)} times smaller, or raise "
            "`memory_limit`.",
        )


def _of_the_result(plan: Plan) -> Iterator[Advice]:
    if 2 * plan.result_bytes > plan.memory_limit:
        yield Advice(
            "large result",
            f"The result takes {units.size(plan.result_bytes)} in this process, of a limit of "
            f"{units.size(plan.memory_limit)}",
            "Write it to a store (`to_zarr`, `da.store`), leave it to the workers (`persist`), or reduce it "
            "before `compute`.",
        )


def _of_spilling(plan: Plan, unlimited_bytes: int | None) -> Iterator[Advice]:
    if not plan.spilled_bytes:
        return
    most = max(plan.layers, key=lambda layer: layer.spilled_bytes)
    enough = "" if unlimited_bytes is None else f" to {units.size(unlimited_bytes)}"
    yield Advice(
        "spilling",
        f"{units.size(plan.spilled_bytes)} go to disk, {units.size(most.spilled_bytes)} of that from "
        f"{most.label!r}: what is needed again does not fit into {units.size(plan.memory_limit)}",
        f"It works, at the disk's speed. Without: raise `memory_limit`{enough}, compute less at once, or read the "
        "data again where they are needed a second time.",
    )


def _of_rechunks(plan: Plan) -> Iterator[Advice]:
    for layer in plan.layers:
        if layer.rechunk_reads_bytes and layer.rechunk_writes_bytes >= _REWRITES * layer.rechunk_reads_bytes:
            times = _times(layer.rechunk_writes_bytes, layer.rechunk_reads_bytes)
            yield Advice(
                "rechunk",
                f"The rechunk that ends in {layer.label!r} reads {units.size(layer.rechunk_reads_bytes)} and "
                f"writes {units.size(layer.rechunk_writes_bytes)}, {times} times as much, in steps",
                "Read the data in chunks that are nearer to the requested ones, or allow larger steps: "
                '`dask.config.set({"array.rechunk.threshold": 100})`.',
            )


def _of_tiny_chunks(plan: Plan, total_bytes: int) -> Iterator[Advice]:
    count = plan.chunks_before
    if count >= _MANY and total_bytes < count * _TINY_BYTES:
        mean = total_bytes // count
        good = max(total_bytes // _GOOD_BYTES, 1)
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
