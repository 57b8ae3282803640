"""What memory there is, by made-up files of the system, and what real processes use of it."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dask_mars.limits import (
    address_space,
    arena_bytes,
    estimate_memory,
    forget_fork,
    largest_inheritance,
    memory_available,
    note_copies,
    note_fork,
    note_start,
)

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MACHINE_BYTES = PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")

needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no /proc")


class System:
    """Files like those of /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self.write("proc/self/cgroup", "")
        self.root = root

    def write(self, path: str, text: str | int) -> None:
        file = self.proc.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n" if text != "" else "")


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


# -- what there is --------------------------------------------------------------------------------------------


#: Files of groups of version 2 without any limit, at each level.
UNLIMITED_2 = {f"{level}memory.{name}": "max" for level in ("a/b/", "a/", "") for name in ("max", "high")}
#: Of version 1, which has a number for no limit; and of the group of a process that is none of them.
UNLIMITED_1 = {"memory/a/b/memory.limit_in_bytes": 9223372036854771712, "memory/c/memory.limit_in_bytes": 1}
IN_1 = "5:cpu,cpuacct:/c\n4:memory:/a/b\n0::/"
LIMITS: list[tuple[str, dict[str, str | int], int]] = [
    ("", {}, MACHINE_BYTES),
    ("0::/a/b", UNLIMITED_2, MACHINE_BYTES),
    *[("0::/a/b", {**UNLIMITED_2, file: 12345}, 12345) for file in UNLIMITED_2],
    (IN_1, {**UNLIMITED_1}, MACHINE_BYTES),
    *[
        (IN_1, {**UNLIMITED_1, f"memory/{level}memory.limit_in_bytes": 12345}, 12345)
        for level in ("a/b/", "a/", "")
    ],
    ("0::/a/b", {"a/b/memory.max": 3000, "a/memory.max": 2000, "memory.max": 5000}, 2000),
    # Inside a container the group is at the root.
    *[
        (f"0::{path}", {"memory.max": 12345}, 12345)
        for path in ("/system.slice/docker-1234.scope", "/../../other", "/")
    ],
    # Beside the root is no group.
    ("0::/a", {"a/memory.max": "max", "../memory.max": 1}, MACHINE_BYTES),
    ("4:memory:/a\n0::/b", {"memory/a/memory.limit_in_bytes": 3000, "unified/b/memory.max": 2000}, 2000),
]


@pytest.mark.parametrize(("groups", "files", "expected"), LIMITS)
def test_the_least_limit_of_the_groups_of_a_process_holds(system, groups, files, expected):
    system.write("proc/self/cgroup", groups)
    for file, limit in files.items():
        system.write(f"cgroup/{file}", limit)
    assert memory_available(system.proc, system.cgroups) == expected


def test_without_files_it_is_what_the_machine_has(tmp_path):
    assert memory_available(tmp_path, tmp_path) == MACHINE_BYTES


# -- addresses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "mapped_bytes", "expected"),
    [
        (resource.RLIM_INFINITY, 4 << 30, ((1 << 47) - (4 << 30), None)),
        (8 << 30, 3 << 30, (5 << 30, 8 << 30)),
        (2 << 30, 3 << 30, (0, 2 << 30)),
        # Worker processes take addresses too.
        (1 << 30, PAGE_BYTES, (768 << 20, 1 << 30)),
        (1 << 30, None, (768 << 20, 1 << 30)),
    ],
)
def test_addresses_are_what_is_left_of_the_limit(system, monkeypatch, limit, mapped_bytes, expected):
    monkeypatch.setattr(resource, "getrlimit", lambda which: {resource.RLIMIT_AS: (limit, limit)}[which])
    if mapped_bytes is not None:
        system.write("proc/self/statm", f"{mapped_bytes // PAGE_BYTES} 50 15 1 0 20 0")
    assert address_space(system.proc) == expected


# -- what is used, by made-up files ---------------------------------------------------------------------------


