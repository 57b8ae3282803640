"""What a service says to requests that make no sense, and that it goes on."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars.errors import ServiceError
from dask_mars.web import wire
from dask_mars.web.client import connect
from dask_mars.web.service import results
from dask_mars.web.service.monitor import ServiceContext, ServiceMonitor
from dask_mars.web.service.store import ServiceStore
from dask_mars.web.service.supervisor import Supervisor
from tests.conftest import eventually
from tests.web.services import BODY_LIMIT_BYTES, RunningService, put, raw, submission

pytest.importorskip("tornado")

from dask_mars.web.handlers import make_application
from dask_mars.web.service import submissions
from dask_mars.web.service.handlers import rules

GOOD = submission(da.arange(4, chunks=2))


def headed(text: bytes) -> bytes:
    """Return a body that has a text for its header."""
    return struct.pack("<4sI", b"DMW1", len(text)) + text


BODIES = [
    (b"", 400, "before its header"),
    (GOOD[:6], 400, "before its header"),
    (b"PK" + GOOD, 400, "is not for this service"),
    (struct.pack("<4sI", b"DMW1", 1 << 30), 400, "too long"),
    (headed(b"{]"), 400, "not JSON"),
    (headed(b"[]"), 400, "not a JSON object"),
    (headed(b"\xff\xfe{}"), 400, "not JSON"),
    (headed(b"[" * 200_000), 400, "nested too deeply"),
    (headed(b'{"a":' * 100_000), 400, "nested too deeply"),
    (headed(b'{"frames": [%s, %s]}' % (b"9" * 4300, b"9" * 4300)), 400, "no sizes"),
    (headed(b'{"frames": [' + b"9" * 4301 + b"]}"), 400, "not JSON"),
    (headed(b'{"frames": [NaN]}'), 400, "no sizes"),
    (GOOD[:-1], 400, "by its header"),
    (GOOD + b"x", 400, "by its header"),
    (submission(1, frames=[-1]), 400, "no sizes"),
    (submission(1, frames=[True]), 400, "no sizes"),
    (submission(1, frames="all"), 400, "no sizes"),
    (submission(1, kind="x" * 900_000), 400, "collection or graph"),
    (submission(1, name=["x"]), 400, "a name is"),
    (submission(1, name="x" * 501), 400, "a name is"),
    (submission(1, name="half a character: \ud83d"), 400, "a name is"),
    (submission(1, options={"color": 1}), 400, "the options are"),
    (submission(1, options={"retries": "many"}), 400, "whole numbers"),
    (submission(1, versions=None), 400, "no versions"),
    (submission(1, versions={"dask": "1.0"}), 409, "dask 1.0 (here "),
    (submission(1, versions={"dask": "\ud83d"}), 409, r"dask \ud83d (here "),
    (submission(1, versions={"dask": [[1]] * 1000}), 409, "dask [[1], [1], "),
]


def test_bodies_that_are_none_are_refused(served, service) -> None:
    for body, status, detail in BODIES:
        found = put(served, body)
        assert (found[0], detail in found[1]) == (status, True), (detail, found)
        # What is said of what may be a megabyte is a few lines.
        assert len(found[1]) < 500
    # A page can show it.
    body = BODIES[0][0]
    assert raw(served, "PUT", f"computations/{uuid.uuid4()}", body, Accept="text/html")[2].startswith(b"<!DOCTYPE")


def test_what_is_not_taken_is_said_before_it_is_read(served, service) -> None:
    status, detail = put(served, GOOD, Content_Encoding="gzip")
    assert (status, "not compressed" in detail) == (415, True)
    status, _, text = raw(served, "PUT", f"computations/{uuid.uuid4()}", iter([GOOD]))
    assert (status, b"Content-Length" in text) == (411, True)
    for method in ("GET", "PUT", "DELETE"):
        for id in ("7", "..%2f..%2fhistory.sqlite3", "x" * 3000):
            status, _, text = raw(served, method, f"computations/{id}", GOOD if method == "PUT" else None)
            assert (status, bool(json.loads(text)["detail"])) == (404, True)
    x = da.from_array(np.zeros(BODY_LIMIT_BYTES, np.uint8), chunks=-1)
    with pytest.raises(ServiceError, match="the body is longer than 4194304 bytes") as caught:
        service.submit(x)
    assert caught.value.status == 413


def sent(served: RunningService, head: str, body: bytes = b"", length: int = 0) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    line.connect(str(served.directory / "socket"))
    line.sendall(f"{head} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode() + body)
    return line


def test_a_body_that_breaks_off_leaves_nothing(served, service) -> None:
    id = str(uuid.uuid4())
    incoming = served.directory / "incoming"
    # Small ones get there when they are whole.
    body = submission(da.from_array(np.random.default_rng(1).random(1 << 17)))
    with contextlib.closing(sent(served, f"PUT /api/v1/computations/{id}", body[:-5], len(body))):
        assert eventually(lambda: os.listdir(incoming), 5)
    assert eventually(lambda: not os.listdir(incoming), 5)
    with pytest.raises(KeyError):
        service.computation(id)


class Raising:
    def __init__(self, action: str) -> None:
        self.action = action

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (self.action,)


def test_what_cannot_be_computed_there_is_refused(served, service) -> None:
    for action, detail in (
        ("1 / 0", "cannot be unpickled: ZeroDivisionError: division by zero"),
        ("__import__('sys').exit(3)", "cannot be unpickled: SystemExit: 3"),
        ("__import__('no_such_module')", "ModuleNotFoundError"),
    ):
        id, body = str(uuid.uuid4()), submission(Raising(action))
        status, told = put(served, body, id)
        assert (status, detail in told) == (422, True)
    # It is known, and asked for once more it is no other.
    assert put(served, body, id) == (status, told)
    assert service.computation(id).state == "failed"
    with pytest.raises(Exception, match="cannot be unpickled"):
        service.computation(id).result()
    assert put(served, submission(1)[:-3] + b"abc")[0] == 422
    target = np.zeros(10)
    with pytest.raises(ServiceError, match="memory of your process") as caught:
        da.store(da.ones(10, chunks=5), target, scheduler=service.get)
    assert (caught.value.status, target.any()) == (422, False)
    with pytest.raises(ServiceError, match="more than the memory limit") as caught:
        service.submit(da.random.default_rng(1).random((1 << 20, 1 << 20), chunks=1 << 18))
    assert caught.value.status == 422


def test_an_id_is_for_one_body(served, service) -> None:
    id = str(uuid.uuid4())
    assert put(served, GOOD, id)[0] == 201
    assert put(served, GOOD, id)[0] == 200
    assert put(served, GOOD, id.upper())[0] == 200
    status, detail = put(served, submission(da.arange(5, chunks=5)), id)
    assert (status, detail) == (409, "there is a computation with this id and another body")
    assert service.computation(id).result().tolist() == [0, 1, 2, 3]


def test_unknown_computations_are_404(served, service) -> None:
    id = str(uuid.uuid4())
    for method, path in (
        ("GET", ""),
        ("GET", "/result"),
        ("DELETE", ""),
        ("POST", "/cancel"),
        ("GET", "/timeline"),
    ):
        assert raw(served, method, f"computations/{id}{path}")[0] == 404
    with pytest.raises(KeyError, match=id):
        service.computation(id)


def test_results_that_are_not_there_are_said_to_be_so(served, service) -> None:
    slow = service.submit(dask.delayed(time.sleep)(60))
    status, _, text = raw(served, "GET", f"computations/{slow.id}/result")
    assert status == 409
    assert "there is no result yet" in json.loads(text)["detail"]
    assert slow.cancel()
    assert slow.wait(100)
    assert (slow.state, slow.cancel()) == ("cancelled", False)
    assert raw(served, "POST", f"computations/{slow.id}/cancel")[0] == 409
    assert (
        "was not finished: cancelled"
        in json.loads(raw(served, "GET", f"computations/{slow.id}/result")[2])["detail"]
    )


def test_forms_that_a_result_has_not_are_406(served, service) -> None:
    computation = service.submit(dask.delayed(object)())
    assert computation.wait(100)
    path = f"computations/{computation.id}/result"
    status, _, text = raw(served, "GET", path, Accept="application/x-npy")
    assert status == 406
    assert wire.MEDIA_TYPE in json.loads(text)["detail"]
    assert raw(served, "GET", f"{path}?format=json")[0] == 406
    assert raw(served, "GET", f"{path}?format=yaml")[0] == 400
    assert raw(served, "GET", f"{path}?fromat=json")[0] == 400


@pytest.mark.slow
def test_who_is_slow_is_no_burden(served, service) -> None:
    computation = service.submit(da.zeros(32 << 20, dtype="u1", chunks=8 << 20))
    assert computation.wait(100)
    head = f"PUT /api/v1/computations/{uuid.uuid4()}"
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            reader = sent(served, f"GET /api/v1/computations/{computation.id}/result")
            stack.enter_context(contextlib.closing(reader))
            assert reader.recv(1) == b"H"
        for place in range(1, 60):
            stack.enter_context(contextlib.closing(sent(served, head, GOOD[:place], len(GOOD))))
        for _ in range(900):
            idle = stack.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
            idle.connect(str(served.directory / "socket"))
        # It does not wait for readers, who read nothing meanwhile. The next result may end this one's history.
        assert computation.result().nbytes == 32 << 20
        assert raw(served, "GET", "state")[0] == 200
        assert service.submit(da.arange(4, chunks=2).sum()).result(100) == 6


@pytest.fixture
def front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A front in this process, whose runner is not there, with its `directory` and its `store`."""
    server = pytest.importorskip("dask_mars.web.server")
    directory = tmp_path / "d"
    store = ServiceStore(directory)
    supervisor = Supervisor(store, {})
    monitor = ServiceMonitor(store, supervisor)
    with contextlib.closing(store), ThreadPoolExecutor(1) as executor:
        context = ServiceContext(store, supervisor, monitor, executor, wire.versions(), BODY_LIMIT_BYTES)
        monkeypatch.setattr(
            server, "make_application", partial(make_application, extra_rules=lambda site: rules(site, context))
        )
        with server.serve(monitor, socket_path=directory / "socket"):
            yield SimpleNamespace(directory=directory, store=store)


