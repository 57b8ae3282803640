"""What checkpoints save when processes are killed, and what they cost: ``python -m studies checkpoint``."""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import dask
import dask.array as da
import psutil

import dask_mars
from benchmarks import options
from benchmarks.machine import describe_machine, machine_facts
from benchmarks.report import markdown_table, plain_console, print_tables
from benchmarks.tasks import independent_noops
from dask_mars import Runtime
from studies.checkpoint_child import WORKERS, computed

KINDS = ("sum", "zarr", "xarray")
#: Who is killed: the user's process, whose workers end with it, or all at once, as when a machine restarts.
WHOM = ("process", "all")
#: When they are killed: while chunks are computed, or at any moment from the first to the last.
WHEN = ("computing", "any")
#: How often is looked how far a computation is.
_LOOK_S = 0.005
#: How long it takes, about, until chunks are computed, and from the last chunk on.
_FIRST_S, _LAST_S = 0.4, 0.2


class Deaths(NamedTuple):
    """What came of a computation whose processes were killed.

    Attributes
    ----------
    count : int
        Of its chunks.
    deaths : int
        How often they were killed.
    calls : int
        How often chunks were computed, all in all.
    is_same : bool
        Whether the result is that of a computation that nobody kills, bit for bit.
    """

    count: int
    deaths: int
    calls: int
    is_same: bool

    @property
    def repeated(self) -> int:
        """How many chunks were computed again."""
        return self.calls - self.count

    @property
    def repeated_beyond(self) -> int:
        """How many of these were not dispatched to workers when these died."""
        return max(self.repeated - self.deaths * WORKERS, 0)


def kill(process: subprocess.Popen[bytes], whom: str) -> None:
    """Kill a process, or it and all that it has started at once, and wait until they have ended."""
    parent = psutil.Process(process.pid)
    everybody = [parent, *parent.children(recursive=True)]
    for each in everybody if whom == "all" else [parent]:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()
    psutil.wait_procs(everybody, timeout=10)


def killed(
    kind: str, whom: str, seconds: float, deaths: int, seed: int, each_s: float = 0.1, when: str = "computing"
) -> Deaths:
    """Compute something for some seconds, and kill it now and then at random.

    Parameters
    ----------
    kind, whom, when
        Of `KINDS`, `WHOM` and `WHEN`.
    seconds : float
        How long it would take if nobody killed it.
    deaths : int
        How often it is killed.
    seed : int
        Of chance.
    each_s : float, optional
        How long each chunk takes.
    """
    count = max(int(seconds * WORKERS / each_s), 2 * deaths)
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        folder, alone = Path(directory, "killed"), Path(directory, "alone")
        folder.mkdir()
        alone.mkdir()
        with Runtime(WORKERS) as runtime:
            expected = computed(kind, alone, count, 0.0, runtime.get)
        arguments = [sys.executable, "-m", "studies.checkpoint_child", kind, str(folder), str(count), str(each_s)]
        died = 0
        found: list[object] = []
        calls = 0
        while True:
            (folder / "begun").unlink(missing_ok=True)
            process = subprocess.Popen(arguments)
            _await((folder / "begun").exists, process)
            if died < deaths:
                _await_a_moment(process, folder, count, seconds / deaths, when, chance)
            else:
                process.wait()
            ended = process.poll()
            if ended is None:
                kill(process, whom)
                died += 1
            elif ended:
                raise RuntimeError(f"a computation ended with exit code {ended}")
            if (folder / "result").exists():
                # What is computed after that, as its files were being removed, is not lost work.
                calls = calls or _calls(folder)
                found.append(json.loads((folder / "result").read_text()))
                (folder / "result").unlink()
            if ended is not None:
                return Deaths(count, died, calls, all(each == expected for each in found))


