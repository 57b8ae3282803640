"""Errors of chunks whose worker has died, and the check that processes leave memory for results."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from dask_mars.config import Settings
from dask_mars.engine.graph_run import GraphRun
from dask_mars.engine.templates import templates
from dask_mars.errors import MemoryLimitTooLow, WorkerDied, WorkerOverLimit
from dask_mars.exit_codes import describe_exit, has_crashed
from dask_mars.limits import estimate_memory, library_bytes
from dask_mars.scheduler.machine import Machine

logger = logging.getLogger(__name__)


class OverLimit(NamedTuple):
    """A worker that exceeded the memory limit: its bytes, the limit, other processes' bytes, and shared bytes."""

    worker_bytes: int
    limit_bytes: int
    others_bytes: int
    store_bytes: int


def record_death(
    machine: Machine,
    runs: Mapping[int, GraphRun],
    worker_id: int,
    code: int,
    running: tuple[int, int] | None,
    over_limit: OverLimit | None,
) -> None:
    """Record the errors of the chunks that may fail because of a worker's death."""

    def death_of(run: GraphRun, chunk: int, attempts: int, repeatable: bool) -> Exception:
        key = repr(run.graph.keys[chunk])
        if over_limit is not None:
            return WorkerOverLimit(key, *over_limit, repeatable)
        return WorkerDied(key, code, attempts, repeatable)

    for graph, chunk in machine.dispatched_to(worker_id):
        owner = runs[graph]
        if not owner.plan.is_repeatable(chunk):
            owner.errors[chunk] = death_of(owner, chunk, 1, repeatable=False)
    if running is not None:
        graph, chunk = running
        run = runs[graph]
        if logger.isEnabledFor(logging.INFO):
            logger.info("worker %d %s while it ran %s", worker_id, describe_exit(code), run.name_of(chunk))
        if run.plan.is_repeatable(chunk):
            attempts = machine.parameters.allowed_losses(has_crashed(code)) + 1
            run.errors[chunk] = death_of(run, chunk, attempts, repeatable=True)


def check_memory_limit(settings: Settings, pid: int) -> None:
    """Raise if processes alone take all memory, judged by the first worker that has started."""
    # The check precedes the worker's first result, so that either all computations fail or none. The user's own
    # data do not count: they may fill most of the machine's memory.
    limit_bytes = settings.memory_limit
    worker_bytes, template_bytes = estimate_memory([pid]), templates.memory_bytes()
    error = MemoryLimitTooLow(
        limit_bytes,
        settings.num_workers,
        worker_bytes,
        client_bytes=worker_bytes + template_bytes,
        library_bytes=library_bytes([pid, *templates.pids()]) + template_bytes,
    )
    if error.least_bytes > limit_bytes:
        raise error
