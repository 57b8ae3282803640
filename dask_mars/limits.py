"""Memory limits, memory use and address space of processes, from cgroups, /proc and arenas.

All processes share the arenas, and the kernel counts the arena pages that a process has touched as its own. So
this adds up private pages, and counts each arena once, by the pages of its file. It takes 10 us for a process of
any size, where the kernel's own shares (PSS) take 8 ms for each GiB. It omits programs and libraries, whose pages
can be dropped and read again, and shared memory outside of arenas. The pages that a forked process shares with the
one that it was forked from count there: the kernel has no cheap figure of them, so they are measured at the end of
its start, and rarely later.
"""

from __future__ import annotations

import importlib
import os
import re
import resource
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Unit of fstat, whatever the file system's own blocks are.
_STAT_BLOCK_BYTES = 512
#: Addresses of a process in bytes: 47 bits on x86-64, and usually no fewer on other machines.
_ADDRESS_BYTES = 1 << 47
#: Addresses that a starting worker needs for programs, libraries and its heap, in bytes; 211 MB were measured.
_WORKER_MAPPED_BYTES = 256 << 20


# -- limits ---------------------------------------------------------------------------------------------------


def memory_available(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the bytes that this process may use: the machine's memory, or the smallest cgroup limit."""
    machine = _PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")
    limits = [
        limit
        for folder, names in _limit_files(proc, cgroups)
        for name in names
        if (limit := _read_number(folder / name)) is not None
    ]
    return min([machine, *limits])


class AddressSpace(NamedTuple):
    """The addresses of a process."""

    #: Bytes that it, and a worker process that it starts, may still map.
    free_bytes: int
    #: The limit of processes (``ulimit -v``), None if there is none.
    limit_bytes: int | None


def address_space(proc: Path = PROC) -> AddressSpace:
    """Return the address space of this process; worker processes inherit the limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    limit_bytes = None if limit == resource.RLIM_INFINITY else limit
    counts = (_read(proc / "self" / "statm") or "0").split()
    mapped = max(int(counts[0]) * _PAGE_BYTES, _WORKER_MAPPED_BYTES)
    total = _ADDRESS_BYTES if limit_bytes is None else min(limit_bytes, _ADDRESS_BYTES)
    return AddressSpace(max(total - mapped, 0), limit_bytes)


def descriptors() -> tuple[int, int]:
    """Return how many descriptors this process has open, and how many it may have (``ulimit -n``)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = sys.maxsize
    folder = PROC / "self" / "fd"
    try:
        listed = list((folder if folder.is_dir() else Path("/dev/fd")).iterdir())
    except OSError:
        # Not even one is left for the listing.
        return limit, limit
    return len(listed) - 1, limit


# -- control groups -------------------------------------------------------------------------------------------

_LIMITS_V1 = ("memory.limit_in_bytes",)
# Above memory.high the kernel slows a group down almost to a standstill, so it is as much a limit as memory.max.
_LIMITS_V2 = ("memory.max", "memory.high")


def _limit_files(proc: Path, cgroups: Path) -> Iterable[tuple[Path, tuple[str, ...]]]:
    """Yield the folders of this process's memory cgroup and its ancestors, and the names of their limits."""
    for root, folder, version in _memory_groups(proc / "self", cgroups):
        names = _LIMITS_V2 if version == 2 else _LIMITS_V1
        for candidate in (folder, *folder.parents):
            if not candidate.is_relative_to(root):
                break
            yield candidate, names


def _memory_groups(process: Path, cgroups: Path) -> list[tuple[Path, Path, int]]:
    """Return the memory cgroups of a process: the root of the hierarchy, the group's folder, and the version."""
    groups = []
    for line in (_read(process / "cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        # A process outside of its namespace's root group sees a path that begins with "..".
        parts = [part for part in path.split("/") if part not in ("", "..")]
        if not controllers:
            # Where both versions are mounted, the second is one level down.
            root = cgroups / "unified" if (cgroups / "unified").is_dir() else cgroups
            groups.append((root, root.joinpath(*parts), 2))
        elif "memory" in controllers.split(","):
            root = cgroups / "memory"
            groups.append((root, root.joinpath(*parts), 1))
    return groups


# -- use ------------------------------------------------------------------------------------------------------


def estimate_memory(pids: Collection[int], arenas: Iterable[int] = (), proc: Path = PROC) -> int:
    """Return the memory use of processes: their private pages, and each arena once."""
    # Without /proc, see `_memory_without_proc`.
    if not os.access(f"{proc}/self", os.F_OK):
        return _memory_without_proc(pids, arenas)
    return sum(_own_bytes(pid, proc) for pid in pids) + arena_bytes(arenas)


#: Bytes that a process may have mapped for its shared pages to be measured again: 1 to 2 ms.
_MOST_MAPPED_BYTES = 128 << 20
#: Pages in bytes that forked processes have from the process that they were forked from, by id.
_inherited: dict[int, int] = {}
# Those are no children of a process that the user forks.
os.register_at_fork(after_in_child=_inherited.clear)


def note_fork(pid: int, proc: Path = PROC) -> None:
    """Record that a process has just been forked: all of its pages are those of the other process."""
    _inherited[pid] = anonymous_bytes(pid, proc)


def note_start(pid: int, proc: Path = PROC) -> None:
    """Record how much a forked process still shares at the end of its start, when it has mapped little else."""
    if pid in _inherited and (own := _rollup(pid, proc).get("Private_Dirty")) is not None:
        _inherited[pid] = max(anonymous_bytes(pid, proc) - own, 0)


def note_copies(pid: int, proc: Path = PROC) -> int:
    """Return how many bytes of shared pages a forked process has copied since they were measured last."""
    # Not of one that has mapped so much that reading this takes long.
    before_bytes = _inherited.get(pid, 0)
    if not before_bytes or _resident_bytes(pid, proc)[0] > _MOST_MAPPED_BYTES:
        return 0
    found = _rollup(pid, proc)
    if "Pss_Anon" not in found:
        return 0
    # All workers share most of these pages, and with their template.
    count = len(_inherited) + 1
    shared_bytes = (found["Anonymous"] - found["Pss_Anon"]) * count // (count - 1)
    _inherited[pid] = min(before_bytes, shared_bytes)
    return before_bytes - _inherited[pid]


def largest_inheritance() -> int:
    """Return the largest memory that a forked process still shares."""
    # A copy: several threads ask, and an engine's thread forks.
    return max([*_inherited.values()], default=0)


def forget_fork(pid: int) -> None:
    """Record that a process has ended."""
    _inherited.pop(pid, None)


def library_bytes(pids: Collection[int], proc: Path = PROC) -> int:
    """Return the approximate size of programs and libraries; processes share most of these pages."""
    return max([_file_bytes(pid, proc) for pid in pids], default=0)


def _file_bytes(pid: int, proc: Path) -> int:
    _, _, rest = (_read(f"{proc}/{pid}/status") or "").partition("RssFile:")
    return int(rest.split(maxsplit=1)[0]) << 10 if rest else 0


def arena_bytes(arenas: Iterable[int]) -> int:
    """Return the bytes of memory that arenas take, given their descriptors."""
    return sum(os.fstat(descriptor).st_blocks * _STAT_BLOCK_BYTES for descriptor in arenas)


def _resident_bytes(pid: int, proc: Path) -> tuple[int, int]:
    """Return the resident bytes of a process, and the part that is of files and shared memory."""
    # Half the time of "status".
    counts = (_read(f"{proc}/{pid}/statm") or "0 0 0").split()
    return int(counts[1]) * _PAGE_BYTES, int(counts[2]) * _PAGE_BYTES


def anonymous_bytes(pid: int, proc: Path = PROC) -> int:
    """Return the resident bytes of a process that are neither of files nor of shared memory."""
    resident_bytes, mapped_bytes = _resident_bytes(pid, proc)
    return resident_bytes - mapped_bytes


def _rollup(pid: int, proc: Path) -> dict[str, int]:
    """Return the kernel's sums over the mappings of a process, in bytes; it needs 8 ms or more for each GiB."""
    lines = re.findall(r"^(\w+): +(\d+) kB", _read(f"{proc}/{pid}/smaps_rollup") or "", re.MULTILINE)
    return {name: int(kibibytes) << 10 for name, kibibytes in lines}


def _own_bytes(pid: int, proc: Path) -> int:
    return max(anonymous_bytes(pid, proc) - _inherited.get(pid, 0), 0)


def _memory_without_proc(pids: Iterable[int], arenas: Iterable[int]) -> int:
    """Return the memory use of processes on macOS, in milliseconds rather than microseconds."""
    # With psutil it is private memory plus the arenas once; without, the resident memory from ``ps``, which counts
    # arena pages once per process: too much rather than too little.
    try:
        psutil: Any = importlib.import_module("psutil")
    except ImportError:
        return _resident_by_ps(pids)
    total = arena_bytes(arenas)
    for pid in pids:
        try:
            total += psutil.Process(pid).memory_full_info().uss
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            total += _resident_by_ps([pid])
    return total


def _resident_by_ps(pids: Iterable[int]) -> int:
    chosen = ",".join(map(str, pids))
    if not chosen:
        return 0
    # It fails if no process is left, and then prints nothing.
    answer = subprocess.run(["ps", "-o", "rss=", "-p", chosen], capture_output=True, text=True, check=False)
    return sum(int(kibibytes) << 10 for kibibytes in answer.stdout.split())


# -- reading --------------------------------------------------------------------------------------------------


def _read(path: Path | str) -> str | None:
    """Return a small file's text, or None if it is missing or unreadable."""
    try:
        # Half the time of Path.read_text, for files that are read often.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
    except OSError:
        # The process ended between opening and reading.
        return None
    finally:
        os.close(descriptor)
    return b"".join(parts).decode("utf-8", "replace")


def _read_number(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if text.isdigit() else None
