"""Where the time of a computation goes: ``python -m studies profile``.

Deliberate timers around parts of dask_mars, put there from outside, in the client's process and in the workers.
They count processor time of their thread, and of a part what is left without the parts within it. Parts that are
called once for each operand are timed only where operands are large: for a no-op the timer would be most of it.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import click
from rich.table import Table

from benchmarks import options
from benchmarks.machine import describe_machine, machine_facts
from benchmarks.peers import PEERS, Get
from benchmarks.report import markdown_table, plain_console, print_tables
from benchmarks.workload import Setting, Workload
from benchmarks.workloads import CATALOGUE
from studies.apart import call_apart

#: How long a task of the timers' own takes, so that each worker gets one, and how often that is tried.
SPREAD_S = 0.05
ATTEMPTS = 50

#: What is timed: module, class (or the module itself), function, process and part.
CLIENT_PARTS = (
    ("dask_mars.client.backend", "GraphBackend", "compute", "client", "the rest of the call"),
    ("dask_mars.client.backend", "", "prepare", "client", "preparing the graph"),
    ("dask_mars.client.computation", "GraphComputation", "results", "client", "taking the results"),
    ("dask_mars.engine.loop", "EngineLoop", "run_once", "engine", "the rest"),
    ("dask_mars.scheduler.machine", "Machine", "handle", "engine", "state machine"),
    ("dask_mars.engine.sender", "Sender", "send", "engine", "sending"),
    ("dask_mars.engine.worker_handle", "WorkerHandle", "write", "engine", "sending"),
    ("dask_mars.engine.worker_handle", "WorkerHandle", "read", "engine", "taking reports"),
    ("dask_mars.engine.receiver", "Receiver", "take", "engine", "taking reports"),
)
WORKER_PARTS = (
    ("dask_mars.worker.loop", "WorkerProcess", "_receive", "workers", "reading messages"),
    ("dask_mars.worker.outbox", "Outbox", "flush", "workers", "reporting"),
)
#: Called once for each operand.
OPERAND_PARTS = (
    ("dask_mars.worker.runner", "ChunkRunner", "_load_inputs", "workers", "loading inputs"),
    ("dask_mars.worker.runner", "ChunkRunner", "_seal", "workers", "sealing results"),
    ("dask_mars.graph.chunks", "Operand", "run", "workers", "computing"),
)
WORKER_REST = ("workers", "the loop around operands")
CALLER = ("client", "before and after: Dask, or the caller")
Part = tuple[str, str]
#: Seconds that a run took, and processor seconds by part.
Run = tuple[float, dict[Part, float]]


class Timers:
    """Processor time by part, over all threads of a process.

    Parameters
    ----------
    clock : callable, optional
        Returns seconds of processor time of the calling thread.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self.seconds: dict[Part, float] = defaultdict(float)
        self._clock = clock
        self._inner = threading.local()

    def watch(self, parts: tuple[tuple[str, ...], ...]) -> None:
        """Put timers around functions."""
        for module, kind, name, process, part in parts:
            owner = importlib.import_module(module)
            if kind:
                owner = getattr(owner, kind)
            setattr(owner, name, self._timed(getattr(owner, name), (process, part)))

    def _timed(self, function: Callable[..., Any], part: Part) -> Callable[..., Any]:
        clock, inner = self._clock, self._inner

        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            if not hasattr(inner, "stack"):
                inner.stack = []
            stack: list[float] = inner.stack
            stack.append(0.0)
            start_s = clock()
            try:
                return function(*arguments, **options)
            finally:
                taken_s = clock() - start_s
                self.seconds[part] += taken_s - stack.pop()
                if stack:
                    stack[-1] += taken_s

        return timed


# -- in the workers -----------------------------------------------------------------------------------------------

_timers: Timers | None = None


def watch_worker(each_operand: bool) -> tuple[int, list[Any]]:
    """As a task: put timers into this worker if there are none, and say what they have shown.

    Parameters
    ----------
    each_operand
        Whether to time what is called for each operand.

    Returns
    -------
    tuple
        The process's id; processor seconds of its thread, and by part.
    """
    global _timers
    if _timers is None:
        _timers = Timers()
        _timers.watch(WORKER_PARTS + (OPERAND_PARTS if each_operand else ()))
    time.sleep(SPREAD_S)
    return os.getpid(), [time.thread_time(), *[[*part, seconds] for part, seconds in _timers.seconds.items()]]


def _ask_workers(get: Get, workers: int, each_operand: bool) -> dict[Part, float]:
    """Return what the timers of all workers show together."""
    answers: dict[int, list[Any]] = {}
    for attempt in range(ATTEMPTS):
        graph = {f"watch-{attempt}-{number}": (watch_worker, each_operand) for number in range(workers)}
        for pid, shown in get(graph, list(graph)):
            answers.setdefault(pid, shown)
        if len(answers) == workers:
            break
    else:
        raise RuntimeError(f"only {len(answers)} of {workers} workers have answered")
    seconds: dict[Part, float] = defaultdict(float)
    for total, *parts in answers.values():
        seconds[WORKER_REST] += total
        for process, part, taken in parts:
            seconds[process, part] += taken
            seconds[WORKER_REST] -= taken
    return seconds


