"""What the runner of a service keeps of computations that are over."""

from __future__ import annotations

import gc
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars import Runtime
from dask_mars.client.backend import EngineBackend
from dask_mars.engine.graph_run import GraphRun
from dask_mars.graph.chunks import ChunkGraph
from dask_mars.web import wire
from dask_mars.web.pickles import pack
from dask_mars.web.runtime_monitor import RuntimeMonitor
from dask_mars.web.service import results
from dask_mars.web.service.process import Lines
from dask_mars.web.service.runner import Runner, _checkpoint
from tests.conftest import eventually

pytestmark = pytest.mark.timeout(60)

#: Tells the runner to compute a collection, and returns what it says at the end.
Compute = Callable[[Any], dict[str, Any]]


@pytest.fixture
def compute(runtime: Runtime, tmp_path: Path) -> Iterator[Compute]:
    """Run a runner in this process, which saves what it computes as services do."""
    for name in ("incoming", "results", "details"):
        (tmp_path / name).mkdir()
    front, back = socket.socketpair()
    monitor = RuntimeMonitor(runtime)
    limit = runtime.settings.memory_limit

    def backend() -> EngineBackend:
        return EngineBackend(runtime.engine, lambda: limit)

    with dask.config.set({"dask-mars.checkpoint.directory": None}):
        runner = Runner(Lines(back), tmp_path, backend, monitor, runtime.records, limit, _checkpoint(tmp_path))
        thread = threading.Thread(target=runner.serve)
        thread.start()
        lines = Lines(front)
        said = iter(lines)
        numbers = iter(range(100))

        def computed(collection: Any) -> dict[str, Any]:
            number = next(numbers)
            graph = tmp_path / f"graph-{number}"
            frames = pack(collection)
            header = {"kind": "collections", "frames": [frame.nbytes for frame in frames], "options": {}}
            graph.write_bytes(b"".join([wire.encode_header(header), *frames]))
            order = {"do": "run", "number": number, "name": "", "attempt": 1}
            lines.send({**order, "graph": str(graph), "checkpoint": str(tmp_path / "checkpoints" / str(number))})
            return next(message for message in said if message["say"] in ("finished", "failed"))

        yield computed
        lines.end()
        thread.join(20)
        said.close()
        lines.close()
        back.close()
        monitor.close()


def test_nothing_is_left_of_results(compute: Compute, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[weakref.ref[Any]] = []
    write = results.write

    def noting(value: Any, *arguments: Any) -> Any:
        written.append(weakref.ref(value))
        return write(value, *arguments)

    def fail(block: Any) -> Any:
        raise ValueError("as it should")

    def graphs() -> list[Any]:
        return [thing for thing in gc.get_objects() if type(thing) in (ChunkGraph, GraphRun)]

    def left() -> list[Any]:
        kept = [reference() for reference in written if reference() is not None]
        return kept + [graph for graph in graphs() if id(graph) not in of_other_tests]

    monkeypatch.setattr(results, "write", noting)
    # They are kept, so that no other object gets their ids.
    others = graphs()
    of_other_tests = set(map(id, others))
    x = da.from_array(np.ones((300, 300)), chunks=100)
    assert compute(x + 1)["say"] == "finished"
    gc.collect()
    gc.disable()
    try:
        for factor in range(3):
            assert compute(x * factor)["say"] == "finished"
        assert compute(x.map_blocks(fail, dtype=float))["say"] == "failed"
        assert len(written) == 4
        assert eventually(lambda: not left())
    finally:
        gc.enable()
