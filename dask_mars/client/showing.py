"""Computations as text and HTML, for terminals and notebooks."""

from __future__ import annotations

import html

from dask.utils import format_bytes, format_time

from dask_mars.client.records import Record

#: Rows of layers that a notebook shows.
_MOST_ROWS = 20
#: Colours that can be read on light and on dark ground.
_COLOURS = {"finished": "#2e8540", "failed": "#c5303a", "cancelled": "#a06a00"}


def as_text(record: Record) -> str:
    """Return a computation in a line: what it is called, how it is and how far."""
    name = repr(record.name) if record.name else record.id
    counts = record.counts()
    text = f"<Computation {name} {record.state}"
    if counts.total:
        text += f": {counts.finished:,} of {counts.total:,} chunks"
    if record.failure is not None:
        text += f"; {record.failure.type}: {record.failure.message}"
    return f"{text}>"


def as_html(record: Record) -> str:
    """Return a computation as a bar and a table of its layers."""
    counts, layers = record.counts(), record.layers()
    colour = _COLOURS.get(record.state, "inherit")
    title = f"<b>{html.escape(record.name or record.id)}</b>"
    parts = [
        f'<div>{title} <span style="color: {colour}">{record.state}</span>',
        f'<br><progress max="{max(counts.total, 1)}" value="{counts.finished}" style="width: 20em"></progress>',
        f" {counts.finished:,} of {counts.total:,} chunks",
    ]
    if record.failure is not None:
        parts.append(f"<br>{html.escape(record.failure.type)}: {html.escape(record.failure.message)}")
    if layers:
        parts.append(
            "<table><thead><tr><th>layer</th><th>computed</th><th>of</th><th>running</th><th>failed</th>"
            "<th>time</th><th>stored</th></tr></thead><tbody>"
        )
        largest = sorted(layers, key=lambda layer: -layer.total)[:_MOST_ROWS]
        for layer in [layer for layer in layers if layer in largest]:
            cells = (
                html.escape(layer.label),
                f"{layer.finished:,}",
                f"{layer.total:,}",
                f"{layer.running:,}",
                f"{layer.failed:,}",
                format_time(layer.seconds),
                format_bytes(layer.bytes),
            )
            parts.append(f'<tr title="{html.escape(layer.name)}"><td>' + "</td><td>".join(cells) + "</td></tr>")
        parts.append("</tbody></table>")
        if len(layers) > _MOST_ROWS:
            parts.append(f"and {len(layers) - _MOST_ROWS} smaller layers")
    return "".join(parts) + "</div>"


def rows_as_html(rows: str) -> str:
    """Return lines of text as a list."""
    return "<ul>" + "".join([f"<li>{html.escape(line)}</li>" for line in rows.splitlines()]) + "</ul>"


__all__ = ["as_html", "as_text", "rows_as_html"]
