"""Programs in a sandbox that denies system calls, as containers do by seccomp."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import pytest

from dask_mars.store import arena
from tests.conftest import Scripts

NUMBERS = {"x86_64": {"memfd_create": 319, "madvise": 28}, "aarch64": {"memfd_create": 279, "madvise": 233}}

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in NUMBERS, reason="has no seccomp that is known here"
)

DENY = """
import ctypes, struct, sys

def deny(numbers):
    load, jump_if_equal, answer = 0x20, 0x15, 0x06
    allowed, refused = 0x7FFF0000, 0x00050000 | 1
    steps = [(load, 0, 0, 0)]
    for number in numbers:
        steps += [(jump_if_equal, 0, 1, number), (answer, 0, 0, refused)]
    steps.append((answer, 0, 0, allowed))
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    held = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(held))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(38, 1, 0, 0, 0) == 0
    if prctl(22, 2, program, 0, 0):
        print("no seccomp")
        sys.exit()

deny([int(number) for number in sys.argv[1:]])
"""

COMPUTE = """
import os
import dask, dask.array as da
import dask_mars

try:
    os.memfd_create("x")
    print("memfd")
except PermissionError:
    print("no memfd")
x = da.arange(4_000_000, chunks=500_000)
def twice(block):
    return 2 * block
with dask_mars.Runtime(1, memory_limit="4 GiB") as runtime:
    print(int(x.sum().compute(scheduler=runtime.get)))
    print(int(x.map_blocks(twice).rechunk(300_000).sum().compute(scheduler=runtime.get)))
"""


@pytest.mark.slow
def test_calls_that_are_denied(scripts: Scripts) -> None:
    script = scripts.write("denied.py", DENY + COMPUTE)
    numbers = [str(number) for number in NUMBERS[platform.machine()].values()]
    done = scripts.run(str(script), *numbers, timeout_s=100)
    if done.stdout == "no seccomp\n":
        pytest.skip("no filter may be installed here")
    total = 4_000_000 * 3_999_999 // 2
    assert (done.stdout.split("\n")[:-1], done.stderr) == (["no memfd", str(total), str(2 * total)], "")


def test_a_limit_of_file_sizes_is_named(scripts: Scripts) -> None:
    program = """
import resource
import dask_mars

resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    dask_mars.get({"x": (abs, -1)}, "x")
except dask_mars.errors.SharedMemoryDenied as error:
    print("File too large" in str(error), "`ulimit -f`" in str(error))
"""
    done = scripts.run("-c", program)
    assert (done.stdout, done.stderr) == ("True True\n", "")
    assert not scripts.left()


@pytest.mark.parametrize("room", [True, False])
def test_a_file_in_place_of_an_arena_has_room(room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(name: str, flags: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", denied)
    monkeypatch.setattr(arena, "_SHARED_MEMORY", str(tmp_path))
    free = os.statvfs(tmp_path)
    descriptor = arena.create("test", 1 << 20 if room else free.f_blocks * free.f_frsize + 1)
    try:
        assert os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(tmp_path)) == room
    finally:
        os.close(descriptor)
    assert not os.listdir(tmp_path)
