"""Answers questions about a running engine, in the engine's thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from dask_mars.engine.explain import RunningStep, explain, explain_chunk
from dask_mars.engine.graph_run import ChunkMeasurements
from dask_mars.engine.listeners import EngineView
from dask_mars.engine.memory_account import MemoryAccount, ProcessMemory
from dask_mars.engine.registry import Registry
from dask_mars.extensions import missing_extensions
from dask_mars.limits import arena_bytes, library_bytes
from dask_mars.protocol.control import ControlPage
from dask_mars.scheduler.events import CLIENT
from dask_mars.scheduler.machine import Machine


class Inspection:
    """Inspects an engine's parts.

    Parameters
    ----------
    machine, registry, control, view
        Parts of the engine.
    arenas : sequence of int
        Descriptors of its arenas.
    object_quotas : bool
        Whether worker processes count the memory of Python's objects before it is taken.
    """

    def __init__(
        self,
        machine: Machine,
        registry: Registry,
        control: ControlPage,
        view: EngineView,
        arenas: Sequence[int],
        object_quotas: bool,
    ) -> None:
        self._machine = machine
        self._registry = registry
        self._control = control
        self._view = view
        self._arenas = arenas
        self._object_quotas = object_quotas

    def explain(self) -> str:
        """Describe what waits for what."""
        machine, registry = self._machine, self._registry
        waiting = {number: reservation.key for number, reservation in registry.reservations.items()}
        return explain(machine, registry.runs, self._labels(), self.steps(), waiting, len(registry.persisted))

    def explain_chunk(self, number: int, chunk: int) -> str:
        """Explain what a chunk waits for; raise `KeyError` if its graph is forgotten."""
        run = self._registry.runs[number]
        return explain_chunk(self._machine, run, chunk, time.monotonic(), self.steps(), self._labels())

    def _labels(self) -> dict[int, str]:
        return {number: handle.label for number, handle in self._registry.workers.items()}

    def state(self) -> dict[str, Any]:
        """Return running graphs, workers and memory use; see `Runtime.state`."""
        machine, registry = self._machine, self._registry
        return {
            "graphs": [{"graph": number, "chunks": machine.counts(number)} for number in registry.runs],
            "persisted": len(registry.persisted),
            "reservations": [
                {"key": waits.key, "bytes": waits.size_bytes, "granted": waits.answer is None}
                for waits in registry.reservations.values()
            ],
            "workers": self.workers(),
            "store": self._view.store(),
            "missing_extensions": list(missing_extensions()),
            "object_quotas": self._object_quotas,
        }

    def workers(self) -> list[dict[str, Any]]:
        """Return the entry of each worker in `state`."""
        machine, registry, steps = self._machine, self._registry, self.steps()
        workers = []
        for number, handle in registry.workers.items():
            step = steps.get(number)
            workers.append(
                {
                    "worker": number,
                    "label": handle.label,
                    "pid": handle.pid,
                    "running": None if step is None else registry.runs[step.graph].graph.keys[step.chunk],
                    "step": None if step is None else step.name,
                    "in_hand": len(machine.in_hand(number)),
                }
            )
        return workers

    def memory(self, processes: tuple[ProcessMemory, ...]) -> MemoryAccount:
        """Return the uses of the engine's memory, given the private memory of its processes."""
        registry, memory = self._registry, self._machine.memory
        store = self._view.store()
        shared_bytes, libraries = arena_bytes(self._arenas), library_bytes([process.pid for process in processes])
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

    def measurements(self) -> list[ChunkMeasurements]:
        """Return the measurements of the present computations and of the last finished one."""
        return [
            *filter(None, [self._registry.last_measurements]),
            *[run.measurements for run in self._registry.runs.values()],
        ]

    def steps(self) -> dict[int, RunningStep]:
        """Return the present step of each busy worker."""
        steps = {}
        for worker in self._registry.workers:
            name = self._control.step(worker)
            running = self.running(worker)
            if running is not None:
                steps[worker] = RunningStep(*running, name)
        return steps

    def in_hand_of(self, graph: int) -> list[int]:
        """Return the chunks of a graph that workers or the user's process have in hand."""
        holders = [*self._registry.workers, CLIENT]
        return [chunk for holder in holders for number, chunk in self._machine.in_hand(holder) if number == graph]

    def running(self, worker: int) -> tuple[int, int] | None:
        """Return graph and chunk that a worker runs."""
        noted = self._control.running(worker)
        run = self._registry.runs.get(noted.graph) if noted is not None else None
        # A note that is being written, or was cut short by the end of the process, has an impossible number.
        if noted is None or run is None or noted.number >= len(run.graph):
            return None
        return noted.graph, noted.number


__all__ = ["Inspection"]
