"""Answers questions about a running engine."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

from dask_mars.engine.commands import Commands
from dask_mars.engine.explain import RunningStep, explain, explain_chunk
from dask_mars.engine.graph_run import ChunkMeasurements
from dask_mars.engine.listeners import EngineView
from dask_mars.engine.memory_account import MemoryAccount, ProcessMemory, measure_processes
from dask_mars.engine.registry import Registry
from dask_mars.engine.startup import Startup
from dask_mars.engine.templates import templates
from dask_mars.extensions import missing_extensions
from dask_mars.limits import arena_bytes, library_bytes
from dask_mars.scheduler.events import CLIENT
from dask_mars.scheduler.machine import Machine
from dask_mars.store.in_place_sealing import has_object_quotas


class Inspection:
    """Inspects an engine's parts."""

    # Any thread may ask. After `patience_s`, by default never, a question raises `TimeoutError`; after the
    # engine's end it raises the reason, such as `EngineStopped`.

    def __init__(
        self, machine: Machine, registry: Registry, commands: Commands, view: EngineView, startup: Startup
    ) -> None:
        self._machine = machine
        self._registry = registry
        self._control = registry.control
        self._call = commands.call
        self._view = view
        self._startup = startup

    def explain(self, key: Any = None, patience_s: float | None = None) -> str:
        """Describe the progress of each graph, or why the chunk of a key is not computed."""
        if key is None:
            return self._call(self._explain, patience_s)
        # The calling thread looks the key up: comparing a user's objects may run any code, for any time.
        for graph_id, run in list(self._registry.runs.items()):
            chunk = run.graph.ids.get(key)
            if chunk is not None:
                return self._call(partial(self._explain_chunk, graph_id, chunk), patience_s)
        raise KeyError(
            f"no computation that goes on has the key {key!r}. Tasks that are fused to one have the key of the "
            "last; explain() without a key lists what runs"
        )

    def state(self) -> dict[str, Any]:
        """Return running graphs, workers and memory use; see `Runtime.state`."""
        return self._call(self._state)

    def workers(self, patience_s: float | None = None) -> list[dict[str, Any]]:
        """Return the entry of each worker in `state`."""
        return self._call(self._entries, patience_s)

    def memory(self) -> MemoryAccount:
        """Return the uses of memory; see `Runtime.memory`."""
        # The calling thread measures: without /proc each process takes a while. Threads own no memory besides
        # their process's.
        workers = list(self._registry.workers.items())
        pids = {worker_id: handle.pid for worker_id, handle in workers if handle.is_process}
        return self._call(partial(self._memory, measure_processes(os.getpid(), pids)))

    def measurements(self) -> list[ChunkMeasurements]:
        """Return the measurements of the present computations and of the last finished one."""
        return self._call(self._measurements)

    def dispatched_of(self, graph: int, patience_s: float | None = None) -> list[int]:
        """Return the chunks of a graph that workers or the user's process have and have not reported."""
        return self._call(partial(self._dispatched_of, graph), patience_s)

    # -- engine thread ----------------------------------------------------------------------------------------

    def running(self, worker: int) -> tuple[int, int] | None:
        """Return graph and chunk that a worker runs."""
        noted = self._control.running(worker)
        run = self._registry.runs.get(noted.graph) if noted is not None else None
        # A note that is being written, or was cut short by the end of the process, has an impossible number.
        if noted is None or run is None or noted.number >= len(run.graph):
            return None
        return noted.graph, noted.number

    def current(self, worker: int) -> tuple[int, int] | None:
        """Return graph and chunk that a worker runs or will begin next."""
        running = self.running(worker)
        return next(iter(self._machine.dispatched_to(worker)), None) if running is None else running

    def _explain(self) -> str:
        machine, registry = self._machine, self._registry
        waiting = {id: reservation.key for id, reservation in registry.reservations.items()}
        persisted = len(registry.objects.persisted)
        text = explain(machine, registry.runs, self._labels(), self._steps(), waiting, persisted)
        return f"{text}\n{self._kinds()}" if registry.workers else text

    def _kinds(self) -> str:
        """Return which workers are threads or processes, and why, in words."""
        handles, why = self._registry.workers.values(), self._startup.why_processes
        threads = sum([not handle.is_process for handle in handles])
        if not threads:
            return f"workers are processes: {why}"
        if threads == len(handles):
            return "workers are threads of this process: all functions and objects are of known libraries"
        return f"{threads} of {len(handles)} workers are threads, until processes have started: {why}"

    def _explain_chunk(self, graph_id: int, chunk: int) -> str:
        run = self._registry.runs[graph_id]
        return explain_chunk(self._machine, run, chunk, time.monotonic(), self._steps(), self._labels())

    def _labels(self) -> dict[int, str]:
        return {worker_id: handle.label for worker_id, handle in self._registry.workers.items()}

    def _state(self) -> dict[str, Any]:
        machine, registry = self._machine, self._registry
        return {
            "graphs": [{"graph": graph_id, "chunks": machine.counts(graph_id)} for graph_id in registry.runs],
            "persisted": len(registry.objects.persisted),
            "reservations": [
                {"key": waits.key, "bytes": waits.size_bytes, "granted": waits.answer is None}
                for waits in registry.reservations.values()
            ],
            "workers": self._entries(),
            "why_processes": self._startup.why_processes,
            "store": self._view.store(),
            "missing_extensions": list(missing_extensions()),
            "object_quotas": has_object_quotas(registry.settings.arena_threshold_bytes),
        }

    def _entries(self) -> list[dict[str, Any]]:
        machine, registry, steps = self._machine, self._registry, self._steps()
        workers = []
        for worker_id, handle in registry.workers.items():
            step = steps.get(worker_id)
            workers.append(
                {
                    "worker": worker_id,
                    "label": handle.label,
                    "pid": handle.pid,
                    "running": None if step is None else registry.runs[step.graph].graph.keys[step.chunk],
                    "step": None if step is None else step.name,
                    "dispatched": len(machine.dispatched_to(worker_id)),
                }
            )
        return workers

    def _memory(self, processes: tuple[ProcessMemory, ...]) -> MemoryAccount:
        registry, memory = self._registry, self._machine.memory
        store = self._view.store()
        shared_bytes, libraries = (
            arena_bytes(registry.resources.arena_files),
            library_bytes([process.pid for process in processes]) + templates.memory_bytes(),
        )
        in_use_bytes = shared_bytes + libraries + sum([process.private_bytes for process in processes])
        registry.note_in_use(in_use_bytes)
        known = self._view.memory()
        return MemoryAccount(
            limit_bytes=known["limit_bytes"],
            in_use_bytes=in_use_bytes,
            peak_bytes=known["peak_bytes"],
            shared_bytes=shared_bytes,
            store_bytes=store["stored_bytes"],
            store_limit_bytes=store["limit_bytes"],
            promised_bytes=memory.reserved_bytes + memory.awaited_bytes,
            private=processes,
            library_bytes=libraries,
            on_disk_bytes=known["on_disk_bytes"],
            spilled_bytes=store["spilled_bytes"],
        )

    def _measurements(self) -> list[ChunkMeasurements]:
        return [
            *filter(None, [self._registry.last_measurements]),
            *[run.measurements for run in self._registry.runs.values()],
        ]

    def _steps(self) -> dict[int, RunningStep]:
        """Return the present step of each busy worker."""
        steps = {}
        for worker in self._registry.workers:
            name = self._control.step(worker)
            running = self.running(worker)
            if running is not None:
                steps[worker] = RunningStep(*running, name)
        return steps

    def _dispatched_of(self, graph: int) -> list[int]:
        holders = [*self._registry.workers, CLIENT]
        return [chunk for holder in holders for id, chunk in self._machine.dispatched_to(holder) if id == graph]
