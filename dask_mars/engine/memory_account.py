"""The account of an engine's memory: one record of what there is, who has it, and what is on disk."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dask.utils import format_bytes

from dask_mars.labels import worker_label
from dask_mars.limits import estimate_memory

#: Workers have a line each up to so many, and one together beyond.
_LISTED_WORKERS = 8


class ProcessMemory(NamedTuple):
    """What one process has for itself.

    Attributes
    ----------
    worker : int or None
        The number of the worker; None for the process that the engine lives in.
    pid : int
        Its process id.
    private_bytes : int
        Its private pages: what it shares with others is not among them. 0 if it has just ended.
    """

    worker: int | None
    pid: int
    private_bytes: int


class _Row(NamedTuple):
    depth: int
    name: str
    size_bytes: int
    remark: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class MemoryAccount:
    """What an engine's memory is used for, in bytes. As text, and in notebooks, it is a small table.

    What is in use is shared memory, what processes have for themselves, and programs and libraries, added up.

    Attributes
    ----------
    limit_bytes : int
        What all processes together may use.
    in_use_bytes : int
        What they use.
    peak_bytes : int
        The most that was in use at once when it was measured: up to ten times a second while something is
        computed, and by each account.
    shared_bytes : int
        Pages of shared memory, which have results, arrays that tasks work on, and blocks that wait for the next.
    store_bytes, store_limit_bytes : int
        What results take in memory, and may take at the moment.
    promised_bytes : int
        What is reserved for tasks in hand and for data on their way, and what tasks that run wait for besides.
        They may use some of it already.
    private : tuple of ProcessMemory
        What each process has for itself: first the one that the engine lives in, then the workers by number.
    library_bytes : int
        About what programs and libraries take, which are counted once.
    on_disk_bytes : int
        What files of spilled results take.
    spilled_bytes : int
        What has been written to such files since the start, those that are gone included.
    """

    limit_bytes: int
    in_use_bytes: int = 0
    peak_bytes: int = 0
    shared_bytes: int = 0
    store_bytes: int = 0
    store_limit_bytes: int = 0
    promised_bytes: int = 0
    private: tuple[ProcessMemory, ...] = ()
    library_bytes: int = 0
    on_disk_bytes: int = 0
    spilled_bytes: int = 0

    def __str__(self) -> str:
        rows = [(row, "  " * row.depth + row.name, format_bytes(row.size_bytes)) for row in self._rows()]
        name_width = max([len(name) for _, name, _ in rows])
        size_width = max([len(size) for _, _, size in rows])
        lines = [f"{name:<{name_width}}  {size:>{size_width}}  {row.remark}" for row, name, size in rows]
        return "\n".join([line.rstrip() for line in lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        rows = [
            f'<tr><td style="text-align: left; padding-left: {1 + 2 * row.depth}em">{html.escape(row.name)}</td>'
            f'<td style="text-align: right">{html.escape(format_bytes(row.size_bytes))}</td>'
            f'<td style="text-align: left">{html.escape(row.remark)}</td></tr>'
            for row in self._rows()
        ]
        return f"<table>{''.join(rows)}</table>"

    def _rows(self) -> Iterator[_Row]:
        yield _Row(0, "limit", self.limit_bytes)
        yield _Row(0, "in use", self.in_use_bytes, f"at most {format_bytes(self.peak_bytes)} since the start")
        if self.private:
            yield _Row(1, "shared memory", self.shared_bytes)
            yield _Row(2, "store", self.store_bytes, f"of {format_bytes(self.store_limit_bytes)}")
            yield from self._process_rows()
            yield _Row(1, "libraries", self.library_bytes, "counted once")
        yield _Row(0, "promised", self.promised_bytes, "for tasks in hand")
        yield _Row(0, "on disk", self.on_disk_bytes, f"{format_bytes(self.spilled_bytes)} written since the start")

    def _process_rows(self) -> Iterator[_Row]:
        workers = [process for process in self.private if process.worker is not None]
        for process in self.private:
            if process.worker is None:
                yield _Row(1, worker_label(-1), process.private_bytes, f"process {process.pid}")
            elif len(workers) <= _LISTED_WORKERS:
                yield _Row(1, worker_label(process.worker), process.private_bytes, f"process {process.pid}")
        if len(workers) > _LISTED_WORKERS:
            largest = max(workers, key=lambda process: process.private_bytes)
            most = format_bytes(largest.private_bytes)
            total_bytes = sum([process.private_bytes for process in workers])
            remark = f"at most {most} by {worker_label(largest.worker or 0, largest.pid)}"
            yield _Row(1, f"{len(workers)} workers", total_bytes, remark)


def measure_processes(pid: int, workers: Mapping[int, int]) -> tuple[ProcessMemory, ...]:
    """Measure what each process of an engine has for itself.

    It takes 10 us a process, and without /proc milliseconds.

    Parameters
    ----------
    pid : int
        The process that the engine lives in.
    workers : mapping
        Process ids of the workers, by number.
    """
    processes = [(None, pid), *sorted(workers.items())]
    return tuple([ProcessMemory(worker, pid, estimate_memory([pid])) for worker, pid in processes])


__all__ = ["MemoryAccount", "ProcessMemory", "measure_processes"]
