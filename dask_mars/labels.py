"""Labels of layers and workers, for all displays."""

from __future__ import annotations

from typing import Any

from dask.utils import funcname, key_split

#: Worker number of the user's own process.
_OWN = -1


def label_of(name: str) -> str:
    """Return the label of a layer: its name without the token.

    >>> label_of("sum-b89ad269cb258249afb99235e331261b"), label_of("finalize-hlgfinalizecompute")
    ('sum', 'finalize')
    """
    # Dask names the last step of all after two of its own classes.
    return str(key_split(name)).removesuffix("-hlgfinalizecompute")


def worker_label(worker_id: int, pid: int = 0, is_thread: bool = False) -> str:
    """Return the label of a worker by its id, which is -1 for the user's own process.

    >>> worker_label(-1), worker_label(3, is_thread=True), worker_label(3, 4711)
    ('your process', 'thread 3 of your process', 'worker 3 (process 4711)')
    """
    if worker_id < 0:
        return "your process"
    if is_thread:
        return f"thread {worker_id} of your process"
    return f"worker {worker_id} (process {pid})" if pid else f"worker {worker_id}"


class WorkerRows:
    """Numbers the rows of workers. A process that replaces a thread has a row of its own."""

    def __init__(self) -> None:
        #: Label of each row, by number.
        self.labels: dict[int, str] = {_OWN: worker_label(_OWN)}
        self._rows: dict[str, int] = {worker_label(_OWN): _OWN}

    def row_of(self, label: str) -> int:
        """Return a worker's row."""
        row = self._rows.get(label)
        if row is None:
            row = self._rows[label] = len(self._rows) - 1
            self.labels[row] = label
        return row


def function_label(function: Any) -> str:
    """Return Dask's name of a function, or the name of its class if it has no name as text."""
    try:
        return str(funcname(function))
    except Exception:
        return type(function).__name__
