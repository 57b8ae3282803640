"""Tasks with what cannot be pickled: they run beside each other, and may wait for each other."""

from __future__ import annotations

import queue
import threading
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import numpy as np

from tests.cases.comparing import case, main

#: Who waits in vain for so long fails, in seconds.
PATIENCE_S = 30


class Connection:
    def __init__(self) -> None:
        self._together = threading.Barrier(2, timeout=PATIENCE_S)
        self.lock = threading.Lock()
        self.served = 0

    def read(self, value: Any) -> Any:
        self._together.wait()
        with self.lock:
            self.served += 1
        return value

    def close(self) -> int:
        return self.served


def read_with(connection: Connection, value: Any) -> Any:
    return connection.read(value)


@case
def methods() -> Any:
    connection = Connection()
    return dask.compute(*[dask.delayed(connection.read)(number) for number in range(6)], num_workers=2)


@case
def argument() -> Any:
    connection = Connection()
    values = [dask.delayed(read_with)(connection, number) for number in range(6)]
    return dask.compute(*values, num_workers=2), connection.close()


@case
def made_used_and_closed_by_tasks() -> Any:
    connection = dask.delayed(Connection)()
    values = [dask.delayed(read_with)(connection, number) for number in range(6)]
    closed = dask.delayed(lambda connection, values: (connection.close(), sum(values)))(connection, values)
    return closed.compute(num_workers=2)


@case
def blocks() -> Any:
    connection = Connection()
    x = da.arange(12, chunks=3).map_blocks(connection.read, meta=np.arange(0))
    return dask.compute(x + 1, x.sum(), num_workers=2)


@case
def bag() -> Any:
    connection = Connection()
    return db.from_sequence(range(4), npartitions=4).map(connection.read).sum().compute(num_workers=2)


@case
def store() -> Any:
    connection, target = Connection(), np.zeros(8)

    class Target:
        def __setitem__(self, index: Any, value: Any) -> None:
            target[index] = connection.read(value)

    da.store(da.arange(8, chunks=2) * 1.5, Target(), lock=False, num_workers=2)
    return target


@case
def producer_and_consumer() -> Any:
    channel: queue.Queue[int] = queue.Queue()
    consumer = dask.delayed(lambda: sum(channel.get(timeout=PATIENCE_S) for _ in range(3)))()
    producer = dask.delayed(lambda: [channel.put(number) for number in range(3)])()
    return dask.compute(consumer, producer, num_workers=2)


@case
def error_while_another_waits() -> Any:
    event = threading.Event()

    def fail() -> None:
        event.set()
        raise LookupError("no such row")

    waiting = dask.delayed(lambda: event.wait(PATIENCE_S))()
    return dask.compute(waiting, dask.delayed(fail)(), num_workers=2)


@case
def one_at_a_time() -> Any:
    lock = threading.Lock()

    def alone(number: int) -> bool:
        if not lock.acquire(blocking=False):
            return False
        threading.Event().wait(0.01)
        lock.release()
        return True

    return dask.compute(*[dask.delayed(alone)(number) for number in range(6)], num_workers=1)


if __name__ == "__main__":
    main()
