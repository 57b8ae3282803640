"""Memory limits and memory use of processes, from cgroups, /proc and arenas, and the addresses that they have.

Arenas are shared by all processes, and each counts among its own what it has touched of them. So private pages are
added up, and each arena is counted once, by the pages that its file has. It takes 10 us for a process of any size,
where the kernel's own shares (PSS) take 8 ms for each GiB. Left out are programs and libraries, whose pages can be
dropped and read again, and shared memory that is in no arena.
"""

from __future__ import annotations

import importlib
import os
import resource
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# fstat counts in these, whatever the file system's own blocks are.
_STAT_BLOCK_BYTES = 512
#: Addresses of a process: 47 bits on x86-64, and as a rule no less on other machines.
_ADDRESS_BYTES = 1 << 47
#: Addresses that a worker process takes for programs, libraries and its own heap when it starts; 211 MB were seen.
_WORKER_MAPPED_BYTES = 256 << 20


# -- what there is --------------------------------------------------------------------------------------------


def memory_available(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the bytes that this process may use: what the machine has, or the least that a cgroup allows.

    Parameters
    ----------
    proc, cgroups : Path
        Where these file systems are mounted.
    """
    machine = _PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")
    limits = [
        limit
        for folder, names in _limit_files(proc, cgroups)
        for name in names
        if (limit := _read_number(folder / name)) is not None
    ]
    return min([machine, *limits])


class AddressSpace(NamedTuple):
    """The addresses of a process.

    Attributes
    ----------
    free_bytes : int
        What it, and a worker process that it starts, may still map.
    limit_bytes : int or None
        The limit that was set for processes (``ulimit -v``), None if there is none.
    """

    free_bytes: int
    limit_bytes: int | None


def address_space(proc: Path = PROC) -> AddressSpace:
    """Return the addresses that this process has, worker processes inheriting the limit.

    Parameters
    ----------
    proc : Path
        Where this file system is mounted; without it, what this process has mapped already is not known.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    limit_bytes = None if limit == resource.RLIM_INFINITY else limit
    counts = (_read(proc / "self" / "statm") or "0").split()
    mapped = max(int(counts[0]) * _PAGE_BYTES, _WORKER_MAPPED_BYTES)
    total = _ADDRESS_BYTES if limit_bytes is None else min(limit_bytes, _ADDRESS_BYTES)
    return AddressSpace(max(total - mapped, 0), limit_bytes)


# -- control groups -------------------------------------------------------------------------------------------

_LIMITS_V1 = ("memory.limit_in_bytes",)
# At memory.high the kernel slows a group down until little moves, so it is as much a limit as memory.max.
_LIMITS_V2 = ("memory.max", "memory.high")


def _limit_files(proc: Path, cgroups: Path) -> Iterable[tuple[Path, tuple[str, ...]]]:
    """Yield the folders of this process's memory cgroup and of those above it, and the names of their limits."""
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
        # A process outside of the group at the root of its namespace sees a path that begins with "..".
        parts = [part for part in path.split("/") if part not in ("", "..")]
        if not controllers:
            # Where both versions are mounted, the second is one level down.
            root = cgroups / "unified" if (cgroups / "unified").is_dir() else cgroups
            groups.append((root, root.joinpath(*parts), 2))
        elif "memory" in controllers.split(","):
            root = cgroups / "memory"
            groups.append((root, root.joinpath(*parts), 1))
    return groups


# -- what is used ---------------------------------------------------------------------------------------------


def estimate_memory(pids: Collection[int], arenas: Iterable[int] = (), proc: Path = PROC) -> int:
    """Return what processes use: their private pages, and each arena once.

    Where there is no /proc, see `_memory_without_proc`.

    Parameters
    ----------
    pids : collection of int
        The processes. Those that have ended count nothing.
    arenas : iterable of int
        Descriptors of shared memory; pages that no process has mapped are counted too.
    proc : Path
        Where this file system is mounted.
    """
    if not (proc / "self").exists():
        return _memory_without_proc(pids, arenas)
    return sum(_anonymous_bytes(pid, proc) for pid in pids) + arena_bytes(arenas)


def library_bytes(pids: Collection[int], proc: Path = PROC) -> int:
    """Return about what programs and libraries of processes take: most of their pages are the same in all.

    Parameters
    ----------
    pids : collection of int
        The processes. Those that have ended count nothing.
    proc : Path
        Where this file system is mounted. Without it nothing is known, and 0 returned.
    """
    return max([_file_bytes(pid, proc) for pid in pids], default=0)


def _file_bytes(pid: int, proc: Path) -> int:
    _, _, rest = (_read(proc / str(pid) / "status") or "").partition("RssFile:")
    return int(rest.split(maxsplit=1)[0]) << 10 if rest else 0


def arena_bytes(arenas: Iterable[int]) -> int:
    """Return the bytes of memory that arenas take, by their descriptors, whoever has mapped them."""
    return sum(os.fstat(descriptor).st_blocks * _STAT_BLOCK_BYTES for descriptor in arenas)


def _anonymous_bytes(pid: int, proc: Path) -> int:
    # Resident pages, and those of them that belong to files or to shared memory: half the time of "status".
    counts = (_read(proc / str(pid) / "statm") or "").split()
    return (int(counts[1]) - int(counts[2])) * _PAGE_BYTES if counts else 0


def _memory_without_proc(pids: Iterable[int], arenas: Iterable[int]) -> int:
    """Return what processes use on macOS, in milliseconds rather than microseconds.

    With psutil it is what each has for itself, and the arenas once. Without, it is what ``ps`` says of resident
    memory, in which each process counts all that it has touched of the arenas: too much rather than too little.
    """
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
    # It fails if none of the processes is left, and then prints nothing.
    answer = subprocess.run(["ps", "-o", "rss=", "-p", chosen], capture_output=True, text=True, check=False)
    return sum(int(kibibytes) << 10 for kibibytes in answer.stdout.split())


# -- reading --------------------------------------------------------------------------------------------------


def _read(path: Path | str) -> str | None:
    """Return a small file's text, or None if it is not there (any more) or not for us."""
    try:
        # Half the time of Path.read_text, on what is read again and again.
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