# -- one process --------------------------------------------------------------------------------------------------


def _difference(after: dict[Part, float], before: dict[Part, float]) -> dict[Part, float]:
    return {part: seconds - before.get(part, 0.0) for part, seconds in after.items()}


def _profile_here(name: str, scale: float, workers: int) -> dict[str, Any]:
    workload = CATALOGUE[name]
    assert isinstance(workload, Workload)
    each_operand = workload.group == "array"
    PEERS["mars"].load()
    timers = Timers()
    timers.watch(CLIENT_PARTS)
    with PEERS["mars"].open(workers) as get:
        # The first run finds pages that nobody has touched, and modules that nobody has imported.
        _ask_workers(get, workers, each_operand)
        workload.prepare(Setting(scale, 0, get))()
        call = workload.prepare(Setting(scale, 1, get))
        workers_before = _ask_workers(get, workers, each_operand)
        gc.collect()
        timers.seconds.clear()
        start_s, begun_s = time.perf_counter(), time.thread_time()
        call()
        wall_s, client_s = time.perf_counter() - start_s, time.thread_time() - begun_s
        seconds = dict(timers.seconds)
        seconds[CALLER] = client_s - sum(taken for (process, _), taken in seconds.items() if process == "client")
        seconds.update(_difference(_ask_workers(get, workers, each_operand), workers_before))
    return {"wall": wall_s, "parts": [[*part, taken] for part, taken in seconds.items()]}


def _profile(name: str, scale: float, workers: int, timeout_s: float) -> Run:
    """Profile a workload in a process of its own; return seconds it took, and processor seconds by part."""
    figures = call_apart(_profile_here, name, scale, workers, timeout_s=timeout_s)
    return figures["wall"], {(process, part): taken for process, part, taken in figures["parts"]}


# -- the command --------------------------------------------------------------------------------------------------

#: In the order of a chunk's way.
ORDER: tuple[Part, ...] = (
    CALLER,
    ("client", "preparing the graph"),
    ("engine", "state machine"),
    ("engine", "sending"),
    ("workers", "reading messages"),
    ("workers", "loading inputs"),
    ("workers", "computing"),
    ("workers", "sealing results"),
    WORKER_REST,
    ("workers", "reporting"),
    ("engine", "taking reports"),
    ("engine", "the rest"),
    ("client", "taking the results"),
    ("client", "the rest of the call"),
)


def table_of(runs: list[Run], tasks: int | None) -> Table:
    """Draw runs together.

    Parameters
    ----------
    runs
        Of each the seconds it took, and processor seconds by part.
    tasks
        How many tasks there are, where the time of one means something.
    """
    unit, factor = ("us each", 1e6 / tasks) if tasks else ("ms", 1e3)
    table = markdown_table("process", "part", unit, "share", words=("process", "part"))
    medians = {
        part: statistics.median(parts[part] for _, parts in runs if part in parts)
        for part in ORDER
        if any(part in parts for _, parts in runs)
    }
    used_s = sum(medians.values())
    for part, seconds in medians.items():
        table.add_row(*part, _amount(seconds * factor), f"{seconds / used_s:.1%}")
    table.add_row("all", "", _amount(used_s * factor), "100.0%")
    return table


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _summary(name: str, runs: list[Run], tasks: int | None, workers: int) -> str:
    wall_s = statistics.median(wall for wall, _ in runs)
    used = statistics.median(sum(parts.values()) / wall for wall, parts in runs) / workers
    each = "" if tasks is None else f", {wall_s / tasks * 1e6:.3g} us for each of {tasks:,} tasks"
    return f"### {name}: {wall_s:.3g} s{each}; {used:.0%} of {workers} processors used"


@options.command("profile")
@click.option(
    "--workload",
    "-w",
    "workloads",
    multiple=True,
    default=["noop-20000", "tree-65535", "standardise"],
    type=click.Choice(
        [name for name, subject in CATALOGUE.items() if isinstance(subject, Workload) and not subject.make]
    ),
    metavar="NAME",
    help="See python -m benchmarks --list.",
)
@options.rounds
@options.workers
@options.timeout
@options.scale
def profile(workloads: tuple[str, ...], rounds: int, workers: int, timeout_s: float, scale: float) -> None:
    """Show where the time of computations goes, as Markdown.

    Figures are processor time by part, medians over processes; shares are of all processor time that was used.
    What is said of processors is for as many as there are workers.
    """
    console = plain_console()
    console.print(f"{describe_machine(machine_facts())}; {workers} workers.", soft_wrap=True)
    for name in workloads:
        subject = CATALOGUE[name]
        assert isinstance(subject, Workload)
        runs = [_profile(name, scale, workers, timeout_s) for _ in range(rounds)]
        tasks = None if subject.tasks is None else subject.tasks(scale)
        console.print(f"\n{_summary(name, runs, tasks, workers)}", soft_wrap=True)
        print_tables(console, table_of(runs, tasks))
