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
from collections.abc import Callable, Iterator
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

MACHINE_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

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

    def available(self) -> int:
        return memory_available(self.proc, self.cgroups)


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


# -- what there is --------------------------------------------------------------------------------------------


def test_without_groups_it_is_what_the_machine_has(system):
    assert system.available() == MACHINE_BYTES
    assert memory_available(system.root / "nothing", system.root / "nothing") == MACHINE_BYTES


@pytest.mark.parametrize("level", ["a/b", "a", ""])
@pytest.mark.parametrize("name", ["memory.max", "memory.high"])
def test_limit_at_any_level_of_version_2_holds(system, level, name):
    system.write("proc/self/cgroup", "0::/a/b")
    for folder in ("a/b", "a", ""):
        system.write(f"cgroup/{folder}/memory.max", "max")
        system.write(f"cgroup/{folder}/memory.high", "max")
    assert system.available() == MACHINE_BYTES
    system.write(f"cgroup/{level}/{name}", 12345)
    assert system.available() == 12345


@pytest.mark.parametrize("level", ["a/b", "a", ""])
def test_limit_at_any_level_of_version_1_holds(system, level):
    system.write("proc/self/cgroup", "5:cpu,cpuacct:/c\n4:memory:/a/b\n0::/")
    # How the first version says that there is no limit.
    system.write("cgroup/memory/a/b/memory.limit_in_bytes", 9223372036854771712)
    assert system.available() == MACHINE_BYTES
    system.write(f"cgroup/memory/{level}/memory.limit_in_bytes", 12345)
    system.write("cgroup/memory/c/memory.limit_in_bytes", 1)
    assert system.available() == 12345


def test_least_of_all_limits_counts(system):
    system.write("proc/self/cgroup", "0::/a/b")
    for folder, limit in {"a/b": 3000, "a": 2000, "": 5000}.items():
        system.write(f"cgroup/{folder}/memory.max", limit)
    assert system.available() == 2000


@pytest.mark.parametrize("path", ["/system.slice/docker-1234.scope", "/../../other", "/"])
def test_inside_a_container_the_group_is_at_the_root(system, path):
    system.write("proc/self/cgroup", f"0::{path}")
    system.write("cgroup/memory.max", 12345)
    assert system.available() == 12345


def test_groups_beside_the_root_do_not_count(system):
    system.write("proc/self/cgroup", "0::/a")
    system.write("cgroup/a/memory.max", "max")
    system.write("memory.max", 1)
    assert system.available() == MACHINE_BYTES


def test_both_versions_mounted(system):
    system.write("proc/self/cgroup", "4:memory:/a\n0::/b")
    system.write("cgroup/memory/a/memory.limit_in_bytes", 3000)
    system.write("cgroup/unified/b/memory.max", 2000)
    assert system.available() == 2000


# -- addresses ------------------------------------------------------------------------------------------------


@pytest.fixture
def limited(monkeypatch) -> Callable[[int], None]:
    """Set ``ulimit -v``, as far as can be seen."""

    def limit(size: int) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda which: {resource.RLIMIT_AS: (size, size)}[which])

    return limit


def test_addresses_without_a_limit_are_those_of_the_processor(system, limited):
    limited(resource.RLIM_INFINITY)
    system.write("proc/self/statm", "1000000 50 15 1 0 20 0")
    found = address_space(system.proc)
    assert found == ((1 << 47) - 1_000_000 * os.sysconf("SC_PAGE_SIZE"), None)


def test_addresses_with_a_limit_are_what_is_left_of_it(system, limited):
    limited(8 << 30)
    system.write("proc/self/statm", f"{(3 << 30) // os.sysconf('SC_PAGE_SIZE')} 50 15 1 0 20 0")
    assert address_space(system.proc) == (5 << 30, 8 << 30)
    limited(2 << 30)
    assert address_space(system.proc) == (0, 2 << 30)


def test_worker_processes_take_addresses_too(system, limited):
    limited(1 << 30)
    system.write("proc/self/statm", "1 1 0 1 0 1 0")
    assert address_space(system.proc) == (768 << 20, 1 << 30)
    assert address_space(system.root / "nothing") == (768 << 20, 1 << 30)


# -- what is used, by made-up files ---------------------------------------------------------------------------


def test_private_pages_are_added_up(system):
    page = os.sysconf("SC_PAGE_SIZE")
    system.write("proc/1/statm", "7000 50 15 1 0 20 0")
    system.write("proc/2/statm", "5000 30 10 1 0 20 0")
    assert estimate_memory([1, 2, 3], proc=system.proc) == (35 + 20) * page


def test_processes_that_are_gone_count_nothing(system):
    system.write("proc/2/statm", "0 0 0 0 0 0 0")
    assert estimate_memory([1, 2], proc=system.proc) == 0


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