def _await_a_moment(
    process: subprocess.Popen[bytes],
    folder: Path,
    count: int,
    seconds: float,
    when: str,
    chance: random.Random,
) -> None:
    """Wait until a process that computes is to be killed, or has ended."""
    before = _calls(folder)
    moment = chance.choice(("first", "computing", "last")) if when == "any" else "computing"
    longest_s = {"first": _FIRST_S, "computing": 1.2 * seconds, "last": _LAST_S}[moment]
    if moment == "computing":
        # What is killed before it has begun has not lost anything.
        _await(lambda: _calls(folder) > before, process)
    elif moment == "last":
        _await(lambda: _calls(folder) >= count, process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(chance.uniform(0, longest_s))


def _calls(folder: Path) -> int:
    try:
        return (folder / "calls").stat().st_size
    except FileNotFoundError:
        return 0


def _await(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while not condition() and process.poll() is None:
        time.sleep(_LOOK_S)


# -- what it costs ----------------------------------------------------------------------------------------------


def _noops() -> Callable[[Any], Any]:
    count = 20_000

    def run(get: Any) -> Any:
        graph = independent_noops(count, 0)
        return get(graph, list(graph))

    return run


def _array(make: Callable[[], Any]) -> Callable[[], Callable[[Any], Any]]:
    return lambda: lambda get: make().compute(scheduler=get)


def _numbers(side: int = 10_000) -> Any:
    return da.random.default_rng(1).random((side, side), chunks=1000)


WORKLOADS: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "sum": _array(lambda: _numbers().sum()),
    "elementwise": _array(lambda: (da.sqrt(_numbers() ** 2 + 1) * 3 - 2).mean()),
    "rechunk": _array(lambda: _numbers(6000).rechunk((6000, 100)).rechunk((100, 6000)).sum(axis=0)),
    "matmul": _array(lambda: (_numbers(4000) @ _numbers(4000)).sum()),
    "svd": _array(lambda: da.linalg.svd(da.random.default_rng(1).random((200_000, 50), chunks=(10_000, 50)))[1]),
    "noop": _noops,
}


def processor_s(pids: Sequence[int]) -> float:
    """Return the processor time that this process and others have taken."""
    return time.process_time() + sum([_exactly_s(pid) for pid in pids])


def _exactly_s(pid: int) -> float:
    """Return the processor time of a process: the kernel's own figure, where the usual one has hundredths."""
    threads = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if not threads:
        return sum(psutil.Process(pid).cpu_times()[:2])
    return sum([int(thread.read_text().split()[0]) for thread in threads]) / 1e9


class Taken(NamedTuple):
    """What runs have taken, without checkpoints and with them: of the processor, and by the clock."""

    processor_s: float
    elapsed_s: float


def overhead(name: str, rounds: int) -> dict[str, list[Taken]]:
    """Return what a workload takes without checkpoints and with them, in turns."""
    found: dict[str, list[Taken]] = {"off": [], "on": []}
    settings = dask.config.set({"dask-mars.start-in-threads": False})
    with settings, Runtime(WORKERS) as runtime, tempfile.TemporaryDirectory() as directory:
        run = WORKLOADS[name]()
        with dask_mars.checkpoint(directory):
            # What is imported once is no matter of any run.
            run(runtime.get)
        run(runtime.get)
        pids = runtime.engine().worker_pids()
        for number in range(2 * rounds):
            mode = ("off", "on")[(number + number // 2) % 2]
            where = str(Path(directory, "saved")) if mode == "on" else None
            with dask.config.set({"dask-mars.checkpoint.directory": where}):
                before, began_s = processor_s(pids), time.perf_counter()
                run(runtime.get)
                found[mode].append(Taken(processor_s(pids) - before, time.perf_counter() - began_s))
    return found


@click.group(name="checkpoint", context_settings=options.SETTINGS)
def checkpoint() -> None:
    """Kill computations under checkpoints, or measure what checkpoints cost."""


@checkpoint.command(context_settings=options.SETTINGS)
@options.several("--kind", "-k", "kinds", of=KINDS)
@options.several("--whom", "-w", "whom", of=WHOM)
@click.option("--seconds", type=float, default=60.0, help="What each computation takes if nobody kills it.")
@click.option("--deaths", type=click.IntRange(min=1), default=10, help="How often each is killed.")
@click.option("--when", type=click.Choice(WHEN), default="computing", help="At which moments they are killed.")
@click.option("--seed", type=int, default=1, help="Of chance.")
def deaths(kinds: list[str], whom: list[str], seconds: float, deaths: int, when: str, seed: int) -> None:
    """Kill computations at random moments, begin them again, and count what is computed twice, as Markdown."""
    console = plain_console()
    console.print(describe_machine(machine_facts()))
    table = markdown_table(
        "what", "killed", "deaths", "chunks", "again", "beyond the dispatched ones", "same bits"
    )
    for kind in kinds:
        for each in whom:
            found = killed(kind, each, seconds, deaths, seed, when=when)
            beyond = f"{found.repeated_beyond} ({100 * found.repeated_beyond / found.count:.1f} %)"
            cells = (found.deaths, found.count, found.repeated)
            table.add_row(kind, each, *map(str, cells), beyond, "yes" if found.is_same else "NO")
    print_tables(console, table)


@checkpoint.command(context_settings=options.SETTINGS)
@options.several("--workload", "-w", "workloads", of=WORKLOADS)
@click.option("--rounds", "-r", type=click.IntRange(min=1), default=7, help="Runs with, and runs without.")
def cost(workloads: list[str], rounds: int) -> None:
    """Measure what checkpoints cost, in turns with and without them, as Markdown, in medians."""
    console = plain_console()
    console.print(describe_machine(machine_facts()))
    table = markdown_table("workload", "off, processor s", "on", "more", "off, s", "on, s", "more")
    for name in workloads:
        found = overhead(name, rounds)
        cells: list[str] = []
        for field in Taken._fields:
            off, on = (
                statistics.median([getattr(taken, field) for taken in found[mode]]) for mode in ("off", "on")
            )
            cells += [f"{off:.3f}", f"{on:.3f}", f"{100 * (on / off - 1):+.1f} %"]
        table.add_row(name, *cells)
    print_tables(console, table)


__all__ = ["checkpoint", "killed", "overhead"]
