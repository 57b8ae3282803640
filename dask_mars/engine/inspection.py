"""Answers questions about a running engine, in the engine's thread."""

from __future__ import annotations

import time
from typing import Any

from dask_mars.engine.explain import RunningStep, explain, explain_chunk
from dask_mars.engine.listeners import EngineView
from dask_mars.engine.profile import ChunkMeasurements
from dask_mars.engine.registry import Registry
from dask_mars.protocol.control import ControlPage
from dask_mars.scheduler.machine import Machine


class Inspection:
    """Looks at an engine's parts.

    Parameters
    ----------
    machine, registry, control, view
        Of the engine.
    """

    def __init__(self, machine: Machine, registry: Registry, control: ControlPage, view: EngineView) -> None:
        self._machine = machine
        self._registry = registry
        self._control = control
        self._view = view

    def explain(self) -> str:
        """Say what waits for what."""
        machine, registry = self._machine, self._registry
        pids = {number: handle.process.pid for number, handle in registry.workers.items()}
        waiting = {number: reservation.key for number, reservation in registry.reservations.items()}
        return explain(machine, registry.runs, pids, self.steps(), waiting, len(registry.persisted))

    def explain_chunk(self, number: int, chunk: int) -> str:
        """Say what a chunk waits for.

        Raises
        ------
        KeyError
            Its graph is done, and forgotten.
        """
        run = self._registry.runs[number]
        return explain_chunk(self._machine, run, chunk, time.monotonic(), self.steps())

    def state(self) -> dict[str, Any]:
        """Return what is being computed, who computes it and how much memory that takes; see `Runtime.state`."""
        machine, registry, steps = self._machine, self._registry, self.steps()
        workers = []
        for number, handle in registry.workers.items():
            step = steps.get(number)
            workers.append(
                {
                    "worker": number,
                    "pid": handle.process.pid,
                    "running": None if step is None else registry.runs[step.graph].graph.keys[step.chunk],
                    "step": None if step is None else step.name,
                    "in_hand": len(machine.in_hand(number)),
                }
            )
        return {
            "graphs": [{"graph": number, "chunks": machine.counts(number)} for number in registry.runs],
            "persisted": len(registry.persisted),
            "reservations": [
                {"key": waits.key, "bytes": waits.size_bytes, "granted": waits.answer is None}
                for waits in registry.reservations.values()
            ],
            "workers": workers,
            "store": self._view.store(),
        }

    def measurements(self) -> list[ChunkMeasurements]:
        """Return what has been measured of the computations that there are, and of the last one that there was."""
        return [
            *filter(None, [self._registry.last_measurements]),
            *[run.measurements for run in self._registry.runs.values()],
        ]

    def steps(self) -> dict[int, RunningStep]:
        """Return what each of the workers is doing that are in the middle of something."""
        steps = {}
        for worker in self._registry.workers:
            name = self._control.step(worker)
            running = self.running(worker)
            if running is not None:
                steps[worker] = RunningStep(*running, name)
        return steps

    def running(self, worker: int) -> tuple[int, int] | None:
        """Return graph and chunk that a worker is in the middle of."""
        noted = self._control.running(worker)
        run = self._registry.runs.get(noted.graph) if noted is not None else None
        # A note that is being written, or that the end of the process has cut short, has no chunk's number.
        if noted is None or run is None or noted.number >= len(run.graph):
            return None
        return noted.graph, noted.number


__all__ = ["Inspection"]
