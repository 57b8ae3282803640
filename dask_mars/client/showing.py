"""Computations and runtimes as text and HTML, for terminals and notebooks."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

from dask_mars import units
from dask_mars.client.records import FAILED, FINISHED, OVER, RUNNING, Record
from dask_mars.client.summaries import error_in_words, in_words, remaining_s, summary
from dask_mars.engine.memory_account import MemoryAccount
from dask_mars.html import render
from dask_mars.observe.counts import ChunkCounts, LayerCounts
from dask_mars.tables import COLOURS, Bar, Dot, Table, named

#: Maximum number of rows of layers, and of computations, in a notebook.
_MOST_ROWS, _MOST_COMPUTATIONS = 20, 10
_OTHER_COLOUR = "#8a8a8a"
#: Matches ids behind keys, which only readers of logs need.
_ID = re.compile(r" \[\d{16,}\]")


class Explanation(str):
    """Text of several lines, which notebooks show as a list."""

    __slots__ = ()

    @property
    def lines(self) -> list[str]:
        """Its lines, without ids."""
        return [_ID.sub("", line) for line in self.splitlines()]

    def to_dict(self) -> dict[str, list[str]]:
        """Return its lines by the name ``lines``."""
        return {"lines": self.lines}

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return render("explanation.html.j2", lines=self.lines)


# -- computations ---------------------------------------------------------------------------------------------


def as_text(record: Record) -> str:
    """Return a computation as one line: name, state and progress."""
    return f"<Computation {repr(record.name) if record.name else record.id} {in_words(summary(record))}>"


def as_html(record: Record) -> str:
    """Return a computation as a bar and a table of its layers."""
    counts, layers = record.counts(), record.layers()
    largest = {layer.name for layer in sorted(layers, key=lambda layer: -layer.total)[:_MOST_ROWS]}
    rows = [_layer_row(layer, record.state) for layer in layers if layer.name in largest]
    error = summary(record)["error"]
    return render(
        "computation.html.j2",
        title=_title(record),
        state=_state(record.state),
        times=_times(record, counts),
        bar=_bar(counts, record.state, "24em"),
        counted=_counted(counts),
        now="" if record.state in OVER else time.strftime("%H:%M:%S"),
        failure="" if error is None else error_in_words(error),
        failed_colour=COLOURS[FAILED],
        table=Table(("layer", "", "computed", "running", "failed", "time", "stored"), rows),
        rest=units.plural(len(layers) - _MOST_ROWS, "smaller layer") if len(layers) > _MOST_ROWS else "",
    )


def _layer_row(layer: LayerCounts, state: str) -> tuple[Any, ...]:
    waiting = max(layer.total - layer.finished - layer.running - layer.failed, 0)
    counts = ChunkCounts(layer.total, waiting, layer.running, layer.finished, layer.failed)
    return (
        named(layer.label, layer.name),
        _bar(counts, FINISHED if layer.finished == layer.total else state, "8em"),
        f"{layer.finished:,} of {layer.total:,}",
        f"{layer.running:,}" if layer.running else "",
        f"{layer.failed:,}" if layer.failed else "",
        # Agents of clusters do not report the time of all chunks.
        units.duration(layer.seconds) if layer.seconds else "",
        units.size(layer.bytes) if layer.bytes else "",
    )


def runtime_as_html(title: str, facts: Iterable[str], records: Iterable[Record]) -> str:
    """Return the state of a runtime, and a table of its latest computations."""
    known = list(records)
    more = len(known) - _MOST_COMPUTATIONS
    rows = [_computation_row(record) for record in known[:_MOST_COMPUTATIONS]]
    return render(
        "runtime.html.j2",
        title=title,
        facts=list(facts),
        table=Table(("computation", "state", "", "computed", "time"), rows, texts=2),
        rest=units.plural(more, "older computation") if more > 0 else "",
    )


def _computation_row(record: Record) -> tuple[Any, ...]:
    counts = record.counts()
    return (
        named(_title(record), record.id),
        _state(record.state),
        _bar(counts, record.state, "8em"),
        f"{counts.finished:,} of {units.plural(counts.total, 'chunk')}" if counts.total else "",
        units.duration(_elapsed_s(record)),
    )


def memory_in_words(memory: MemoryAccount, stores: str) -> str:
    """Return the use of memory as a phrase."""
    used = f"{units.size(memory.in_use_bytes)} of {units.size(memory.limit_bytes)} of memory in use"
    return f"{used}; {stores} {units.size(memory.store_bytes)}, {units.size(memory.on_disk_bytes)} on disk"


# -- parts ----------------------------------------------------------------------------------------------------


def _title(record: Record) -> str:
    return record.name or f"computation {record.id[:8]}"


def _state(state: str) -> Dot:
    return Dot(state, COLOURS.get(state, _OTHER_COLOUR))


def _elapsed_s(record: Record) -> float:
    return (record.ended_s or time.time()) - (record.started_s or record.created_s)


def _times(record: Record, counts: ChunkCounts) -> str:
    elapsed = units.duration(_elapsed_s(record))
    if record.state in OVER:
        text = f"after {elapsed}" if record.started_s is not None else ""
    else:
        text = f"for {elapsed}"
        left_s = remaining_s(record, counts, record.layers(), time.time())
        if left_s is not None:
            text += f", about {units.remaining(left_s)} left"
    return text


def _counted(counts: ChunkCounts) -> str:
    if not counts.total:
        return "no chunks yet"
    share = units.percent(counts.finished, counts.total)
    text = f"{counts.finished:,} of {units.plural(counts.total, 'chunk')} ({share})"
    others = [(counts.running, "running"), (counts.failed, "failed")]
    return ", ".join([text, *[f"{number:,} {word}" for number, word in others if number]])


def _bar(counts: ChunkCounts, state: str, width: str) -> Bar:
    """Return a bar of computed, failed and running chunks."""
    total = max(counts.total, 1)
    parts = (
        # The computed chunks of a failed computation are drawn as finished ones.
        (counts.finished / total, COLOURS.get(FINISHED if state == FAILED else state, _OTHER_COLOUR), 1.0),
        (counts.failed / total, COLOURS[FAILED], 1.0),
        (counts.running / total, COLOURS[RUNNING], 0.45),
    )
    return Bar(parts, width, f"{units.percent(counts.finished, counts.total)} computed")
