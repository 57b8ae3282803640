"""Peak memory of a process and all its descendants.

On Linux a process counts with its proportional set size (PSS): a page mapped by n processes counts
1/n in each, so shared memory counts once. Elsewhere the resident set size stands in, which counts
shared pages once per process. Pages of a memfd that no process maps at the moment are in nobody's PSS, so that
what such files take is compared with the shared memory that is mapped.
"""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

#: Reading ``smaps_rollup`` was measured at about 4 ms per GiB that the process maps, shared or not,
#: plus 0.1 ms, and listing the descendants at 0.5 ms. Two workers that share 2 GiB then cost some
#: 20 ms a sample, which at a fixed interval of 50 ms would take a third of a core. So small trees
#: are sampled every 20 ms, which short runs need, and large ones at most a tenth of the time.
SHORTEST_PAUSE_S = 0.020
PAUSE_PER_COST = 9.0

#: fstat counts in these, whatever the file system's own blocks are.
_STAT_BLOCK_BYTES = 512

MemoryKind = Literal["PSS", "RSS"]


def memory_kind() -> MemoryKind:
    """Tell which figure this system gives.

    Returns
    -------
    str
        ``"PSS"`` on Linux 4.14 and later, else ``"RSS"``.
    """
    return "PSS" if Path("/proc/self/smaps_rollup").exists() else "RSS"


@dataclass(slots=True)
class _Pages:
    """What a process tree takes, as far as it has been added up."""

    mapped_bytes: int = 0
    #: The part of it that lies in shared memory.
    mapped_shared_bytes: int = 0
    #: Shared memory that a process has open, by inode: anonymous files, which go with their last descriptor.
    open_bytes: dict[int, int] = field(default_factory=dict)

    def add(self, pid: int) -> None:
        """Add a process."""
        with Path(f"/proc/{pid}/smaps_rollup").open(encoding="ascii") as rollup:
            # A process that is about to be reaped has an empty file.
            for line in rollup:
                if line.startswith("Pss:"):
                    self.mapped_bytes += int(line.split()[1]) * 1024
                elif line.startswith("Pss_Shmem:"):
                    self.mapped_shared_bytes += int(line.split()[1]) * 1024
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if str(descriptor.readlink()).startswith("/memfd:"):
                    file = descriptor.stat()
                    self.open_bytes[file.st_ino] = file.st_blocks * _STAT_BLOCK_BYTES

    def total_bytes(self) -> int:
        """Add up what is mapped, and what is not mapped at the moment and takes memory nevertheless."""
        return self.mapped_bytes + max(0, sum(self.open_bytes.values()) - self.mapped_shared_bytes)


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
    pages = _Pages()
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return total
    for process in processes:
        with suppress(psutil.Error, OSError):
            if kind == "RSS":
                total += int(process.memory_info().rss)
            else:
                pages.add(process.pid)
    return total + pages.total_bytes()


def own_peak_bytes() -> int:
    """Return the most memory that this process alone has had until now."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


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
