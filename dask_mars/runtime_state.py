"""The state of a runtime as data that shows itself: computations, workers and store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask_mars import units
from dask_mars.tables import Table, Tabular, cut

#: Maximum number of rows for workers in a table.
_MOST_WORKERS = 64
#: Maximum number of characters of a key.
_KEY_CHARACTERS = 60


class RuntimeState(Tabular, dict[str, Any]):
    """The current computations, workers and store of a runtime; printed, and in notebooks, as tables.

    It is a dict, whose entries are attributes as well; see `Runtime.state`.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this runtime tells no {name!r}, but {', '.join(self) or 'nothing'}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a plain dict."""
        return dict(self)

    def records(self) -> list[dict[str, Any]]:
        """Return the workers."""
        return list(self.get("workers", []))

    def tables(self) -> list[Table]:
        """Return its tables."""
        if not self:
            return [Table((), (), "no workers are running")]
        workers = self["workers"]
        columns = [name for name in _SHOWN if any(name in worker for worker in workers)]
        rows = [[_SHOWN[name](worker.get(name)) for name in columns] for worker in workers[:_MOST_WORKERS]]
        notes = [f"and {len(workers) - _MOST_WORKERS:,} more"] if len(workers) > _MOST_WORKERS else []
        if self.get("why_processes"):
            notes.append(f"processes, not threads: {self['why_processes']}")
        texts = sum([name not in _NUMBERS for name in columns])
        title = f"{units.plural(len(workers), 'worker')}; {self._store()}"
        shown = [Table([_HEADINGS.get(name, name) for name in columns], rows, title, texts, notes)]
        graphs = [
            [
                str(each["graph"]),
                *[
                    f"{each['chunks'].get(state, 0):,}"
                    for state in ("FINISHED", "RUNNING", "READY", "UNSCHEDULED")
                ],
            ]
            for each in self.get("graphs", ())
        ]
        if graphs:
            shown.append(
                Table(("computation", "finished", "dispatched", "ready", "waiting"), graphs, "computations", 0)
            )
        return shown

    def _store(self) -> str:
        store = self["store"]
        text = f"the store has {units.size(store['stored_bytes'])} of {units.size(store['limit_bytes'])}"
        if store.get("reserved_bytes"):
            text += f", {units.size(store['reserved_bytes'])} reserved"
        if store.get("spilled_bytes"):
            text += f", {units.size(store['spilled_bytes'])} written to disk"
        if self.get("persisted"):
            text += f"; {units.plural(self['persisted'], 'chunk')} persisted"
        if self.get("missing_extensions"):
            text += f"; installed without {', '.join(self['missing_extensions'])}"
        elif self.get("object_quotas") is False:
            text += "; Python objects have no quotas"
        return text


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _number(value: Any) -> str:
    return "" if value is None else f"{value:,}"


#: Columns for workers, here and for a cluster's agents, text first, each with its format.
_SHOWN: dict[str, Callable[[Any], str]] = {
    "label": _text,
    "name": _text,
    "address": _text,
    "running": lambda key: cut(_text(key), _KEY_CHARACTERS),
    "step": _text,
    "threads": _number,
    "dispatched": _number,
    "memory_bytes": lambda value: "" if value is None else units.size(value),
}
_NUMBERS = frozenset({"threads", "dispatched", "memory_bytes"})
_HEADINGS = {"label": "worker", "memory_bytes": "memory"}