def test_private_pages_are_added_up_and_processes_that_are_gone_count_nothing(system):
    for pid, counts in enumerate(("7000 50 15", "5000 30 10", "0 0 0"), 1):
        system.write(f"proc/{pid}/statm", f"{counts} 1 0 20 0")
    assert estimate_memory([1, 2, 3, 4], proc=system.proc) == (35 + 20) * PAGE_BYTES


# -- what is used, by real processes --------------------------------------------------------------------------


@pytest.fixture
def shared() -> Iterator:
    """Make arenas: descriptors and mappings, of which all pages have been touched."""
    with contextlib.ExitStack() as stack:

        def make(size: int) -> tuple[int, mmap.mmap]:
            descriptor = os.memfd_create("test-limits") if hasattr(os, "memfd_create") else pytest.skip("no memfd")
            stack.callback(os.close, descriptor)
            os.ftruncate(descriptor, size)
            mapped = stack.enter_context(mmap.mmap(descriptor, size))
            mapped[:] = b"x" * size
            return descriptor, mapped

        yield make


@needs_proc
def test_estimate_counts_private_pages_and_arenas_once(shared):
    size = 64 << 20
    pids = [os.getpid()]
    before = estimate_memory(pids)
    descriptor, _ = shared(size)
    assert abs(estimate_memory(pids) - before) < size / 4
    assert abs(estimate_memory(pids, [descriptor]) - before - size) < size / 4
    private = bytearray(b"x") * size
    assert abs(estimate_memory(pids) - before - size) < size / 4
    del private


def test_arena_takes_the_pages_that_were_touched(shared):
    descriptor, _ = shared(1 << 20)
    os.ftruncate(descriptor, 1 << 30)
    assert arena_bytes([descriptor]) == 1 << 20
    assert arena_bytes([descriptor, descriptor]) == 2 << 20


@needs_proc
def test_ended_processes_and_zombies_count_nothing():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert estimate_memory([process.pid]) == 0
    assert estimate_memory([process.pid]) == 0


@needs_proc
@pytest.mark.parametrize("measure", [note_start, note_copies])
def test_pages_that_a_forked_process_shares_are_not_its_own(monkeypatch, measure):
    monkeypatch.setattr("dask_mars.limits._MOST_MAPPED_BYTES", 1 << 40)
    size = 32 << 20
    block, (ours, theirs) = bytearray(b"x") * size, socket.socketpair()
    with ours, theirs:
        pid = os.fork()
        if not pid:
            # All that it writes to it has copied.
            theirs.recv(1)
            block[:] = b"y" * size
            theirs.send(b"-")
            theirs.recv(1)
            os._exit(0)
        try:
            all_bytes = estimate_memory([pid])
            assert all_bytes > size
            note_fork(pid)
            assert estimate_memory([pid]) < size // 8
            assert largest_inheritance() > size
            ours.send(b"-")
            ours.recv(1)
            measure(pid)
            # Python itself copies some more.
            assert size <= estimate_memory([pid]) < all_bytes
            forget_fork(pid)
            assert estimate_memory([pid]) == pytest.approx(all_bytes, rel=0.1)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@needs_proc
def test_processes_that_were_not_forked_have_no_shared_pages():
    before = estimate_memory([os.getpid()])
    note_start(os.getpid())
    assert estimate_memory([os.getpid()]) == pytest.approx(before, rel=0.1)


# -- without /proc --------------------------------------------------------------------------------------------


def test_without_proc_psutil_tells_what_each_has_for_itself(tmp_path):
    used = estimate_memory([os.getpid()], proc=tmp_path)
    assert used == pytest.approx(psutil.Process().memory_full_info().uss, rel=0.5)


def test_without_psutil_too_ps_tells_resident_sizes(tmp_path, monkeypatch):
    expected = psutil.Process().memory_info().rss
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert estimate_memory([os.getpid()], proc=tmp_path) == pytest.approx(expected, rel=0.5)
    assert estimate_memory([], proc=tmp_path) == 0


@pytest.mark.parametrize("with_psutil", [True, False])
def test_without_proc_ended_processes_count_nothing(tmp_path, monkeypatch, with_psutil):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    if not with_psutil:
        monkeypatch.setitem(sys.modules, "psutil", None)
    assert estimate_memory([process.pid], proc=tmp_path) == 0
