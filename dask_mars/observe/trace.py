"""Chrome's trace event format: one JSON object per line, in rows of trace viewers.

Input times are in seconds, output times in microseconds with three decimals, so that nested events stay nested
when rounded.
"""

from __future__ import annotations

from json.encoder import encode_basestring_ascii as quoted

from dask_mars.graph.ids import decode_subtask_id


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
