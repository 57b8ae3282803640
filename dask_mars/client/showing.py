"""Computations and runtimes as text and HTML, for terminals and notebooks.

The HTML has inline styles, because saved notebooks lose style sheets. Text takes the page's colour, light or dark.
"""

from __future__ import annotations

import html
import re
import textwrap
import time
from collections.abc import Iterable

from dask_mars import units
from dask_mars.client.records import FAILED, FINISHED, OVER, RUNNING, ChunkCounts, Record
from dask_mars.client.summaries import remaining_s
from dask_mars.engine.memory_account import MemoryAccount
from dask_mars.tables import COLOURS, Html, Table, bar, cut, named

#: Most rows of layers, and of computations, in a notebook.
_MOST_ROWS, _MOST_COMPUTATIONS = 20, 10
#: Most characters of an error message.
_MESSAGE_CHARACTERS = 200
_OTHER_COLOUR = "#8a8a8a"
#: Matches ids behind keys, which only readers of logs need.
_ID = re.compile(r" \[\d{16,}\]")
_MUTED = "opacity: 0.7"


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
        rows = [f"<li>{html.escape(line)}</li>" for line in self.lines]
        return f'<ul style="margin: 0; padding-left: 1.4em">{"".join(rows)}</ul>'


# -- computations ---------------------------------------------------------------------------------------------


def as_text(record: Record) -> str:
    """Return a computation as one line: name, state and progress."""
    name = repr(record.name) if record.name else record.id
    counts = record.counts()
    text = f"<Computation {name} {record.state}"
    if counts.total:
        text += f": {counts.finished:,} of {units.plural(counts.total, 'chunk')}"
    if record.failure is not None:
        text += f"; {record.failure.type}: {_shortened(record.failure.message)}"
    return f"{text}>"


def as_html(record: Record) -> str:
    """Return a computation as a bar and a table of its layers."""
    counts, layers = record.counts(), record.layers()
    parts = [
        "<div>",
        f"<div><b>{html.escape(_title(record))}</b> &nbsp;{_state(record.state)}{_times(record, counts)}</div>",
        _bar(counts, record.state, "24em"),
        f'<div style="{_MUTED}">{_counted(counts)}</div>',
    ]
    if record.state not in OVER:
        now = time.strftime("%H:%M:%S")
        parts.append(f'<div style="{_MUTED}">as it was at {now}; show it again to see how it goes on</div>')
    if record.failure is not None:
        text = f"{record.failure.type}: {_shortened(record.failure.message)}"
        parts.append(f'<div style="color: {COLOURS[FAILED]}; margin: 0.3em 0">{html.escape(text)}</div>')
    if layers:
        largest = {layer.name for layer in sorted(layers, key=lambda layer: -layer.total)[:_MOST_ROWS]}
        rows = []
        for layer in layers:
            if layer.name in largest:
                waiting = max(layer.total - layer.finished - layer.running - layer.failed, 0)
                of_layer = ChunkCounts(layer.total, waiting, layer.running, layer.finished, layer.failed)
                state = FINISHED if layer.finished == layer.total else record.state
                rows.append(
                    (
                        named(layer.label, layer.name),
                        _bar(of_layer, state, "8em"),
                        f"{layer.finished:,} of {layer.total:,}",
                        f"{layer.running:,}" if layer.running else "",
                        f"{layer.failed:,}" if layer.failed else "",
                        # Agents of clusters do not report the time of all chunks.
                        units.duration(layer.seconds) if layer.seconds else "",
                        units.size(layer.bytes) if layer.bytes else "",
                    )
                )
        parts.append(Table(("layer", "", "computed", "running", "failed", "time", "stored"), rows).as_html())
        if len(layers) > _MOST_ROWS:
            rest = units.plural(len(layers) - _MOST_ROWS, "smaller layer")
            parts.append(f'<div style="{_MUTED}">and {rest}</div>')
    return "".join(parts) + "</div>"


def runtime_as_html(title: str, facts: Iterable[str], records: Iterable[Record]) -> str:
    """Return the state of a runtime, and a table of its latest computations.

    Parameters
    ----------
    title : str
        Heading.
    facts : iterable of str
        Lines below it.
    records : iterable of Record
        The newest first.
    """
    known = list(records)
    parts = [f"<div><div><b>{html.escape(title)}</b></div>"]
    parts += [f"<div>{html.escape(fact)}</div>" for fact in facts]
    rows = []
    for record in known[:_MOST_COMPUTATIONS]:
        counts = record.counts()
        rows.append(
            (
                named(_title(record), record.id),
                _state(record.state),
                _bar(counts, record.state, "8em"),
                f"{counts.finished:,} of {units.plural(counts.total, 'chunk')}" if counts.total else "",
                units.duration(_elapsed_s(record)),
            )
        )
    if rows:
        parts.append(Table(("computation", "state", "", "computed", "time"), rows, texts=2).as_html())
    if len(known) > _MOST_COMPUTATIONS:
        rest = units.plural(len(known) - _MOST_COMPUTATIONS, "older computation")
        parts.append(f'<div style="{_MUTED}">and {rest}</div>')
    return "".join(parts) + "</div>"


def memory_in_words(memory: MemoryAccount, stores: str) -> str:
    """Return the use of memory as a phrase."""
    used = f"{units.size(memory.in_use_bytes)} of {units.size(memory.limit_bytes)} of memory in use"
    return f"{used}; {stores} {units.size(memory.store_bytes)}, {units.size(memory.on_disk_bytes)} on disk"


# -- parts ----------------------------------------------------------------------------------------------------


def _title(record: Record) -> str:
    return record.name or f"computation {record.id[:8]}"


def _state(state: str) -> Html:
    colour = COLOURS.get(state, _OTHER_COLOUR)
    return Html(f'<span style="white-space: nowrap"><span style="color: {colour}">&#9679;</span> {state}</span>')


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
    return f' <span style="{_MUTED}">{text}</span>' if text else ""


def _counted(counts: ChunkCounts) -> str:
    if not counts.total:
        return "no chunks yet"
    share = units.percent(counts.finished, counts.total)
    text = f"{counts.finished:,} of {units.plural(counts.total, 'chunk')} ({share})"
    others = [(counts.running, "running"), (counts.failed, "failed")]
    return ", ".join([text, *[f"{number:,} {word}" for number, word in others if number]])


def _bar(counts: ChunkCounts, state: str, width: str) -> Html:
    """Return a bar of computed, failed and running chunks."""
    total = max(counts.total, 1)
    parts = (
        # What has failed has some of its chunks computed, which is nothing bad.
        (counts.finished / total, COLOURS.get(FINISHED if state == FAILED else state, _OTHER_COLOUR), 1.0),
        (counts.failed / total, COLOURS[FAILED], 1.0),
        (counts.running / total, COLOURS[RUNNING], 0.45),
    )
    return bar(parts, width, f"{units.percent(counts.finished, counts.total)} computed")


def _shortened(message: str) -> str:
    return textwrap.shorten(cut(message, 10 * _MESSAGE_CHARACTERS), _MESSAGE_CHARACTERS, placeholder=" …")


__all__ = ["Explanation", "as_html", "as_text", "memory_in_words", "runtime_as_html"]
