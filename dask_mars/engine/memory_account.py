"""The account of an engine's memory: amounts, owners, and bytes on disk."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dask.utils import format_bytes

from dask_mars.labels import worker_label
from dask_mars.limits import estimate_memory

#: Maximum number of workers with a line each; more share one line.
_LISTED_WORKERS = 8


class ProcessMemory(NamedTuple):
    """Private memory of one process.

    Attributes
    ----------
    worker : int or None
        The number of the worker; None for the process that the engine lives in.
    pid : int
        Its process id.
    private_bytes : int
        Its private pages, without pages shared with others. 0 if it has just ended.
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
    """The uses of an engine's memory, in bytes. As text, and in notebooks, it is a small table.

    Memory in use is the sum of shared memory, private memory of processes, and programs and libraries.

    Attributes
    ----------
    limit_bytes : int
        Memory limit of all processes together.
    in_use_bytes : int
        Memory in use.
    peak_bytes : int
        Peak of measured memory in use; 0 for agents. Each account measures, and a computation up to ten times a
        second.
    shared_bytes : int
        Pages of shared memory: results, arrays that tasks work on, and free blocks.
    store_bytes, store_limit_bytes : int
        Results in memory, and their present limit.
    promised_bytes : int
        Reservations of dispatched tasks and of data on their way, and requests of running tasks. Tasks may use
        some of it already.
    private : tuple of ProcessMemory
        Private memory of each process: the one that the engine lives in, then the workers by id.
    library_bytes : int
        Approximate memory of programs and libraries, which count once.
    on_disk_bytes : int
        Size of the files of spilled results.
    spilled_bytes : int
        All bytes written to such files since the start, including removed ones.
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
        peak = f"at most {format_bytes(self.peak_bytes)} since the start" if self.peak_bytes else ""
        yield _Row(0, "in use", self.in_use_bytes, peak)
        if self.private:
            yield _Row(1, "shared memory", self.shared_bytes)
            yield _Row(2, "store", self.store_bytes, f"of {format_bytes(self.store_limit_bytes)}")
            yield from self._process_rows()
            yield _Row(1, "libraries", self.library_bytes, "counted once")
        yield _Row(0, "promised", self.promised_bytes, "for dispatched tasks")
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
    """Measure the private memory of each process: 10 us per process, and without /proc milliseconds."""
    processes = [(None, pid), *sorted(workers.items())]
    return tuple([ProcessMemory(worker, pid, estimate_memory([pid])) for worker, pid in processes])
