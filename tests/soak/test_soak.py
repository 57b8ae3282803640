"""The soak: a short form of it passes, and it finds what it is there to find."""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import Any

import dask
import dask.array
import pytest

from dask_mars import Runtime
from dask_mars.errors import QuotaExceeded, RequestTooLarge, SpillDiskFull, StoreFull, WorkerDied, WorkerOverLimit
from dask_mars.scheduler.events import ForgetGraph, WorkerStarted
from dask_mars.scheduler.log import first_line, line
from dask_mars.scheduler.machine import Parameters
from tests.fuzz import engines
from tests.soak import rounds
from tests.soak.leaks import Surroundings, left_in_engine
from tests.soak.rounds import Failure, Tally, Troubles, soak_round
from tests.soak.troubles import Cancelled, full_disk, interrupted
from tests.soak.workloads import Workload

pytestmark = pytest.mark.slow

#: Seeds of rounds without troubles, and with both.
CALM, TROUBLED = 1, 3

FULL = SpillDiskFull("/somewhere", 1, 0, "full")


@pytest.mark.nightly
def test_the_short_form_passes(scripts):
    options = ("--minutes", "0.2", "--limit", "60", "--seed", str(TROUBLED))
    # The limit on the whole leaves room for the slowest computation and for the checks at the end.
    ended = scripts.run("-m", "tests.soak", *options, timeout_s=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    first, second, outcomes, _ = ended.stdout.splitlines()
    assert int(first.split()[0]) > 0
    assert "workers killed" in second
    assert int(second.split(", ")[-1].split()[0].replace(",", "")) > 0
    # On a busy machine the seconds may not do for one that nothing kills.
    assert outcomes.startswith("outcomes: ")


@pytest.mark.nightly
def test_the_short_form_with_checkpoints_passes(scripts):
    options = ("--minutes", "0.1", "--limit", "60", "--seed", "1", "--checkpoints")
    ended = scripts.run("-m", "tests.soak", *options, timeout_s=110)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "right" in ended.stdout


# -- what it has to find ------------------------------------------------------------------------------------------


@pytest.fixture
def one_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make rounds of one small computation, which is not cancelled."""
    ones = Workload("ones", lambda: [dask.array.ones(4, chunks=2).sum()])
    monkeypatch.setattr(rounds, "_ITERATIONS", 1)
    monkeypatch.setattr(rounds, "draw", lambda *_, **__: ones)
    monkeypatch.setattr(rounds._Options, "drawn", classmethod(lambda cls, rng: cls()))


def small_round(monkeypatch: pytest.MonkeyPatch, get: Any) -> Tally:
    """Run a round whose computations go to `get` instead of the runtime."""

    class Other(Runtime):
        def get(self, dsk: Any, keys: Any, **options: Any) -> Any:
            return get(dsk, keys)

    monkeypatch.setattr(engines, "Runtime", Other)
    tally = Tally(log=lambda line: None)
    soak_round(CALM, tally, 60, time.monotonic() + 60)
    return tally


def test_other_instructions_for_the_same_events_fail():
    with pytest.raises(engines.LeftBehind, match="equal events gave other instructions"):
        engines.replayed(first_line(Parameters()) + line(0.0, WorkerStarted(0), [ForgetGraph(1)]))


def test_wrong_values_fail(monkeypatch, one_computation):
    def doubled(value: Any) -> Any:
        return [doubled(part) for part in value] if isinstance(value, list | tuple) else 2 * value

    def wrong(dsk: Any, keys: Any) -> Any:
        return doubled(dask.get(dsk, keys))

    with pytest.raises(Failure, match=f"is wrong.*seed {CALM}"):
        small_round(monkeypatch, wrong)


def test_errors_without_a_cause_fail(monkeypatch, one_computation):
    def fail(dsk: Any, keys: Any) -> Any:
        raise FULL

    with pytest.raises(Failure, match=r"raised SpillDiskFull.*seed"):
        small_round(monkeypatch, fail)


def test_errors_are_excused_by_what_caused_them():
    full, calm = Troubles("full", kills=False), Troubles("ok", kills=True)
    died = WorkerDied("x", -9, 1)
    assert full.excuses(FULL, 0)
    assert not calm.excuses(FULL, 1)
    assert calm.excuses(died, 1)
    assert not calm.excuses(died, 0)
    assert calm.excuses(RequestTooLarge("x", 2, 1), 0)
    assert calm.excuses(StoreFull(2, 1, 1), 0)
    assert calm.excuses(QuotaExceeded(2, 1, 1, 0, 0, 0), 0)
    assert calm.excuses(WorkerOverLimit("x", 2, 1, 0, 0), 0)
    assert not full.excuses(ValueError(), 5)


def test_what_hangs_is_ended_with_all_stacks(scripts):
    script = scripts.write(
        "hangs.py",
        "import time\nfrom tests.soak.troubles import watchdog\nwith watchdog(0.2, 'this'): time.sleep(60)\n",
    )
    ended = scripts.run(str(script))
    assert ended.returncode == 3
    assert "HANGS" in ended.stderr
    assert "this" in ended.stderr
    assert "hangs.py" in ended.stderr


def test_what_is_left_open_is_found(monkeypatch):
    monkeypatch.setattr("tests.soak.leaks._GRACE_S", 0)
    before = Surroundings()
    descriptor = os.open("/dev/null", os.O_RDONLY)
    assert "/dev/null" in before.left_over()["descriptors"].values()
    os.close(descriptor)
    assert "descriptors" not in before.left_over()


def test_chunks_that_stay_in_the_engine_are_found(monkeypatch, runtime):
    assert left_in_engine(runtime) == {}
    monkeypatch.setattr("tests.soak.leaks._GRACE_S", 0)
    engine = runtime.engine()
    engine._blocks.counts[99, 0] = [1, 64]
    assert (99, 0) in left_in_engine(runtime)["blocks"]
    del engine._blocks.counts[99, 0]


# -- workloads and troubles ---------------------------------------------------------------------------------------


def test_the_disk_is_full_after_so_many_bytes(tmp_path):
    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    with full_disk(10):
        assert os.writev(descriptor, [b"12345", b"67"]) == 7
        with pytest.raises(OSError, match="space") as caught:
            os.writev(descriptor, [b"12345"])
    assert caught.value.errno == errno.ENOSPC
    assert os.writev(descriptor, [b"12345"]) == 5
    os.close(descriptor)


def test_interruptions_come_in_time_or_not_at_all():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Cancelled), interrupted(0.01):
        time.sleep(10)
    with interrupted(10):
        pass
    assert signal.getsignal(signal.SIGINT) is before