def test_two_thousand_in_the_list(front) -> None:
    with front.store._transaction() as database:
        database.executemany(
            "INSERT INTO computations (id, digest, name, state, created, ended)"
            " VALUES (?, '', ?, 'finished', ?, ?)",
            [(str(uuid.uuid4()), f"number {n}", time.time(), time.time()) for n in range(2_000)],
        )
    with connect(front.directory) as service:
        assert service.state()["counts"]["finished"] == 2_000
        told = json.loads(raw(front, "GET", "computations?limit=1000")[2])
        assert [one["name"] for one in told["computations"]] == [f"number {n}" for n in range(1_999, 999, -1)]
        assert len({computation.name for computation in service.computations()}) == 2_000


def test_a_queue_that_is_too_long_is_refused(front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "_MOST_QUEUED", 1)
    assert put(front, GOOD) == (201, "queued")
    status, headers, text = raw(front, "PUT", f"computations/{uuid.uuid4()}", GOOD)
    assert (status, headers["Retry-After"]) == (503, "10")
    assert "wait already" in json.loads(text)["detail"]


def test_a_result_for_which_there_is_no_disk_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "SPARE_BYTES", 1 << 60)
    with pytest.raises(OSError, match=r"the result has .* bytes, and the service's disk has .* left"):
        results.write([1], False, tmp_path / "incoming", tmp_path / "target")
    assert not list(tmp_path.iterdir())


def test_a_result_that_nobody_wants_is_not_written_to_its_end(tmp_path: Path) -> None:
    looks = []

    def checkpoint() -> None:
        looks.append(1)
        if len(looks) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        results.write(np.zeros(1 << 20), False, tmp_path / "incoming", tmp_path / "target", checkpoint)
    assert not (tmp_path / "target").exists()
