"""What memory there is, by made-up files of the system, and what real processes use of it."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dask_mars.limits import (
    arena_bytes,
    cgroup_memory,
    estimate_memory,
    memory_available,
    own_cgroup,
    tree_memory,
)

GIB = 1 << 30
MACHINE_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

needs_proc = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="there is no /proc")


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

    def used(self, *pids: int, arenas: tuple[int, ...] = ()) -> int:
        return tree_memory(pids, arenas, self.proc, self.cgroups)


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


# -- what is used, by made-up files ---------------------------------------------------------------------------

ROLLUP = """00400000-7ffe0000 ---p 00000000 00:00 0    [rollup]
Rss:             900 kB
Pss:             {pss} kB
Pss_Shmem:       {shared} kB
Private_Dirty:   100 kB"""


def test_proportional_sizes_are_added_up(system):
    system.write("proc/1/smaps_rollup", ROLLUP.format(pss=100, shared=0))
    system.write("proc/2/smaps_rollup", ROLLUP.format(pss=20, shared=5))
    assert system.used(1, 2) == 120 << 10


def test_process_without_rollup_counts_its_private_pages(system):
    page = os.sysconf("SC_PAGE_SIZE")
    system.write("proc/1/smaps_rollup", ROLLUP.format(pss=100, shared=0))
    system.write("proc/2/statm", "5000 30 10 1 0 20 0")
    assert system.used(1, 2) == (100 << 10) + 20 * page
    assert estimate_memory([2, 3], proc=system.proc) == 20 * page


def test_processes_that_are_gone_count_nothing(system):
    system.write("proc/2/smaps_rollup", "")
    system.write("proc/2/statm", "0 0 0 0 0 0 0")
    assert system.used(1, 2) == 0


def test_pages_of_arenas_that_nobody_has_mapped_are_counted(system, shared):
    descriptor, _ = shared(1 << 20)
    system.write("proc/1/smaps_rollup", ROLLUP.format(pss=500, shared=400))
    assert system.used(1, arenas=(descriptor,)) == (500 << 10) + (1 << 20) - (400 << 10)


STAT_V2 = "anon 1000\nfile 500\nshmem 300\ninactive_file 150"
STAT_V1 = "cache 1\nrss 2\nshmem 3\ntotal_cache 500\ntotal_rss 1000\ntotal_shmem 300"


@pytest.fixture(params=[1, 2])
def group(request: pytest.FixtureRequest, system: System) -> str:
    """Make a cgroup in which are the processes 1 and 2, and one below it with 3."""
    if request.param == 2:
        folder = "cgroup/ours"
        system.write("proc/self/cgroup", "0::/ours")
        system.write(f"{folder}/memory.current", 1600)
        system.write(f"{folder}/memory.stat", STAT_V2)
    else:
        folder = "cgroup/memory/ours"
        system.write("proc/self/cgroup", "4:memory:/ours\n0::/")
        system.write(f"{folder}/memory.usage_in_bytes", 1600)
        system.write(f"{folder}/memory.stat", STAT_V1)
    system.write(f"{folder}/cgroup.procs", "1\n2")
    system.write(f"{folder}/below/cgroup.procs", "3")
    for pid in (1, 2, 3):
        system.write(f"proc/{pid}/smaps_rollup", ROLLUP.format(pss=1, shared=0))
    return folder


def test_group_of_our_own_counts_what_it_is_charged_for_without_files(system, group):
    assert cgroup_memory(system.root / group) == 1600 - (500 - 300)
    assert system.used(1, 2, 3) == 1400


def test_group_with_others_in_it_says_nothing_of_us(system, group):
    assert own_cgroup([1, 2], system.proc, system.cgroups) is None
    assert system.used(1, 2) == 2 << 10


def test_group_that_tells_no_count_is_passed_over(system, group):
    for name in ("memory.current", "memory.usage_in_bytes"):
        (system.root / group / name).unlink(missing_ok=True)
    assert system.used(1, 2, 3) == 3 << 10


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


@contextlib.contextmanager
def reader(descriptor: int, size: int) -> Iterator[int]:
    """Run a process that has read all pages of an arena, and yield its id."""
    script = (
        f"import mmap; m = mmap.mmap({descriptor}, {size}, prot=mmap.PROT_READ)\n"
        "assert m[:].count(b'x') == len(m); print(flush=True); input()"
    )
    command = [sys.executable, "-S", "-c", script]
    with subprocess.Popen(
        command, pass_fds=[descriptor], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate(b"\n")


@needs_proc
def test_shared_pages_count_once_however_many_have_them(shared):
    size = 64 << 20
    descriptor, _ = shared(size)
    pids = [os.getpid()]
    before = tree_memory(pids)
    with reader(descriptor, size) as pid:
        both = tree_memory([*pids, pid])
        # The new process has a few MB of its own; the shared pages would be 64.
        assert abs(both - before) < size / 2
        assert tree_memory(pids) < before - size / 4
        each = sum(psutil.Process(one).memory_info().rss for one in [*pids, pid])
        assert each > both + size / 2


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
        assert tree_memory([process.pid]) == estimate_memory([process.pid]) == 0
    assert tree_memory([process.pid]) == estimate_memory([process.pid]) == 0


# -- without /proc --------------------------------------------------------------------------------------------


def test_without_proc_psutil_tells_what_each_has_for_itself(tmp_path):
    used = tree_memory([os.getpid()], proc=tmp_path)
    assert used == pytest.approx(psutil.Process().memory_full_info().uss, rel=0.5)


def test_without_psutil_too_ps_tells_resident_sizes(tmp_path, monkeypatch):
    expected = psutil.Process().memory_info().rss
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert tree_memory([os.getpid()], proc=tmp_path) == pytest.approx(expected, rel=0.5)
    assert tree_memory([], proc=tmp_path) == 0


@pytest.mark.parametrize("with_psutil", [True, False])
def test_without_proc_ended_processes_count_nothing(tmp_path, monkeypatch, with_psutil):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    if not with_psutil:
        monkeypatch.setitem(sys.modules, "psutil", None)
    assert tree_memory([process.pid], proc=tmp_path) == 0
