"""What many workers cost the scheduler: ``python -m benchmarks workers``."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import click

from benchmarks import options
from benchmarks.measure import ONE_THREAD_EACH
from benchmarks.report import markdown_table, plain_console, print_tables
from dask_mars.scheduler.events import ChunksFinished, Event, Free, GraphPlan, Instruction
from dask_mars.scheduler.machine import Machine, Parameters
from dask_mars.scheduler.virtual import GRAPH, VirtualRun

#: Seconds that each chunk takes.
CHUNK_S = 0.005
_MIB = 1 << 20
# Never reached, but with limits the machine counts sizes and quotas, as it does for an engine.
_FAR = 1 << 50
_RUNS = 3

Sizes = Mapping[int, int]


def _plan(inputs: list[tuple[int, ...]], operand_of: list[int], sizes: Sizes) -> tuple[GraphPlan, Sizes]:
    needed = {source for sources in inputs for source in sources}
    outputs = [chunk for chunk in range(len(inputs)) if chunk not in needed]
    declared = [sizes.get(chunk) for chunk in range(len(inputs))] if sizes else None
    return GraphPlan(inputs, outputs, operand_of, declared_bytes=declared), sizes


def _flat(count: int) -> tuple[GraphPlan, Sizes]:
    return _plan([()] * count, [0] * count, {})


def _tree(count: int, size_bytes: int = 0) -> tuple[GraphPlan, Sizes]:
    # In the depth-first order that optimization leaves.
    inputs: list[tuple[int, ...]] = []

    def add(leaves: int) -> int:
        inputs.append(() if leaves <= 1 else tuple([add(leaves // 8) for _ in range(8)]))
        return len(inputs) - 1

    add(count)
    sizes = dict.fromkeys(range(len(inputs)), size_bytes) if size_bytes else {}
    return _plan(inputs, [int(bool(sources)) for sources in inputs], sizes)


def _exchange(count: int) -> tuple[GraphPlan, Sizes]:
    half = count // 2
    inputs: list[tuple[int, ...]] = []
    for n in range(half):
        inputs += [(), (2 * n, 2 * ((n + 7) % half))]
    return _plan(inputs, [0, 1] * half, dict.fromkeys(range(0, 2 * half, 2), _MIB))


KINDS: dict[str, Callable[[int], tuple[GraphPlan, Sizes]]] = {
    "flat": _flat,
    "tree": _tree,
    "tree, 8 MiB": lambda count: _tree(count, 8 * _MIB),
    "exchange, 1 MiB": _exchange,
}


class _Recording(VirtualRun):
    """A run whose events are recorded."""

    def __init__(self, plan: GraphPlan, sizes: Sizes, parameters: Parameters) -> None:
        super().__init__(plan, parameters)
        self._sizes = sizes
        self.events: list[tuple[Event, float]] = []
        handle = self.machine.handle

        def recorded(event: Event, now_s: float) -> list[Instruction]:
            self.events.append((event, now_s))
            return handle(event, now_s)

        self.machine.handle = recorded  # type: ignore[method-assign]

    def begin(self, worker: int, chunk: int, restores: list[int]) -> float:
        # Workers do not report all at once.
        return CHUNK_S * (0.9 + 0.2 * (chunk * 0.6180339887 % 1))

    def end(self, worker: int, chunk: int, duration_s: float) -> ChunksFinished:
        size_bytes = self._sizes.get(chunk, 0)
        self.stored_bytes += size_bytes
        sizes = {chunk: size_bytes} if size_bytes else {}
        return ChunksFinished(worker, GRAPH, (chunk,), (duration_s,), sizes, sizes)

    def carry_out(self, instruction: Instruction) -> None:
        super().carry_out(instruction)
        if isinstance(instruction, Free):
            self.stored_bytes -= sum([self._sizes.get(chunk, 0) for chunk in instruction.chunks])


def machine_us(kind: str, workers: int, count: int) -> float:
    """Return the microseconds of processor time of a chunk that the state machine takes alone."""
    plan, sizes = KINDS[kind](count)
    parameters = Parameters(
        num_workers=workers, store_limit=_FAR, memory_limit=_FAR, quota_slack_bytes=_MIB, result_limit=_FAR
    )
    run = _Recording(plan, sizes, parameters)
    run.submit()
    while not run.machine.is_done(GRAPH) and run.step():
        pass
    figures = []
    for _ in range(_RUNS):
        machine = Machine(parameters)
        # The submission is paid for once a graph, whatever the number of workers.
        for event, now_s in run.events[: workers + 1]:
            machine.handle(event, now_s)
        began_s = time.process_time()
        for event, now_s in run.events[workers + 1 :]:
            machine.handle(event, now_s)
        figures.append(time.process_time() - began_s)
    return 1e6 * statistics.median(figures) / len(plan.inputs)


def engine_figures(workers: int, count: int) -> dict[str, tuple[float, float]]:
    """Return for each kind of graph the engine's microseconds of processor time a chunk, and seconds in all."""
    command = [sys.executable, "-m", "benchmarks.workers_child", str(workers), str(count)]
    done = subprocess.run(command, env={**os.environ, **ONE_THREAD_EACH}, stdout=subprocess.PIPE, check=True)
    figures: dict[str, tuple[float, float]] = json.loads(done.stdout)
    return figures


@options.command("workers")
@click.option(
    "--workers", "-n", multiple=True, type=click.IntRange(min=1), default=(2, 8, 32, 64, 128), help="How many."
)
@click.option("--chunks", default=4096, type=click.IntRange(min=16), help="How many in a graph.")
@click.option("--machine-only", is_flag=True, help="Without engines.")
def workers(workers: tuple[int, ...], chunks: int, machine_only: bool) -> None:
    """Measure what a chunk costs the scheduler with few and with many workers, in microseconds of processor time.

    Chunks take 5 ms: in virtual time for the state machine alone, and asleep in the workers of an engine, of which
    the thread of the engine is measured.
    """
    console = plain_console()
    alone = markdown_table("machine alone, us a chunk", *map(str, workers), words=("machine alone, us a chunk",))
    for kind in KINDS:
        alone.add_row(kind, *[f"{machine_us(kind, count, chunks):.1f}" for count in workers])
    print_tables(console, alone)
    if machine_only:
        return
    found = [engine_figures(count, chunks) for count in workers]
    heading = "engine's thread, us a chunk (s in all)"
    engines = markdown_table(heading, *map(str, workers), words=(heading,))
    for kind in found[0]:
        engines.add_row(kind, *[f"{figures[kind][0]:.0f} ({figures[kind][1]:.2f})" for figures in found])
    print_tables(console, engines)
