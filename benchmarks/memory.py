"""Peak memory of a process and all its descendants.

On Linux a process counts with its proportional set size (PSS): a page mapped by n processes counts
1/n in each, so shared memory counts once. Elsewhere the resident set size stands in, which counts
shared pages once per process. Pages that no process maps at the moment, such as parts of a memfd
that is open but unmapped, are seen by neither.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

#: Reading ``smaps_rollup`` was measured at about 4 ms per GiB that the process maps, shared or not,
#: plus 0.1 ms, and listing the descendants at 0.5 ms. Two workers that share 2 GiB then cost some
#: 20 ms a sample, which at a fixed interval of 50 ms would take a third of a core. So small trees
#: are sampled every 20 ms, which short runs need, and large ones at most a tenth of the time.
SHORTEST_PAUSE_S = 0.020
PAUSE_PER_COST = 9.0

MemoryKind = Literal["PSS", "RSS"]


def memory_kind() -> MemoryKind:
    """Tell which figure this system gives.

    Returns
    -------
    str
        ``"PSS"`` on Linux 4.14 and later, else ``"RSS"``.
    """
    return "PSS" if Path("/proc/self/smaps_rollup").exists() else "RSS"


def _process_bytes(process: psutil.Process, kind: MemoryKind) -> int:
    if kind == "RSS":
        return int(process.memory_info().rss)
    with Path(f"/proc/{process.pid}/smaps_rollup").open(encoding="ascii") as rollup:
        for line in rollup:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    # A process that is about to be reaped has an empty file.
    return 0


def tree_bytes(pid: int, kind: MemoryKind) -> int:
    """Add up the memory of a process and its descendants.

    Parameters
    ----------
    pid
        The root of the tree.
    kind
        What to count.

    Returns
    -------
    int
        Bytes. Processes that ended meanwhile count as nothing.
    """
    total = 0
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return total
    for process in processes:
        try:
            total += _process_bytes(process, kind)
        except (psutil.Error, OSError):
            continue
    return total


@dataclass(slots=True)
class Peak:
    """The largest sample so far."""

    bytes: int = 0


@contextmanager
def peak_memory(pid: int) -> Iterator[Peak]:
    """Sample a process tree from a thread while the context is open.

    Parameters
    ----------
    pid
        The root of the tree.

    Yields
    ------
    Peak
        Its `bytes` are final when the context is closed.
    """
    peak = Peak()
    ended = threading.Event()
    kind = memory_kind()

    def sample() -> None:
        pause_s = 0.0
        while not ended.wait(pause_s):
            began_s = time.perf_counter()
            peak.bytes = max(peak.bytes, tree_bytes(pid, kind))
            pause_s = max(SHORTEST_PAUSE_S, PAUSE_PER_COST * (time.perf_counter() - began_s))

    thread = threading.Thread(target=sample, name="peak-memory", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
