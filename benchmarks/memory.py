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
from collections.abc import Iterable, Iterator
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

#: Two workers of 600 MiB are sampled each 0.1 to 0.2 s then, and a peak of 0.3 s at 615 MiB was reported as 472.
#: So private pages and shared memory are looked at this often, which takes 0.3 ms, and a sample is taken as soon
#: as they are more than ever before by this factor.
_LOOK_S = 0.005
_NOTED_GROWTH = 1.01

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
        self.add_open_files(pid)

    def add_private(self, pid: int) -> None:
        """Add what only a process itself takes, and the shared memory that it has open."""
        resident, shared = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1:3]
        self.mapped_bytes += (int(resident) - int(shared)) * resource.getpagesize()
        self.add_open_files(pid)

    def add_open_files(self, pid: int) -> None:
        """Add the shared memory that a process has open."""
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
    for process in _tree(pid):
        with suppress(psutil.Error, OSError):
            if kind == "RSS":
                total += int(process.memory_info().rss)
            else:
                pages.add(process.pid)
    return total + pages.total_bytes()


def _tree(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants, as far as they have not ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _quick_bytes(processes: Iterable[psutil.Process]) -> int:
    """Add up private pages and shared memory of processes, in little time."""
    pages = _Pages()
    for process in processes:
        with suppress(OSError):
            pages.add_private(process.pid)
    return pages.total_bytes()


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
        processes: list[psutil.Process] = []
        most = due_s = 0.0
        # At least once, however soon it is over.
        while True:
            quick = _quick_bytes(processes) if kind == "PSS" else 0
            began_s = time.perf_counter()
            if quick > most * _NOTED_GROWTH or began_s >= due_s:
                most = max(most, quick)
                # Listing them takes longer than looking at them.
                processes = _tree(pid)
                peak.bytes = max(peak.bytes, tree_bytes(pid, kind))
                ended_s = time.perf_counter()
                due_s = ended_s + max(SHORTEST_PAUSE_S, PAUSE_PER_COST * (ended_s - began_s))
            if ended.wait(_LOOK_S):
                return

    thread = threading.Thread(target=sample, name="peak-memory", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
