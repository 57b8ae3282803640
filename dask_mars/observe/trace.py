"""Chrome's trace event format: one JSON object per line, in rows of trace viewers.

Input times are in seconds, output times in microseconds with three decimals, so that nested events stay nested
when rounded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from dask_mars.graph.ids import decode_subtask_id

#: Extent of an instant: its row, or all rows.
ROW, ALL_ROWS = "t", "g"


def name_process(process: int, name: str) -> str:
    """Return the event that names the group of all rows."""
    return json.dumps({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}})


def name_row(process: int, row: int, name: str) -> list[str]:
    """Return the events that name a row and place it below those with smaller numbers."""
    naming = {"ph": "M", "name": "thread_name", "pid": process, "tid": row, "args": {"name": name}}
    order = {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": row, "args": {"sort_index": row}}
    return [json.dumps(naming), json.dumps(order)]


def complete(
    category: str, name: str, process: int, row: int, began_s: float, ended_s: float, args: Mapping[str, Any]
) -> str:
    """Return an event with a duration."""
    # Formatted by hand: there is one for each chunk, and a log may hold hundreds of thousands.
    began_ns, ended_ns = round(began_s * 1e9), round(ended_s * 1e9)
    return (
        f'{{"ph": "X", "cat": "{category}", "name": {quoted(name)}, "pid": {process}, "tid": {row}, '
        f'"ts": {began_ns / 1000:.3f}, "dur": {(ended_ns - began_ns) / 1000:.3f}, "args": {json.dumps(args)}}}'
    )


def chunk_steps(
    layer: str,
    process: int,
    row: int,
    id: bytes,
    chunk: str,
    stored: int | None,
    times_s: tuple[float, float, float, float],
) -> list[str]:
    """Return the events of a chunk and its steps: loading, computing, sealing."""
    graph = decode_subtask_id(id).graph
    began, loaded, computed, ended = [round(time_s * 1e9) for time_s in times_s]
    where = f'"pid": {process}, "tid": {row}'
    size = "" if stored is None else f', "bytes": {stored}'
    events = [
        f'{{"ph": "X", "cat": "chunk", "name": {quoted(layer)}, {where}, "ts": {began / 1000:.3f}, '
        f'"dur": {(ended - began) / 1000:.3f}, '
        f'"args": {{"graph": {graph}, "id": "{id.hex()}", "chunk": {quoted(chunk)}{size}}}}}'
    ]
    for step, start, end in (("load", began, loaded), ("compute", loaded, computed), ("seal", computed, ended)):
        if end > start:
            events.append(
                f'{{"ph": "X", "cat": "step", "name": "{step}", {where}, "ts": {start / 1000:.3f}, '
                f'"dur": {(end - start) / 1000:.3f}}}'
            )
    return events


def instant(name: str, process: int, row: int, time_s: float, scope: str, args: Mapping[str, Any]) -> str:
    """Return an instantaneous event."""
    return json.dumps(
        {
            "ph": "i",
            "name": name,
            "pid": process,
            "tid": row,
            "ts": round(time_s * 1e6, 3),
            "s": scope,
            "args": args,
        }
    )


def counter(name: str, process: int, time_s: float, value: int) -> str:
    """Return the event of a new value of a counter."""
    return json.dumps(
        {"ph": "C", "name": name, "pid": process, "ts": round(time_s * 1e6, 3), "args": {"bytes": value}}
    )
