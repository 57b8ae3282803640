"""What placing subtasks costs Dask's scheduler: ``python -m studies placement``.

A real scheduler has many simulated agents: the study reports for each what an agent would.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import click
import dask
import distributed
from distributed.scheduler import WorkerState

from benchmarks import options
from benchmarks.report import markdown_table, plain_console
from dask_mars.cluster.marks import MARK
from dask_mars.cluster.metrics import STORE_LIMIT, STORED
from dask_mars.cluster.scheduler_plugin import Placement, SubtaskAnnotation
from dask_mars.dask_api.core import Task, TaskRef

#: Subtasks of each host that read nothing; each of them has one reader, which reads another one as well.
_EACH = 5
_BYTES = 1_000_000


class _Silent:
    """The connection of an agent to which the scheduler says nothing: it waits for the first message to arrive."""

    async def write(self, message: Any) -> None:
        await asyncio.Event().wait()


class _Run:
    """One computation on many agents."""

    def __init__(self, scheduler: Any, client: Any) -> None:
        self._scheduler = scheduler
        self._client = client
        self._joining: list[asyncio.Task[None]] = []
        self._random = random.Random(1)

    async def join(self, number: int) -> float:
        """Add an agent; return the seconds until the scheduler has done with that."""
        address = f"tcp://10.{number >> 16}.{number >> 8 & 255}.{number & 255}:1000"
        began = time.process_time()
        adding = self._scheduler.add_worker(
            _Silent(), address=address, status="running", server_id=address, nthreads=1, name=address,
            now=time.time(), resources={}, memory_limit=1 << 40, metrics=_METRICS, local_directory="", services={},
            versions={}, nanny="", extra={MARK: "1"}, stimulus_id=f"join-{number}",
        )  # fmt: skip
        joining = asyncio.create_task(adding)
        self._joining.append(joining)
        while address not in self._scheduler.stream_comms and not joining.done():
            await asyncio.sleep(0)
        if joining.done():
            joining.result()
        return time.process_time() - began

    def leave(self) -> None:
        """End the agents at once; Dask would take each from all others."""
        self._scheduler.stream_comms.clear()
        for joining in self._joining:
            joining.cancel()

    async def submit(self, hosts: int) -> list[Any]:
        """Submit the subtasks."""
        addresses = list(self._scheduler.workers)
        count = hosts * _EACH
        tasks = [Task(("make", at), int, 1) for at in range(count)]
        tasks += [
            Task(("read", at), max, TaskRef(("make", at)), TaskRef(("make", self._random.randrange(count))))
            for at in range(count)
        ]
        by_key = {
            task.key: SubtaskAnnotation("computation", at, 1, (0.0, float(at)), bound=False)._asdict()
            for at, task in enumerate(tasks)
        }
        annotations = {
            "workers": lambda key: [addresses[key[1] // _EACH]],
            "allow_other_workers": True,
            MARK: by_key.__getitem__,
        }
        with dask.annotate(**annotations):
            futures = self._client.get({task.key: task for task in tasks}, list(by_key), sync=False)
        while len(self._scheduler.tasks) < len(tasks):
            await asyncio.sleep(0.01)
        return list(futures)

    async def run(self, joins: int) -> tuple[float, list[float]]:
        """Let agents finish their subtasks in turn; return the seconds for each, and for each join."""
        done, seconds, joined = 0, 0.0, []
        total = len(self._scheduler.tasks)
        for worker, task in self._next():
            began = time.process_time()
            self._scheduler.handle_task_finished(
                task.key, worker.address, f"done-{done}", run_id=task.run_id, metadata={}, nbytes=_BYTES, type=b"",
                typename="int", startstops=[{"action": "compute", "start": 0.0, "stop": 0.1}],
            )  # fmt: skip
            seconds += time.process_time() - began
            done += 1
            if done % 1000 == 0:
                await asyncio.sleep(0)
            if done == total // 4:
                joined = [await self.join(1 << 20 | number) for number in range(joins)]
        assert done == total, (done, total)
        return seconds / done, joined

    def _next(self) -> Iterator[tuple[WorkerState, Any]]:
        """Yield the first subtask of each agent in turn, while there are any."""
        turns = deque(self._scheduler.workers.values())
        idle = 0
        while idle <= len(turns):
            worker = turns[0]
            turns.rotate(-1)
            idle += 1
            if worker.processing:
                idle = 0
                yield worker, min(worker.processing, key=lambda task: task.priority)
            if len(turns) < len(self._scheduler.workers):
                turns = deque(self._scheduler.workers.values())


_METRICS = {
    "bandwidth": {"total": 100e6, "workers": {}, "types": {}},
    "digests_total_since_heartbeat": {},
    "spilled_bytes": {"memory": 0, "disk": 0},
    "managed_bytes": 0,
    "memory": 0,
    STORED: 0,
    STORE_LIMIT: 1 << 40,
}


async def _measure(hosts: int, joins: int, placed: bool) -> tuple[float, list[float]]:
    settings = {
        "distributed.scheduler.work-stealing-interval": "1 hour",
        "distributed.scheduler.worker-ttl": None,
        "distributed.admin.tick.interval": "1 hour",
    }
    with dask.config.set(settings):
        async with distributed.Scheduler(dashboard=False, protocol="inproc://") as scheduler:
            if placed:
                scheduler.add_plugin(Placement(scheduler))
            async with distributed.Client(scheduler.address, asynchronous=True, set_as_default=False) as client:
                run = _Run(scheduler, client)
                for number in range(hosts):
                    await run.join(number)
                futures = await run.submit(hosts)
                found = await run.run(joins)
                del futures
                run.leave()
                return found


@options.command("placement")
@click.option("--hosts", multiple=True, type=int, default=(10, 100, 1000), show_default=True, help="Agents.")
@click.option("--joins", type=int, default=100, show_default=True, help="Agents that come in the middle.")
def placement(hosts: tuple[int, ...], joins: int) -> None:
    """Time the scheduler with our placement of subtasks, and without, by processor time."""
    # Agents that leave all at once are cancelled tasks for it.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    rows = []
    for count in hosts:
        for placed in (False, True):
            each, joined = asyncio.run(_measure(count, joins, placed))
            rows.append(
                [
                    str(count),
                    "ours" if placed else "none",
                    f"{1e6 * each:.0f}",
                    f"{1 / each:,.0f}",
                    f"{1e3 * sum(joined) / max(len(joined), 1):.1f}",
                    f"{1e3 * max(joined, default=0):.1f}",
                ]
            )
    table = markdown_table(
        "hosts", "placement", "us a subtask", "subtasks a second", "ms a join", "longest join, ms"
    )
    for row in rows:
        table.add_row(*row)
    plain_console().print(table)
