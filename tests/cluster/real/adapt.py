"""The hosts that `adapt` asks for with stock workers and with agents: ``python -m tests.cluster.real.adapt``."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import dask.array as da
from distributed import Client, LocalCluster

import dask_mars
from tests.cluster.real.services import agents, reach

_MAXIMUM = 14


def _slept(block: Any) -> Any:
    time.sleep(0.3)
    return block


def _grown(takes_over: bool) -> None:
    """Compute 400 chunks of 0.3 s on a cluster that grows from one host, and print how far it does."""
    x = da.ones(400, chunks=1).map_blocks(_slept, dtype=float).sum()
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0"))
        client = stack.enter_context(Client(cluster, set_as_default=False))
        if takes_over:
            stack.enter_context(dask_mars.take_over(client))
        get = dask_mars.get if takes_over else client.get
        cluster.adapt(minimum=1, maximum=_MAXIMUM, interval="500 ms")
        found: list[float] = []
        begun_s = time.monotonic()
        thread = threading.Thread(target=lambda: found.append(x.compute(scheduler=get, client=client)))
        thread.start()
        asked = joined = 0
        while thread.is_alive():
            asked = max(asked, len(cluster.plan))
            joined = max(joined, len(agents(client)) if takes_over else len(cluster.scheduler_info["workers"]))
            time.sleep(0.1)
        print(f"asked for {asked}, joined {joined}, {time.monotonic() - begun_s:.1f} s, right: {found == [400.0]}")
        reach("one host again", lambda: len(cluster.plan) == 1)


def main() -> None:
    """Run both."""
    print("-- stock workers")
    _grown(takes_over=False)
    print("-- agents")
    _grown(takes_over=True)


if __name__ == "__main__":
    main()
