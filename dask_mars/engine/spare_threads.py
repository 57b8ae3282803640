"""Keeps threads for chunks in the user's process from one computation to the next."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor


class SpareThreads:
    """The pool of threads of the last computation: to start and end them takes as long as many chunks."""

    def __init__(self) -> None:
        self._pools: list[tuple[int, ThreadPoolExecutor]] = []
        self._is_closed = False

    def take(self, size: int) -> ThreadPoolExecutor:
        """Return a pool of threads for one computation: a task of another may compute in turn, and wait."""
        try:
            known, pool = self._pools.pop()
        except IndexError:
            known = 0
        if known == size:
            return pool
        if known:
            pool.shutdown(wait=False)
        return ThreadPoolExecutor(size, thread_name_prefix="dask-mars-client")

    def give_back(self, size: int, pool: ThreadPoolExecutor) -> None:
        """Keep a pool without tasks, unless there is one."""
        if self._pools:
            pool.shutdown()
        else:
            self._pools.append((size, pool))
        if self._is_closed:
            self.close()

    def close(self) -> None:
        """End the threads."""
        self._is_closed = True
        while self._pools:
            self._pools.pop()[1].shutdown()
