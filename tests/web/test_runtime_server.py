"""`Runtime.serve`: a real runtime, looked at and cancelled over HTTP."""

from __future__ import annotations

import gc

import dask.array as da
import pytest

pytest.importorskip("tornado")

from tornado.http1connection import HTTP1Connection
from tornado.iostream import IOStream
from tornado.web import RequestHandler

import dask_mars
from dask_mars import Runtime
from dask_mars.errors import EngineStopped
from dask_mars.web import api
from tests.background import in_background
from tests.conftest import eventually
from tests.tasks import wait_for
from tests.web.conftest import Asker
from tests.web.described import check


@pytest.fixture
def served(runtime):
    with runtime.serve() as server:
        yield Asker(server.url, {"Authorization": f"Bearer {server.token}"})


def test_a_computation_is_followed_and_cancelled(runtime, served, tmp_path):
    def running():
        return {one["id"]: one for one in served.api("computations?state=running").json["computations"]}

    # Other tests may have left some that are still said to run.
    before = running()
    computing = in_background(runtime.get, {"a": (wait_for, tmp_path / "never")}, "a")
    assert eventually(lambda: running().keys() - before, 20)
    (one,) = [one for id, one in running().items() if id not in before]
    known = served.api(f"computations/{one['id']}").json["revision"]
    assert served.api(f"computations/{one['id']}/cancel", "POST").status == 202
    assert served.api(f"computations/{one['id']}?after={known}&wait=20").json["revision"] != known
    assert isinstance(computing.exception(100), dask_mars.errors.Cancelled)
    assert eventually(lambda: served.api(f"computations/{one['id']}").json["state"] == "cancelled", 20)
    # Nothing is submitted there.
    for method in ("PUT", "POST", "DELETE"):
        assert served.api(f"computations/{one['id']}", method).status == 405
        assert served.api("computations", method).status == 405
    assert served.api(f"computations/{one['id']}/cancel", "POST").status == 409


def test_answers_are_as_described(runtime, served):
    x = da.random.default_rng(1).random((40, 40), chunks=10)
    (x + x.T).sum().compute(scheduler=runtime.get)
    id = served.api("computations?state=finished&limit=1").json["computations"][0]["id"]
    layer = served.api(f"computations/{id}/graph").json["layers"][0]["name"]
    for route in api.ROUTES:
        for query in ("", f"?layer={layer}" if "layer" in route.query else ""):
            if route.method != "GET":
                continue
            answer = served.api(route.path.format(id=id) + query)
            assert answer.status == 200, (route, answer.body)
            check(answer.json, route.path, "GET", 200, api.JSON)


def test_reloads_leave_nothing(runtime, served):
    """``python -m benchmarks reloads`` measures it for longer, in bytes."""
    da.ones((40, 40), chunks=10).sum().compute(scheduler=runtime.get)
    id = served.api("computations?state=finished&limit=1").json["computations"][0]["id"]
    paths = ["", "app.js", *[f"api/v1/{path}" for path in ("state", "computations?limit=50")]]
    paths += [f"api/v1/computations/{id}{what}" for what in ("", "/graph", "/timeline", "/explain", "/log")]
    for _ in range(10):
        for path in paths:
            assert served(f"/{path}").status == 200

    def left():
        gc.collect()
        # What other tests have left may be no more than a reference to what is gone.
        kinds = (RequestHandler, IOStream, HTTP1Connection)
        return sum(issubclass(type(one), kinds) for one in gc.get_objects())

    # Of ninety connections and requests.
    assert eventually(lambda: left() < 10, 20)


def test_it_ends_with_its_runtime():
    runtime = Runtime(1)
    with runtime.serve() as server:
        # Who looks starts nothing.
        ask = Asker(server.url, {"Authorization": f"Bearer {server.token}"})
        assert (ask.api("state").json["workers"], runtime._engine) == ([], None)
    runtime.close()
    with Runtime(1) as runtime:
        server = runtime.serve()
        other = runtime.serve()
        other.close()
    assert "closed" in repr(server)
    with pytest.raises(EngineStopped):
        runtime.serve()
    with Runtime(1) as runtime:
        runtime.close()
        with pytest.raises(EngineStopped):
            runtime.serve()


SCRIPT = """
import os
import dask_mars

runtime = dask_mars.Runtime(1)
server = runtime.serve()
print(runtime.get({"a": (sum, [1, 2])}, "a"), flush=True)
if not os.fork():
    # The child has neither: its own would be a new one.
    assert not runtime._servers and "closed" in repr(server)
    os._exit(0)
os.wait()
"""


@pytest.mark.slow
def test_programs_end_with_it_running(scripts):
    done = scripts.run("-c", SCRIPT)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
