"""`plan`: what computing collections takes, before anything runs."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any

from dask.utils import import_required

from dask_mars import config, limits, units
from dask_mars.diagnostics.graphs import before_and_after, handed_over
from dask_mars.diagnostics.planning.advice import Advice, Outlook, advise
from dask_mars.diagnostics.planning.layers import PlannedLayer, layers_of
from dask_mars.diagnostics.planning.sizes import Sizes
from dask_mars.graph.chunks import ChunkGraph, DeclaredSizes, Key
from dask_mars.optimize.temporaries import temporaries_of
from dask_mars.scheduler.events import GraphPlan
from dask_mars.scheduler.forecast import Forecast, forecast
from dask_mars.scheduler.policies.plugins import load_policy
from dask_mars.tables import Table, Tabular

#: What a worker process has for itself when it has computed arrays.
_WORKER_BYTES = 46_000_000
#: From this share of the limit on free memory goes back to the system.
_PRESSURE = 7 / 8
#: A simulation takes some 20 us a chunk: so many seconds and no more.
SIMULATED = 200_000
_FAR = 1 << 60
#: Rows of layers in a table.
_MOST_ROWS = 25


@dataclass(frozen=True, repr=False)
class Plan(Tabular):
    """What computing some collections takes. In terminals and notebooks it is a table.

    Attributes
    ----------
    chunks, operands : int
        How many chunks run, and how many different programs these have.
    chunks_before : int
        Of how many chunks of Dask's layers they are composed.
    layers : tuple of PlannedLayer
        What runs, by layer.
    num_workers, memory_limit : int
        What it was planned for.
    process_bytes : int
        What processes and libraries take without any results.
    peak_bytes : int or None
        The most memory that is in use at the same time, all processes together; None if there are too many chunks
        to go through them.
    spilled_bytes : int
        What goes to disk.
    result_bytes : int
        What is returned to the user's process.
    largest_chunk, largest_bytes
        Dask's key of the chunk with the largest result, and how large that is.
    unknown : int
        Of how many chunks nothing says how large they are; they are taken for small.
    warnings : tuple of Advice
        What is likely to go wrong, and what to change.
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
    unknown: int
    warnings: tuple[Advice, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain dicts and lists."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain["layers"] = [dataclasses.asdict(layer) for layer in self.layers]
        plain["warnings"] = [advice._asdict() for advice in self.warnings]
        return plain

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each layer.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        pandas = import_required("pandas", "to_pandas needs pandas: python -m pip install pandas")
        return pandas.DataFrame([dataclasses.asdict(layer) for layer in self.layers])

    def tables(self) -> list[Table]:
        """Return what shows it."""
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
        facts = [composed, peak, f"to disk {units.size(self.spilled_bytes)}"]
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
    """Say what computing collections takes, before anything runs.

    The scheduler's own decisions are gone through, with sizes as collections declare them; nothing is computed.

    Parameters
    ----------
    *collections : object
        Dask collections, as `dask.compute` takes them.
    num_workers : int, optional
        How many workers to plan for. Default: as many as `dask_mars.get` would have.
    memory_limit : int, float or str, optional
        Bytes, a share of the memory there is, or text like ``"4 GiB"``. Default: ``dask-mars.memory-limit``.
    traverse, optimize_graph : bool, optional
        As for `dask.compute`.
    simulated : int, optional
        Up to how many chunks the peak of memory is forecast, which takes some 20 microseconds a chunk.

    Returns
    -------
    Plan
        Chunks and operands by layer, the forecast of memory, and what to change. It shows itself as a table, and
        has `to_dict` and `to_pandas`.

    Raises
    ------
    ValueError
        There are no collections, or an argument makes no sense.

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
    before, after = before_and_after(dsk, keys, settings)
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
    outlook = Outlook(
        layers,
        len(computed),
        len(computed_before),
        sum([before.declared_bytes(chunk) or 0 for chunk in computed_before]),
        settings.num_workers,
        settings.memory_limit,
        process_bytes,
        0 if expected is None else expected.spilled_bytes,
        unlimited,
        result_bytes,
    )
    return Plan(
        chunks=outlook.chunks,
        operands=len({after.operand_of[chunk] for chunk in computed}),
        chunks_before=outlook.chunks_before,
        layers=tuple(layers),
        num_workers=settings.num_workers,
        memory_limit=settings.memory_limit,
        process_bytes=process_bytes,
        peak_bytes=None if expected is None else _peak_bytes(expected, process_bytes, settings.memory_limit),
        spilled_bytes=outlook.spilled_bytes,
        result_bytes=result_bytes,
        largest_chunk=None if largest is None else after.keys[largest],
        largest_bytes=0 if largest is None else sizes.result_bytes[largest] or 0,
        unknown=sum([sizes.result_bytes[chunk] is None for chunk in computed]),
        warnings=tuple(advise(outlook)),
    )


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
    """Return what processes take without any results: this one as it is, and workers as they are at first."""
    own = [os.getpid()]
    return limits.estimate_memory(own) + limits.library_bytes(own) + num_workers * _WORKER_BYTES


def _peak_bytes(expected: Forecast, process_bytes: int, memory_limit: int) -> int:
    # What workers keep for what they make next they give back where memory is short.
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


__all__ = ["SIMULATED", "Plan", "plan"]
