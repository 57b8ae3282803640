"""Rounds of random work under random troubles.

Each has a runtime of its own with random limits, and a seed of its own, by which a round that fails can be run
again.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import dask
import numpy as np

from benchmarks.report import MIB
from dask_mars.errors import (
    QuotaExceeded,
    RequestTooLarge,
    SpillError,
    StoreFull,
    WorkerDied,
    WorkerOverLimit,
    WorkerStartFailed,
)
from tests.fuzz.engines import Engine, LeftBehind, Plan
from tests.soak.leaks import private_bytes
from tests.soak.tasks import OnPurpose
from tests.soak.troubles import CancelAfter, Cancelled, interrupted, watchdog
from tests.soak.workloads import Generator, Workload, differences, draw, read_again

# Dask has few annotations. Saying so once keeps the type checker strict with all the rest.
_dask: Any = dask

#: Computations of one round.
_ITERATIONS = 8
#: In how many of them memory is plenty, and how much there is then.
_PLENTY_SHARE, _PLENTY_BYTES = 0.4, 3072 * MIB
#: By how much this process's own memory may have grown since the end of the first rounds. In those it grows by
#: what is imported and by what Dask keeps: by 110 MiB with Dask's synchronous scheduler alone.
_GROWTH_BYTES = 128 * MIB
_FIRST_ROUNDS = 10


#: Mean seconds between kills.
_KILL_EVERY_S = 0.15


class Failure(Exception):
    """The soak has found something."""


@dataclass(slots=True)
class Tally:
    """What has happened until now."""

    #: Tells of each computation.
    log: Callable[[str], None]
    rounds: int = 0
    iterations: int = 0
    kills: int = 0
    #: Chunks that processes found saved when they began again.
    restored: int = 0
    spilled_bytes: int = 0
    #: Events of schedulers that gave the same instructions once more.
    replayed: int = 0
    #: How computations ended.
    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    #: Of this process alone, after the first rounds and after the last.
    private_bytes: list[int] = field(default_factory=list)

    def lines(self, peak_bytes: int, seconds: float) -> list[str]:
        """Return the report."""
        grown = self.private_bytes[-1] - self.private_bytes[0] if self.private_bytes else 0
        return [
            f"{self.iterations} computations in {self.rounds} rounds and {seconds:,.0f} s",
            f"{self.kills} workers killed, {self.restored} chunks found saved, "
            f"{self.spilled_bytes / MIB:,.0f} MiB spilled, peak of memory {peak_bytes / MIB:,.0f} MiB, "
            f"the client's own grown by {grown / MIB:,.1f} MiB, "
            f"{self.replayed:,} events replayed",
            "outcomes: " + ", ".join(f"{name} {count}" for name, count in self.outcomes.most_common()),
            "kinds: " + ", ".join(f"{name} {count}" for name, count in self.kinds.most_common()),
        ]


# -- one round ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Troubles:
    """What may go wrong in a round."""

    disk: str
    kills: bool

    def excuses(self, error: BaseException, kills: int) -> bool:
        """Tell whether an error is a right answer to what went wrong."""
        if isinstance(error, SpillError):
            return self.disk != "ok"
        if isinstance(error, WorkerDied | WorkerStartFailed):
            return kills > 0
        # What the store may hold is tiny in all rounds.
        return isinstance(error, RequestTooLarge | StoreFull | QuotaExceeded | WorkerOverLimit)


def _planned(rng: Generator) -> tuple[Plan, Troubles, int]:
    """Draw an engine, what may go wrong, and how large arrays may be."""
    troubles = Troubles(
        disk=str(rng.choice(["ok", "full", "none"], p=[0.6, 0.25, 0.15])), kills=bool(rng.random() < 0.5)
    )
    # Three workers, this process and libraries take some 230 MiB before they have computed anything.
    limit = int(rng.integers(256, 400)) * MIB
    settings = {
        "store-limit": int(limit * rng.uniform(0.05, 0.6)),
        "cancel-grace": str(rng.choice(["20 ms", "200 ms"])),
        "idle-timeout": str(rng.choice(["0 s", "100 ms", "10 minutes", "10 minutes"])),
        "policy": str(rng.choice(["mars", "memory", "mars-strict"])),
        "assignment": str(rng.choice(["breadth-first", "depth-first"])),
    }
    plan = Plan(
        # Where memory is plenty threads compute first.
        memory_limit=_PLENTY_BYTES if rng.random() < _PLENTY_SHARE else limit,
        kills=troubles.kills,
        workers=int(rng.integers(1, 4)),
        settings={f"dask-mars.{name}": value for name, value in settings.items()},
        constants={
            "arena_threshold_bytes": [None, 1 << 10, 1 << 14, 1 << 20][int(rng.integers(4))],
            "inline_bytes": int(rng.choice([0, 1 << 10, 1 << 14])),
            "allowed_worker_losses": int(rng.integers(0, 4)),
            "idle_trim_s": float(rng.choice([0.05, 10.0])),
        },
        fold_initial=int(rng.choice([1, 32])),
        grows=False,
        kill_every_s=_KILL_EVERY_S,
        kill_patience=0.8,
        threads_s=float(rng.choice([0.0, 0.02, 0.2, 4.0])),
        disk_bytes={"ok": -1, "full": int(rng.integers(0, 100)) * MIB, "none": None}[troubles.disk],
    )
    return plan, troubles, limit


def soak_round(seed: int, tally: Tally, limit_s: float, until_s: float) -> None:
    """Run one round, with one to three workers."""
    rng = np.random.default_rng(seed)
    plan, troubles, most_bytes = _planned(rng)
    what = f"seed {seed}, {plan}"
    tally.log(what)
    try:
        with Engine(plan, seed) as engine:
            for number in range(_ITERATIONS):
                if time.monotonic() > until_s:
                    break
                with watchdog(limit_s, f"computation {number}, {what}", engine.told):
                    _iterate(rng, engine, most_bytes, troubles, tally)
                    engine.check_idle()
    except (Failure, LeftBehind) as failure:
        raise Failure(f"{failure}; computation {number}, {what}") from failure
    tally.spilled_bytes += engine.spilled_bytes
    tally.replayed += engine.replayed
    tally.rounds += 1


def _iterate(rng: Generator, engine: Engine, most_bytes: int, troubles: Troubles, tally: Tally) -> None:
    """Compute one thing, or two at once, and compare."""
    workloads = [draw(rng, most_bytes)]
    if rng.random() < 0.2:
        workloads.append(draw(rng, most_bytes, frames=False))
    options = [_Options.drawn(rng) for _ in workloads]
    killed_before, get = engine.killer.count, engine.runtime.get
    kills = int(rng.integers(1, 5))
    expected = [
        _result(workload, "sync", _Options(persisted=its.persisted))
        for workload, its in zip(workloads, options, strict=True)
    ]
    began_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(engine.killer.at_work(kills))
        pool = stack.enter_context(ThreadPoolExecutor(1)) if len(workloads) > 1 else None
        # Ctrl-C comes to the main thread alone.
        future = pool.submit(_result, workloads[1], get, options[1].without_interrupt()) if pool else None
        results = [_result(workloads[0], get, options[0])]
        if future is not None:
            results.append(future.result())
    killed = engine.killer.count - killed_before
    tally.kills += killed
    taken_s = time.monotonic() - began_s
    for workload, ours, theirs in zip(workloads, results, expected, strict=True):
        tally.iterations += 1
        tally.kinds[workload.name.partition(":")[0]] += 1
        outcome = _judged(workload, ours, theirs, troubles, killed)
        tally.outcomes[outcome] += 1
        why = f": {ours}" if isinstance(ours, Exception) else ""
        tally.log(f"{tally.rounds} {workload.name} {outcome} {taken_s:.2f} s, {killed} kills{why}")


@dataclass(frozen=True, slots=True)
class _Options:
    """How a thing is computed."""

    persisted: bool = False
    interrupt_after_s: float | None = None
    cancel_after_tasks: int | None = None

    @classmethod
    def drawn(cls, rng: Generator) -> _Options:
        kind = rng.choice(["plain", "persisted", "interrupt", "cancel"], p=[0.5, 0.15, 0.2, 0.15])
        return cls(
            persisted=bool(kind == "persisted"),
            interrupt_after_s=float(rng.exponential(0.15)) if kind == "interrupt" else None,
            cancel_after_tasks=int(rng.integers(1, 60)) if kind == "cancel" else None,
        )

    def without_interrupt(self) -> _Options:
        return _Options(self.persisted, None, self.cancel_after_tasks)


def _result(workload: Workload, scheduler: Any, options: _Options | None = None) -> Any:
    """Compute, and return the values or the error."""
    options = options or _Options()
    wanted = workload.build()
    extra: dict[str, Any] = {}
    if options.cancel_after_tasks is not None:
        # Not as a context: callbacks that are active are active in all threads, and may stay so where two compute.
        extra["callbacks"] = [CancelAfter(options.cancel_after_tasks)._callback]
    try:
        with contextlib.ExitStack() as stack:
            if options.interrupt_after_s is not None:
                stack.enter_context(interrupted(options.interrupt_after_s))
            if options.persisted:
                wanted = list(_dask.persist(*wanted, scheduler=scheduler))
                wanted += read_again(wanted)
            return list(_dask.compute(*wanted, scheduler=scheduler, **extra))
    except (Exception, Cancelled) as error:
        # Frames would keep what the round is to show to be gone.
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)


def _judged(workload: Workload, ours: Any, theirs: Any, troubles: Troubles, kills: int) -> str:
    """Name the outcome, or raise."""
    if isinstance(ours, Cancelled):
        return "cancelled"
    if isinstance(ours, BaseException):
        name = type(ours).__name__
        same = isinstance(ours, OnPurpose) and isinstance(theirs, OnPurpose) and ours.args == theirs.args
        if same or troubles.excuses(ours, kills):
            return name
        raise Failure(f"{workload.name} raised {name}: {ours}")
    if isinstance(theirs, BaseException):
        raise Failure(f"{workload.name} did not raise {theirs!r}")
    if difference := differences(ours, theirs):
        raise Failure(f"{workload.name} is wrong: {difference}")
    return "right"


def check_growth(tally: Tally) -> None:
    """Raise `Failure` if this process's own memory has grown since the first rounds."""
    if tally.rounds >= _FIRST_ROUNDS:
        tally.private_bytes.append(private_bytes())
        tally.log(f"round {tally.rounds}: the client's own memory is {tally.private_bytes[-1] / MIB:,.1f} MiB")
        grown = tally.private_bytes[-1] - tally.private_bytes[0]
        if grown > _GROWTH_BYTES:
            raise Failure(f"the client's own memory has grown by {grown:,} bytes in {tally.rounds} rounds")
