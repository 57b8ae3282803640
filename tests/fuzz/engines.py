"""Engines with troubles: their memory and disk, who kills their workers, and what they leave behind."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import dask

import dask_mars
from dask_mars import Runtime
from dask_mars.engine import startup
from dask_mars.limits import estimate_memory
from dask_mars.optimize import prepare as preparing
from dask_mars.optimize.passes import Limits
from dask_mars.scheduler.replay import replay
from tests.constants import constants
from tests.soak.leaks import Errors, Surroundings, left_in_engine
from tests.soak.troubles import Killer, full_disk, no_directory

MIB = 1 << 20
#: Programs that one engine computes.
PROGRAMS = 25
#: Mean seconds between kills, and how many there may be in one program: a worker that has to import much before it
#: comes to its task would else never come to it.
_KILL_EVERY_S = 1.0
MOST_KILLS = 2
#: Bytes of a worker that has imported what a program can use: numba, which flox and numbagg import, is half of it.
_LIBRARIES = 256 * MIB
#: Bytes of this process for which the limits have room.
_OWN = 64 * MIB


@dataclass(frozen=True)
class Plan:
    """What an engine is to be like: its memory in bytes, None for plenty, and settings while it starts."""

    # From `fold_initial` chunks a worker on, initial chunks are folded into others.

    memory_limit: int | None
    kills: bool
    workers: int
    settings: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    fold_initial: int = 32
    #: Whether the limit grows by what libraries keep in this process.
    grows: bool = True
    #: Mean seconds between kills, and how often a worker that is not up yet is spared.
    kill_every_s: float = _KILL_EVERY_S
    kill_patience: float = 1.0
    #: Seconds that threads may compute before processes do; None: processes are there from the beginning.
    threads_s: float | None = None
    #: Bytes that the disk has for values; None for a disk that cannot be written to, negative for all there are.
    disk_bytes: int | None = -1

    @property
    def small(self) -> bool:
        """Whether there is little memory."""
        return self.memory_limit is not None


def plan(seed: int, memory_limit: int | None = None, kills: bool | None = None) -> Plan:
    """Return what the engine of a seed is like, but for what is not left to chance."""
    chance = random.Random(f"engine {seed}")
    small, killed, workers = chance.random() < 0.4, chance.random() < 0.3, chance.choice([1, 2, 2, 2, 3])
    settings: dict[str, Any] = {
        "idle-timeout": chance.choice(["10 minutes", "10 minutes", "50 ms"]),
        "policy": chance.choice(["mars", "mars", "memory", "mars-strict"]),
    }
    fixed = {
        "arena_threshold_bytes": chance.choice([16 << 10, 16 << 10, None, 0, 1 << 10]),
        "inline_bytes": chance.choice([16 << 10, 16 << 10, 0, 1 << 10]),
        "idle_trim_s": chance.choice([10.0, 0.05]),
        "window_s": chance.choice([0.02, 0.02, 0.001]),
        "allowed_worker_losses": 1000,
        "retry_delay_s": 0.005,
        "retry_delay_limit_s": 0.05,
    }
    fold_initial = chance.choice([32, 32, 1])
    threads_s = chance.choice([None, None, 0.02, 4.0])
    if memory_limit is None and small:
        memory_limit = chance.choice([160, 192, 256]) * MIB + workers * _LIBRARIES
    if memory_limit is not None:
        settings["store-limit"] = chance.choice([2, 4, 8]) * MIB
    named = {f"dask-mars.{name}": value for name, value in settings.items()}
    kills = killed if kills is None else kills
    return Plan(memory_limit, kills, workers, named, fixed, fold_initial, threads_s=threads_s)


class LeftBehind(Exception):
    """An engine has left something behind, logged an error, or decided otherwise when its log was replayed."""


class Engine:
    """A runtime as planned, and the proof that it leaves nothing behind."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan, self.seed = plan, seed
        self.spilled_bytes = self.killer_count = self.replayed = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Engine:
        gc.collect()
        self._before, self._shared = Surroundings(), _shared_memory()
        enter, plan = self._stack.enter_context, self.plan
        self._folder = Path(enter(tempfile.TemporaryDirectory(prefix="engine-")))
        self.errors = enter(Errors().kept())
        limits = partial(Limits, consumers_per_worker=plan.fold_initial)
        enter(mock.patch.object(preparing, "Limits", limits))
        spilled = no_directory(self._folder) if plan.disk_bytes is None else self._folder / "spilled"
        if plan.disk_bytes is not None and plan.disk_bytes >= 0:
            enter(full_disk(plan.disk_bytes))
        log = str(self._folder / "scheduler-{engine}.log")
        settings = {"dask-mars.spill-directory": str(spilled), "dask-mars.scheduler-log": log}
        # Threads give way to processes at some time of the computations.
        for name in ("_PATIENCE_S", "_LOCKED_PATIENCE_S") if plan.threads_s is not None else ():
            enter(mock.patch.object(startup, name, plan.threads_s))
        enter(mock.patch.object(startup, "_STARTS", 0))
        enter(dask.config.set({**plan.settings, **settings}))
        enter(constants(**plan.constants))
        limit = plan.memory_limit
        if limit is not None and plan.grows:
            limit += max(estimate_memory([os.getpid()]) - _OWN, 0)
        self.runtime = Runtime(plan.workers, limit)
        if plan.threads_s is None:
            self.runtime.start()
        # The same engine is behind the name.
        dask_mars.runtimes._default._runtime = self.runtime
        self.killer = Killer(self.runtime, self.seed, plan.kill_every_s, plan.kill_patience)
        if plan.kills:
            enter(self.killer.running())
        return self

    def told(self) -> str:
        """Return what the runtime says of itself."""
        return f"{self.runtime.state()}\n{self.runtime.explain()}"

    def check_idle(self) -> None:
        """Raise if computations that are over have left something in the engine."""
        gc.collect()
        if left := left_in_engine(self.runtime):
            raise LeftBehind(f"left in the engine: {left}")
        state = self.runtime.state()
        if state["graphs"]:
            raise LeftBehind(f"the engine still computes: {state['graphs']}")
        if self.errors:
            raise LeftBehind(f"errors were logged: {self.errors}")

    def __exit__(self, *error: Any) -> None:
        dask_mars.runtimes._default._runtime = None
        if error[0] is None:
            self.check_idle()
            self.spilled_bytes = self.runtime.engine().spilled_bytes
        self.runtime.close()
        logs = [path.read_text(encoding="utf-8") for path in self._folder.glob("scheduler-*.log")]
        files = [str(path) for path in (self._folder / "spilled").rglob("*") if path.is_file()]
        self._stack.close()
        if error[0] is not None:
            return
        self.replayed = sum(map(replayed, logs))
        if files:
            raise LeftBehind(f"files are left: {files}")
        self.killer_count = self.killer.count
        runtime, self.runtime = self.runtime, None
        del runtime, self.killer
        if added := self._before.left_over():
            raise LeftBehind(f"left after the engine was closed: {added}")
        if shared := _shared_memory() - self._shared:
            raise LeftBehind(f"shared memory is left: {shared}")


def replayed(log: str) -> int:
    """Have a new machine decide on the events of a log; return their number."""
    outcome = replay(log.splitlines(keepends=True))
    if outcome.difference is not None:
        raise LeftBehind(f"equal events gave other instructions: {outcome.difference}")
    return outcome.events.total()


def _shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir() if "mars" in path.name} if folder.exists() else set()


def settled(engine: Engine) -> float:
    """Wait until all workers of an engine are up; return how many seconds that took."""
    began_s = time.monotonic()
    while not all(worker.ready for worker in list(engine.runtime.engine()._registry.workers.values())):
        if time.monotonic() > began_s + 30:
            break
        time.sleep(0.01)
    return time.monotonic() - began_s
