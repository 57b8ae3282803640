"""Files of spilled values: what is read back, disks that are full or failing, owners that were killed."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_mars.errors import MarsError, SpillDiskFailed, SpillDiskFull, SpilledValueLost
from dask_mars.store import spill_files, spill_ownership
from dask_mars.store.codec import CODECS, Codec, lz4_codec
from dask_mars.store.spill_files import SpillDirectory, SpilledFile, SpillFiles
from dask_mars.store.spill_ownership import PREFIX, Owner, clear_abandoned, make_private_directory, start_time

#: Disks for which compressing always pays, and never.
SLOW_BYTES_PER_S, FAST_BYTES_PER_S = 1e3, 1e15

ZLIB = Codec("zlib", lambda data: zlib.compress(data, 1), lambda data, size: zlib.decompress(data, bufsize=size))

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[SpillDirectory]:
    with closing(SpillDirectory(tmp_path / "spill", codec=ZLIB)) as directory:
        directory.disk_bytes_per_s = SLOW_BYTES_PER_S
        yield directory
        assert not list(directory.path.glob(".*")), "a partial file is left"
    assert not list((tmp_path / "spill").iterdir())


def bytes_of(views: list[memoryview]) -> list[bytes]:
    return [bytes(view) for view in views]


def noise(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


# -- what is read back ----------------------------------------------------------------------------------------

BUFFERS = {
    "none": [],
    "empty": [b""],
    "empties between": [b"", b"a", b"", b"", b"b", b""],
    "one": [noise(1000)],
    "large": [noise((1 << 20) + 7)],
    "many": [bytes([number % 256]) * (number % 5) for number in range(5000)],
    "mixed": [noise(300_000), b"", b"x", noise(700_001)],
}


@pytest.mark.parametrize("buffers", BUFFERS.values(), ids=BUFFERS)
def test_buffers_are_read_back_writable(directory, buffers):
    file = directory.write("value", buffers)
    assert file.parts == tuple(map(len, buffers))
    assert file.size_bytes == os.path.getsize(file.path) == sum(file.parts)
    views = directory.read(file)
    assert bytes_of(views) == buffers
    assert not any(view.readonly for view in views)


@given(buffers=st.lists(st.binary(max_size=40), max_size=12), chunk=st.integers(1, 30), most=st.integers(1, 5))
def test_however_the_calls_are_cut(directory, buffers, chunk, most):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(spill_files, "_CHUNK_BYTES", chunk)
        monkeypatch.setattr(spill_files, "_CHUNK_BUFFERS", most)
        # Systems may write and read less than they are asked for.
        lengths = []
        writev, readv = os.writev, os.readv

        def short(call):
            def called(descriptor, pieces):
                assert 0 < len(pieces) <= most
                assert all(map(len, pieces))
                lengths.append(sum(map(len, pieces)))
                return call(descriptor, [pieces[0][: max(len(pieces[0]) - 1, 1)]])

            return called

        monkeypatch.setattr(os, "writev", short(writev))
        monkeypatch.setattr(os, "readv", short(readv))
        file = directory.write("value", buffers)
        assert bytes_of(directory.read(file)) == buffers
        assert max(lengths, default=0) <= chunk


def test_no_call_gets_more_than_a_system_takes():
    # Linux stops at 2 GiB less a page, macOS refuses 2 GiB; POSIX promises 1024 buffers on both.
    assert spill_files._CHUNK_BYTES < (1 << 31) - 4096
    assert min(os.sysconf("SC_IOV_MAX"), 1024) >= spill_files._CHUNK_BUFFERS


def test_memory_with_gaps_is_refused_and_nothing_is_written(directory):
    with pytest.raises(BufferError):
        directory.write("value", [np.arange(10)[::2]])
    assert not list(directory.path.iterdir())


@pytest.mark.parametrize("into", [[], [bytearray(2)], [bytearray(4)], [b"abc"], [bytearray(3), bytearray(0)]])
def test_memory_to_read_into_must_fit(directory, into):
    file = directory.write("value", [b"abc"])
    with pytest.raises(ValueError, match="memory to read into"):
        directory.read(file, into=into)


@pytest.mark.parametrize("name", ["", ".hidden", "../elsewhere", "a/b"])
def test_names_stay_in_the_directory(directory, name):
    with pytest.raises(ValueError, match="name"):
        directory.write(name, [b"abc"])


def test_file_is_replaced_when_the_new_one_is_whole(directory):
    directory.write("value", [b"old"])
    assert bytes_of(directory.read(directory.write("value", [b"newer"]))) == [b"newer"]
    assert [path.name for path in directory.path.iterdir()] == ["value"]


def test_threads_write_and_read_at_the_same_time(directory):
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        buffers = [noise(100_000 + number), bytes([number])]
        barrier.wait()
        for turn in range(5):
            # One name for each thread, and one for which all of them compete.
            for name in (f"value-{number}", "shared"):
                file = directory.write(name, buffers)
                if name != "shared":
                    assert bytes_of(directory.read(file)) == buffers
                    if turn % 2:
                        directory.remove(file)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, number) for number in range(8)]:
            done.result()
    assert len(list(directory.path.iterdir())) == 8 + 1


# -- compression ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["zlib", "lz4"])
def test_compressible_values_take_less(tmp_path, name):
    if name == "lz4":
        pytest.importorskip("lz4")
    with closing(SpillDirectory(tmp_path, codec=ZLIB if name == "zlib" else lz4_codec())) as directory:
        directory.disk_bytes_per_s = SLOW_BYTES_PER_S
        array = np.repeat(np.arange(50_000), 8)
        buffers = [array, b"", b"small", bytes(3 << 20)]
        file = directory.write("value", buffers)
        assert file.compression == name
        assert file.size_bytes == os.path.getsize(file.path) < sum(file.parts) / 4
        assert bytes_of(directory.read(file)) == [bytes(buffer) for buffer in buffers]
        target = [np.zeros_like(array), bytearray(), bytearray(5), bytearray(3 << 20)]
        directory.read(file, into=target)
        np.testing.assert_array_equal(target[0], array)
        # One that compresses nothing itself.
        other = SpillFiles(directory.path)
        if name in CODECS:
            assert bytes_of(other.read(file)) == [bytes(buffer) for buffer in buffers]
        else:
            with pytest.raises(SpilledValueLost, match=f"{name}, which is not at hand"):
                other.read(file)


@pytest.mark.parametrize(
    ("buffers", "codec", "disk_bytes_per_s"),
    [
        *[
            (buffers, ZLIB, SLOW_BYTES_PER_S)
            for buffers in ([noise(1 << 20)], [bytes(1000)], [b""], [], [noise(1 << 20), bytes(1 << 18)])
        ],
        ([bytes(1 << 20)], None, SLOW_BYTES_PER_S),
        ([bytes(1 << 20)], ZLIB, FAST_BYTES_PER_S),
    ],
)
def test_what_compression_does_not_pay_for_is_written_as_it_is(tmp_path, buffers, codec, disk_bytes_per_s):
    with closing(SpillDirectory(tmp_path, codec=codec)) as directory:
        directory.disk_bytes_per_s = disk_bytes_per_s
        file = directory.write("value", buffers)
        assert file.compression == ""
        assert file.size_bytes == sum(map(len, buffers))


def test_want_of_memory_is_not_taken_for_a_broken_file(directory):
    def wanting(data, size):
        raise MemoryError

    file = directory.write("value", [bytes(1 << 20)])
    with pytest.raises(MemoryError):
        SpillFiles(directory.path, replace(ZLIB, decompress=wanting)).read(file)
    assert bytes_of(directory.read(file)) == [bytes(1 << 20)]


def test_disk_is_as_fast_as_it_was_seen_to_be(directory, monkeypatch):
    now_s = [0.0]
    writev = os.writev

    def slow(descriptor, pieces):
        now_s[0] += sum(map(len, pieces)) / 1e6
        return writev(descriptor, pieces)

    monkeypatch.setattr(spill_files.time, "perf_counter", lambda: now_s[0])
    monkeypatch.setattr(os, "writev", slow)
    directory.disk_bytes_per_s = 2e6
    directory.write("small", [noise(1000)])
    assert directory.disk_bytes_per_s == 2e6
    for number in range(20):
        directory.write(f"value-{number}", [noise(1 << 20)])
    assert directory.disk_bytes_per_s == pytest.approx(1e6, rel=0.01)


def test_lz4_is_used_only_if_it_is_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    assert lz4_codec() is None


@pytest.mark.parametrize("installed", [True, False])
def test_checksum_is_xxhash_only_if_it_is_there(tmp_path, monkeypatch, installed):
    if installed:
        xxhash = pytest.importorskip("xxhash")
        expected = xxhash.xxh3_64(b"abc").intdigest()
    else:
        monkeypatch.setitem(sys.modules, "xxhash", None)
        expected = zlib.crc32(b"abc")
    with closing(SpillDirectory(tmp_path)) as directory:
        assert directory.write("value", [b"a", b"bc"]).checksum == expected


# -- files that are not what was written ----------------------------------------------------------------------


def overwrite(file: SpilledFile, position: int, data: bytes) -> None:
    with open(file.path, "r+b") as stream:
        stream.seek(position)
        stream.write(data)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_one_wrong_bit_is_found(directory, compressed, share):
    file = directory.write("value", [bytes(1 << 20) if compressed else noise(1 << 20), b"end"])
    assert bool(file.compression) == compressed
    position = int(share * (file.size_bytes - 1))
    with open(file.path, "rb") as stream:
        stream.seek(position)
        byte = stream.read(1)
    overwrite(file, position, bytes([byte[0] ^ 1]))
    with pytest.raises(SpilledValueLost) as raised:
        directory.read(file)
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.path, error.requested_bytes) == (file.path, sum(file.parts))
    assert file.path in str(error)
    assert f"{sum(file.parts):,}" in str(error)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: os.truncate(path, 999), "it has 999 bytes instead of 1,000"),
        (lambda path: os.truncate(path, 1001), "it has 1,001 bytes instead of 1,000"),
        (os.remove, "the file is gone"),
    ],
)
def test_wrong_size_and_missing_file_are_found(directory, spoil, says):
    file = directory.write("value", [noise(1000)])
    spoil(file.path)
    with pytest.raises(SpilledValueLost, match=says):
        directory.read(file)
    for _ in range(2):
        directory.remove(file)
        assert not os.path.exists(file.path)


def test_file_that_shrinks_while_it_is_read_is_found(directory, monkeypatch):
    file = directory.write("value", [noise(1000)])
    monkeypatch.setattr(os, "readv", lambda descriptor, pieces: 0)
    with pytest.raises(SpilledValueLost, match="ends too early"):
        directory.read(file)


# -- others who may write where files are ---------------------------------------------------------------------


def test_file_of_somebody_else_is_not_read(directory):
    file = directory.write("value", [b"abc"])
    assert file.owner == os.geteuid()
    with pytest.raises(SpilledValueLost, match="belongs to the user"):
        directory.read(replace(file, owner=file.owner + 1))


@pytest.mark.parametrize("put", [Path.symlink_to, Path.hardlink_to])
def test_file_that_others_have_put_there_is_not_written_to(directory, tmp_path, put):
    bait = tmp_path / "bait"
    bait.write_bytes(b"bait")
    partial = directory.path / f".{os.getpid()}.0.value.partial"
    put(partial, bait)
    file = directory.write("value", [b"secret"])
    assert not os.path.lexists(partial)
    assert bytes_of(directory.read(file)) == [b"secret"]
    assert bait.read_bytes() == b"bait"


def test_directories_are_for_this_user_alone(tmp_path):
    before = os.umask(0)
    try:
        with closing(SpillDirectory(tmp_path / "root")) as directory:
            file = directory.write("value", [b"abc"])
            modes = [os.stat(path).st_mode & 0o777 for path in (tmp_path / "root", directory.path, file.path)]
    finally:
        os.umask(before)
    assert modes == [0o700, 0o700, 0o600]


def test_own_directory_is_used_again_and_no_other(tmp_path):
    path = tmp_path / "around" / "own"
    before = os.umask(0)
    try:
        assert make_private_directory(path) == make_private_directory(path) == path
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o770)
    with pytest.raises(PermissionError, match="somebody else's"):
        make_private_directory(path)
    (tmp_path / "link").symlink_to(tmp_path / "around")
    (tmp_path / "file").touch(mode=0o600)
    for name in ("link", "file"):
        with pytest.raises(PermissionError, match="somebody else's"):
            make_private_directory(tmp_path / name)


def test_own_directory_of_somebody_else_is_refused(tmp_path, monkeypatch):
    path = make_private_directory(tmp_path / "own")
    monkeypatch.setattr(spill_ownership, "_owner_of_new_files", lambda path: os.geteuid() + 1)
    with pytest.raises(PermissionError, match="somebody else's"):
        make_private_directory(path)


# -- disks that are full or failing ---------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, SpillDiskFull), (errno.EDQUOT, SpillDiskFull), (errno.EIO, SpillDiskFailed)]
)
def test_disk_that_refuses_in_the_middle(directory, monkeypatch, after, code, kind):
    kept = directory.write("kept", [b"abc"])
    calls = []
    writev = os.writev

    def failing(descriptor, pieces):
        calls.append(pieces)
        if len(calls) > after:
            raise OSError(code, os.strerror(code))
        return writev(descriptor, pieces)

    monkeypatch.setattr(spill_files, "_CHUNK_BYTES", 100)
    monkeypatch.setattr(os, "writev", failing)
    with pytest.raises(kind) as raised:
        directory.write("value", [noise(500)])
    assert [path.name for path in directory.path.iterdir()] == ["kept"]
    assert bytes_of(directory.read(kept)) == [b"abc"]
    error = pickle.loads(pickle.dumps(raised.value))
    assert isinstance(error, MarsError)
    assert (error.path, error.requested_bytes) == (str(directory.path / "value"), 500)
    assert error.free_bytes > 0
    for fact in (error.path, "500", f"{error.free_bytes:,}", os.strerror(code), "dask-mars.spill-directory"):
        assert fact in str(error)


def test_disk_that_says_only_at_the_end_that_it_is_full(directory, monkeypatch):
    close = os.close

    def failing(descriptor):
        close(descriptor)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", failing)
        with pytest.raises(SpillDiskFull):
            directory.write("value", [b"abc"])
    assert not list(directory.path.iterdir())


def test_disk_that_cannot_be_read(directory):
    file = directory.write("value", [b"abc"])

    failed = OSError(errno.EIO, os.strerror(errno.EIO))
    with mock.patch("os.readv", side_effect=failed), pytest.raises(SpillDiskFailed, match="a value of 3 bytes"):
        directory.read(file)
    assert bytes_of(directory.read(file)) == [b"abc"]


@pytest.mark.parametrize(
    ("effect", "error"),
    [({"side_effect": KeyboardInterrupt}, KeyboardInterrupt), ({"return_value": 0}, SpillDiskFull)],
)
def test_interrupted_write_and_a_disk_that_takes_nothing_more_leave_nothing(directory, effect, error):
    with mock.patch("os.writev", **effect), pytest.raises(error):
        directory.write("value", [b"abc"])
    assert not list(directory.path.iterdir())


def test_root_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpillDiskFailed, match="file"):
        SpillDirectory(tmp_path / "file")


def test_limit_on_the_size_of_files(directory):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(SpillDiskFull, match="150,000"):
            directory.write("value", [noise(150_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(directory.path.iterdir())


# -- whose it is ----------------------------------------------------------------------------------------------


def test_each_directory_is_a_new_one(tmp_path):
    with closing(SpillDirectory(tmp_path)) as first, closing(SpillDirectory(tmp_path)) as second:
        assert first.path != second.path
        second.close()
        first.write("value", [b"abc"])
    assert not list(tmp_path.iterdir())


def test_closing_twice_and_writing_after_it(tmp_path):
    directory = SpillDirectory(tmp_path)
    file = directory.write("value", [b"abc"])
    directory.close()
    directory.close()
    with pytest.raises(SpillDiskFailed):
        directory.write("value", [b"abc"])
    with pytest.raises(SpilledValueLost):
        directory.read(file)
    assert not list(tmp_path.iterdir())


def test_closing_while_threads_write_leaves_nothing(tmp_path):
    directory = SpillDirectory(tmp_path)
    started = threading.Barrier(5)

    def work(number: int) -> None:
        started.wait()
        for turn in range(100_000):
            directory.write(f"value-{number}-{turn}", [b"abc"])

    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(work, number) for number in range(4)]
        started.wait()
        directory.close()
        assert all(isinstance(future.exception(), SpillDiskFailed) for future in done)
    assert not list(tmp_path.iterdir())


def test_file_that_is_made_while_the_directory_is_closed_goes_too(tmp_path, monkeypatch):
    directory = SpillDirectory(tmp_path)
    rmdir = os.rmdir
    late = [directory.path / "late"]

    def too_late(path, **options):
        if late:
            late.pop().write_text("")
        return rmdir(path, **options)

    monkeypatch.setattr(os, "rmdir", too_late)
    directory.close()
    assert not late
    assert not list(tmp_path.iterdir())


def test_directory_that_stays_full_is_reported(tmp_path):
    directory = SpillDirectory(tmp_path)

    failed = OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
    with mock.patch("shutil.rmtree", side_effect=failed), pytest.raises(SpillDiskFailed, match="still made"):
        directory.close()
    directory.close()


KILLED = """
import os, signal, sys
from dask_mars.store.spill_files import SpillDirectory
directory = SpillDirectory(sys.argv[1])
directory.write("value", [b"abc"])
writev = os.writev
def killed(descriptor, pieces):
    writev(descriptor, [pieces[0][:1]])
    print(directory.path, flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
os.writev = killed
directory.write("half", [b"abc"])
"""


def test_next_start_clears_what_a_killed_owner_has_left_and_nothing_before(tmp_path, scripts):
    script = scripts.write("killed.py", KILLED)
    root = tmp_path / "spill"
    with scripts.start(str(script), str(root), stdin=subprocess.PIPE) as process:
        path = Path(process.stdout.readline().strip())
        assert clear_abandoned(root) == []
        assert sorted(file.name for file in path.iterdir()) == [f".{process.pid}.1.half.partial", "value"]
        process.communicate("\n")
        assert process.returncode == -signal.SIGKILL
    assert clear_abandoned(root) == [path]
    assert not list(root.iterdir())


@pytest.fixture
def left(tmp_path, monkeypatch):
    """Make a directory as if a process like this one had left it, and tell whether it is cleared."""
    monkeypatch.setattr(spill_ownership, "_is_local", lambda path: False)

    def cleared(**changes: object) -> bool:
        owner = replace(Owner.of(os.getpid()), **changes)
        path = tmp_path / owner.directory_name(0)
        path.mkdir()
        removed = clear_abandoned(tmp_path)
        assert removed == ([] if path.exists() else [path])
        if path.exists():
            path.rmdir()
        return bool(removed)

    return cleared


#: No kernel gives a process so high a number.
NOBODY = 1 << 30


def test_living_owner_is_left_alone(left):
    assert not left()


@needs_proc
def test_reused_process_id_is_not_taken_for_the_owner(left):
    assert left(start=start_time(os.getpid()) - 1)


@needs_proc
def test_ended_owner_is_cleared_after_only_by_who_can_know(left, monkeypatch):
    assert left(pid=NOBODY)
    assert not left(pid=NOBODY, host="other")
    assert not left(pid=NOBODY, namespace="1")
    assert not left(pid=NOBODY, boot="other")
    # A disk that no other host has mounted: what is from another boot is from before this one.
    monkeypatch.setattr(spill_ownership, "_is_local", lambda path: True)
    assert left(boot="other")
    assert not left(host="other")
    assert not left()


def test_without_proc_an_owner_is_gone_if_nobody_has_its_id(left, monkeypatch):
    read_text = Path.read_text

    def hidden(path, *arguments, **options):
        if path.parts[:2] == ("/", "proc"):
            raise FileNotFoundError
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", hidden)
    assert start_time(os.getpid()) == 0
    assert not left()
    assert not left(start=12345)
    assert left(pid=NOBODY)


def test_zombie_still_counts_as_a_process():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert start_time(process.pid) is not None
    assert start_time(process.pid) is None


def test_directories_of_other_users_are_left_alone(left, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not left(pid=NOBODY)


@pytest.mark.parametrize(
    "name",
    ["file", PREFIX, f"{PREFIX}.a.b.c.1.2", f"{PREFIX}.a.b.c.x.2.0", f"{PREFIX}.a.b.c.1.2.0.1", "x.a.b.c.1.2.0"],
)
def test_other_names_are_left_alone(tmp_path, name):
    (tmp_path / name).mkdir()
    assert Owner.parse(name) is None
    assert clear_abandoned(tmp_path) == []


def test_links_and_files_by_such_a_name_are_left_alone(tmp_path):
    gone = replace(Owner.of(os.getpid()), pid=NOBODY)
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / gone.directory_name(0)).symlink_to(precious)
    (tmp_path / gone.directory_name(1)).write_text("")
    assert clear_abandoned(tmp_path) == []
    assert precious.exists()


def test_directory_that_others_have_put_there_is_not_used(tmp_path):
    owner = Owner.of(os.getpid())
    (tmp_path / owner.directory_name(0)).mkdir(mode=0o777)
    with closing(SpillDirectory(tmp_path)) as directory:
        assert directory.path.name == owner.directory_name(1)


@pytest.mark.parametrize("host", ["plain", "with.dots", "odd/näme", ""])
def test_name_leads_back_to_its_owner(monkeypatch, host):
    monkeypatch.setattr(spill_ownership.socket, "gethostname", lambda: host)
    owner = Owner.of(os.getpid())
    assert Owner.parse(owner.directory_name(3)) == owner


@needs_proc
def test_kinds_of_file_systems_are_told_apart():
    # A file system that other hosts, or nobody, can have mounted.
    assert not spill_ownership._is_local(Path("/proc"))
    assert not spill_ownership._is_local(Path("/dev/shm"))
