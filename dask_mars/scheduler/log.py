"""The log of a state machine: its parameters, then each event with its time and the instructions that followed.

One line of JSON each, readable for people and other programs. The first has the version and the parameters, the
others ``[time in seconds, event, instructions]``, where a record is ``{"type": name, "fields": [...]}``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from dask_mars.scheduler import events
from dask_mars.scheduler.events import Event, GraphPlan, Instruction
from dask_mars.scheduler.parameters import Parameters

#: Version of the format: logs of other versions are refused.
VERSION = 2
_KINDS = (Event, Instruction, GraphPlan, Parameters)
_RECORDS: dict[str, Any] = {
    record.__name__: record
    for record in (*vars(events).values(), Parameters)
    if isinstance(record, type) and issubclass(record, _KINDS)
}


class LogError(ValueError):
    """A log cannot be read."""


class Entry(NamedTuple):
    """One event of a log."""

    now_s: float
    event: Event
    #: The instructions that followed, in the form of `as_plain`.
    instructions: list[Any]


def first_line(parameters: Parameters) -> str:
    """Return the first line of a log."""
    return json.dumps({"log": VERSION, "parameters": as_plain(parameters)}) + "\n"


def line(now_s: float, event: Event, instructions: Sequence[Instruction]) -> str:
    """Return the line of one event."""
    return json.dumps([now_s, as_plain(event), [as_plain(instruction) for instruction in instructions]]) + "\n"


def read(lines: Iterable[str]) -> tuple[Parameters, Iterator[Entry]]:
    """Return the parameters and an iterator of the events of a log; both may raise `LogError`."""
    rest = iter(lines)
    head = _parsed(next(rest, ""), 1)
    if not isinstance(head, dict) or head.get("log") != VERSION:
        raise LogError(f"this is no log of version {VERSION}")
    return from_plain(head["parameters"]), _entries(rest)


def _entries(lines: Iterator[str]) -> Iterator[Entry]:
    for number, text in enumerate(lines, 2):
        # A process that was killed may leave half a line.
        if not text.endswith("\n"):
            return
        entry = _parsed(text, number)
        try:
            now_s, event, instructions = entry
            yield Entry(now_s, from_plain(event), instructions)
        except (TypeError, KeyError, ValueError) as error:
            raise LogError(f"line {number} is no event: {error!r}") from error


def _parsed(text: str, number: int) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise LogError(f"line {number} is no JSON: {error}") from error


def as_plain(value: Any) -> Any:
    """Return a record in types that JSON supports."""
    if dataclasses.is_dataclass(value):
        fields = [as_plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
        return {"type": type(value).__name__, "fields": fields}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {"map": [[as_plain(key), as_plain(item)] for key, item in value.items()]}
    if isinstance(value, Set):
        return {"set": sorted(value)}
    if isinstance(value, Sequence):
        return [as_plain(item) for item in value]
    # NumPy's numbers are no `int`.
    return value.item()


def from_plain(value: Any) -> Any:
    """Return the record that `as_plain` converted; sequences are tuples."""
    if isinstance(value, list):
        return tuple([from_plain(item) for item in value])
    if not isinstance(value, dict):
        return value
    if "map" in value:
        return {from_plain(key): from_plain(item) for key, item in value["map"]}
    if "set" in value:
        return frozenset(value["set"])
    return _RECORDS[value["type"]](*map(from_plain, value["fields"]))
