"""Explains in words what graphs, workers and chunks wait for."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dask.utils import format_bytes

from dask_mars.engine.graph_run import GraphRun
from dask_mars.labels import worker_label
from dask_mars.scheduler.events import CLIENT
from dask_mars.scheduler.machine import Machine
from dask_mars.scheduler.memory import RESERVATION
from dask_mars.scheduler.objects import ObjectId
from dask_mars.scheduler.states import State

#: Maximum number of chunks in a list.
_SHOWN = 3
_ENDS = {
    State.FINISHED: "is computed",
    State.FREED: "was computed, and its memory is free again",
    State.FATAL: "failed, or an input of it did",
    State.CANCELLING: "is cancelled and still running",
    State.CANCELLED: "is cancelled",
}
#: Verb for each step of a worker.
_DOES = {"prepare": "prepares", "load": "loads the inputs of", "compute": "computes", "seal": "stores"}


class RunningStep(NamedTuple):
    """The step that a worker is running."""

    graph: int
    chunk: int
    #: The step, one of `control.STEPS`.
    name: str


def explain(
    machine: Machine,
    runs: Mapping[int, GraphRun],
    labels: Mapping[int, str],
    steps: Mapping[int, RunningStep],
    reservations: Mapping[int, Hashable],
    persisted: int,
) -> str:
    """Describe each graph's progress and what it waits for. Chunks have their ids in brackets."""
    memory = machine.memory
    lines = [
        f"{_workers(len(labels), bool(runs))}; the store holds {format_bytes(memory.stored_bytes)} of "
        f"{format_bytes(memory.limit_bytes)}, {format_bytes(memory.reserved_bytes)} are reserved for "
        f"dispatched chunks, {format_bytes(memory.spilling_bytes)} are being written to disk"
    ]
    if persisted:
        lines.append(f"{persisted} chunks are persisted")
    if not runs:
        lines.append("nothing is being computed")
    for graph_id in runs:
        counts = ", ".join(f"{count} {name}" for name, count in machine.counts(graph_id).items() if count)
        lines.append(f"graph {graph_id}: {counts}")
    for worker, label in labels.items():
        line = f"{label} has {_listed(runs, machine.dispatched_to(worker))}"
        if step := steps.get(worker):
            line += f", and {_DOES[step.name]} {runs[step.graph].name_of(step.chunk)}"
        lines.append(line)
    if in_client := machine.dispatched_to(CLIENT):
        lines.append(f"{worker_label(CLIENT)} has {_listed(runs, in_client)}")
    for worker, (graph, chunk, missing_bytes) in machine.growing().items():
        name = runs[graph].name_of(chunk)
        waits = f"waits for {format_bytes(missing_bytes)} of memory to grow by for {name}"
        lines.append(f"{labels.get(worker, worker_label(worker))} {waits}")
    blocked = machine.blocked
    if blocked is not None:
        graph, chunk, required_bytes = blocked
        if graph == RESERVATION:
            lines.append(f"{reservations[chunk]!r} is next and waits for {format_bytes(required_bytes)} of memory")
        else:
            waits = _waits_for_memory(runs[graph], chunk, required_bytes)
            lines.append(f"{runs[graph].name_of(chunk)} is next and {waits}")
    return "\n".join(lines)


def _workers(count: int, are_needed: bool) -> str:
    if count:
        return f"{count} workers"
    return (
        "no workers yet, which are starting" if are_needed else "no workers, which start with the next computation"
    )


def explain_chunk(
    machine: Machine,
    run: GraphRun,
    chunk: int,
    now_s: float,
    steps: Mapping[int, RunningStep],
    labels: Mapping[int, str],
) -> str:
    """Explain why a chunk is not being computed, and if it waits for another, why that one is not."""
    # Chunks have their ids in brackets.
    return "\n".join(_reasons(machine, run, chunk, now_s, steps, labels))


def _reasons(
    machine: Machine,
    run: GraphRun,
    chunk: int,
    now_s: float,
    steps: Mapping[int, RunningStep],
    labels: Mapping[int, str],
) -> Iterator[str]:
    name, graph_id = run.name_of(chunk), run.id
    state = machine.state_of(graph_id, chunk)
    if state in _ENDS:
        yield f"{name} {_ENDS[state]}"
        return
    missing = machine.missing_inputs(graph_id, chunk)
    if state is State.RUNNING:
        holder = machine.holder_of(graph_id, chunk)
        holder_id = CLIENT if holder is None else holder
        where = labels.get(holder_id, worker_label(holder_id))
        before = "" if holder is None else _position(machine, graph_id, chunk, holder, steps.get(holder))
        growing = machine.growing().get(holder_id)
        if growing is not None and growing[:2] == (graph_id, chunk):
            before = f", and waits for {format_bytes(growing[2])} of memory to grow by"
        yield f"{name} is dispatched to {where}{before}"
    elif missing:
        yield f"{name} waits for {len(missing)} of its {len(run.graph.inputs[chunk])} inputs"
        yield from _reasons(machine, run, missing[0], now_s, steps, labels)
    else:
        yield f"{name} is ready and {_why_ready(machine, run, chunk, now_s, labels)}"


def _position(machine: Machine, graph_id: int, chunk: int, worker: int, step: RunningStep | None) -> str:
    if step is not None and step[:2] == (graph_id, chunk):
        return f", which {_DOES[step.name]} it"
    position = machine.dispatched_to(worker).index((graph_id, chunk))
    return f", behind {position} others" if position else ", and next or running"


def _why_ready(machine: Machine, run: GraphRun, chunk: int, now_s: float, labels: Mapping[int, str]) -> str:
    graph_id = run.id
    due_s = machine.retry_due_s(graph_id, chunk)
    if due_s is not None:
        return f"will be tried again in {max(due_s - now_s, 0):.1f} s"
    if machine.is_to_run_alone(graph_id, chunk):
        return (
            "waits for all workers to have nothing to do: it took one past the memory limit, and is to run alone"
        )
    if machine.blocked is not None and machine.blocked[:2] == (graph_id, chunk):
        return _waits_for_memory(run, chunk, machine.blocked[2])
    if missing := machine.missing_resources(graph_id, chunk):
        wanted = [f"{amount:g} {name}, of which {free:g} is free" for name, amount, free in missing]
        return f"waits for {' and '.join(wanted)}"
    if workers := machine.offered_to(run.id, chunk):
        return f"is offered to {' and '.join([labels.get(worker, worker_label(worker)) for worker in workers])}"
    return "waits for a worker"


def _waits_for_memory(run: GraphRun, chunk: int, required_bytes: int) -> str:
    waits = f"waits for {format_bytes(required_bytes)} of memory"
    shape, dtype = run.graph.shape_of(chunk), run.graph.dtype_of(chunk)
    if shape is None or dtype is None:
        return waits
    return f"{waits}; its result is declared as {dtype} of shape {shape}"


def _listed(runs: Mapping[int, GraphRun], chunks: Sequence[ObjectId]) -> str:
    if not chunks:
        return "nothing"
    more = f" and {len(chunks) - _SHOWN} more" if len(chunks) > _SHOWN else ""
    return ", ".join([runs[graph].name_of(chunk) for graph, chunk in chunks[:_SHOWN]]) + more
