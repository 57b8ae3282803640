"""What the web service shows of a cluster, on the web server of Dask's scheduler."""

from __future__ import annotations

import asyncio
import json
import operator
import secrets
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import Any

import dask
import pytest

pytest.importorskip("distributed")

from distributed import Client, Scheduler
from distributed.utils_test import gen_test
from jsonschema import Draft202012Validator
from tornado.httpclient import AsyncHTTPClient, HTTPClientError

import dask_mars
from dask_mars.cluster import monitor
from dask_mars.cluster.dashboard import Dashboard
from dask_mars.cluster.monitor import SchedulerMonitor
from dask_mars.errors import Cancelled
from dask_mars.web import pages
from tests.background import in_background
from tests.cluster.conftest import asked
from tests.conftest import cluster_of_agents, eventually
from tests.tasks import fail_first, wait_for
from tests.web.described import OPENAPI

PATIENCE_S = 20.0
SCHEMAS = OPENAPI["components"]


@pytest.fixture
def client(cluster):
    with Client(cluster) as client:
        yield client


@pytest.fixture
def get(client):
    return dask_mars.get


def is_a(name: str, answer: Any) -> Any:
    """Hold an answer against the description of the API."""
    Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": SCHEMAS}).validate(answer)
    return answer


def nothing_running(client: Client, **options: Any) -> bool:
    counts = asked(client, "state", **options)["counts"]
    return not counts["running"] and not counts["queued"]


def test_history_of_a_cluster(client, get, tmp_path):
    assert get({"a": (operator.add, 1, 2)}, "a") == 3
    assert eventually(lambda: nothing_running(client), PATIENCE_S)
    with pytest.raises(OSError, match="failure"):
        get({"a": (fail_first, str(tmp_path / "n"), 9, 1)}, "a")
    assert eventually(lambda: nothing_running(client), PATIENCE_S)
    failed, finished = asked(client, "computations?limit=2")["computations"]
    assert (finished["state"], finished["chunks"]["finished"], finished["error"]) == ("finished", 1, None)
    assert finished["created"] <= finished["started"] <= finished["ended"] <= failed["created"]
    (layer,) = is_a("Computation", asked(client, f"computations/{finished['id']}"))["layers"]
    assert (layer["label"], layer["total"], layer["finished"]) == ("a", 1, 1)
    timeline = asked(client, f"computations/{finished['id']}/timeline")
    ((agent, begun, ended, layer, chunks),) = timeline["tasks"]
    assert (timeline["workers"], timeline["layers"], agent, layer, chunks) == ([0], ["a"], 0, 0, 1)
    assert begun <= ended
    assert (failed["state"], failed["error"]["type"]) == ("failed", "OSError")
    error = asked(client, f"computations/{failed['id']}/error")
    assert "fail_first" in error["traceback"]
    for facet in ("log", "graph", "explain"):
        assert asked(client, f"computations/{finished['id']}/{facet}")
    assert len(asked(client, "explain")["rows"]) == 2


def test_nobody_cancels_without_a_token(client, get):
    get({"a": (operator.add, 1, 2)}, "a")
    (one,) = asked(client, "computations?limit=1")["computations"]
    with pytest.raises(urllib.error.HTTPError, match="403"):
        asked(client, f"computations/{one['id']}/cancel", method="POST")


def test_who_has_the_token_cancels(tmp_path):
    token, looking = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    settings = {"dask-mars.web.token": token, "dask-mars.web.view-token": looking}
    with dask.config.set(settings), cluster_of_agents(1) as cluster, Client(cluster) as client:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            asked(client, "state")
        assert asked(client, "state", looking)["can"] == []
        assert asked(client, "state", token)["can"] == ["cancel"]
        computing = in_background(dask_mars.get, {"a": (wait_for, tmp_path / "never")}, "a")
        running = lambda: asked(client, "computations?state=running", token)["computations"]  # noqa: E731
        assert eventually(running, PATIENCE_S)
        (one,) = running()
        cancel = f"computations/{one['id']}/cancel"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            asked(client, cancel, looking, method="POST")
        assert asked(client, cancel, token, method="POST") == {"id": one["id"]}
        assert isinstance(computing.exception(PATIENCE_S), Cancelled)
        (one,) = asked(client, "computations", token)["computations"]
        assert one["state"] == "cancelled"
        with pytest.raises(urllib.error.HTTPError, match="409"):
            asked(client, cancel, token, method="POST")


async def plots_of(url: str) -> dict[str, str]:
    """Ask as `DaskDashboardCheckHandler` of dask-labextension does."""
    query = ""
    if "?" in url:
        url, _, query = url.partition("?")
        query = f"?{query}"
    answer = await AsyncHTTPClient().fetch(f"{url.rstrip('/')}/individual-plots.json{query}")
    return {name: f"{path}{query}" for name, path in json.loads(answer.body).items()}


@pytest.mark.parametrize("has_token", [False, True])
@gen_test()
async def test_what_labextension_asks_of_a_scheduler(has_token):
    token = secrets.token_urlsafe(32)
    with dask.config.set({"dask-mars.web.token": token if has_token else None}):
        async with Scheduler(dashboard_address="127.0.0.1:0", port=0) as scheduler:
            monitor.install(scheduler)
            base = f"http://127.0.0.1:{scheduler.http_server.port}/mars"
            link = f"{base}?token={token}" if has_token else base
            for url in (link, link.replace("/mars", "/mars/")):
                for path in (await plots_of(url)).values():
                    # It joins the paths of both, and drops the parameters of the first.
                    answer = await AsyncHTTPClient().fetch(
                        f"{base}{path}", raise_error=False, follow_redirects=False
                    )
                    assert (answer.code, answer.headers["Location"].partition("#")[2] != "") == (302, True)
            # JupyterLab itself puts the time behind what it asks its proxy for.
            answer = await AsyncHTTPClient().fetch(
                f"{base}/individual-plots.json?1700000000000", raise_error=False
            )
            assert answer.code == (401 if has_token else 200)


@gen_test()
async def test_the_page_is_below_the_schedulers_prefix(monkeypatch):
    file = pages.PageFile(b"hello", "text/html", '"1"')
    monkeypatch.setattr(pages, "files", lambda: {"index.html": file})
    async with Scheduler(dashboard_address="127.0.0.1:0", http_prefix="/some/where", port=0) as scheduler:
        monitor.install(scheduler)
        at = f"http://127.0.0.1:{scheduler.http_server.port}/some/where/mars"
        asker = AsyncHTTPClient()
        with pytest.raises(HTTPClientError) as caught:
            await asker.fetch(f"{at}?x=1", follow_redirects=False)
        assert caught.value.response.headers["Location"] == "mars/?x=1"
        answer = await asker.fetch(at)
        assert (answer.effective_url, answer.body) == (f"{at}/", b"hello")
        for path in ("/api/v1/state", "/individual-plots.json"):
            assert (await asker.fetch(f"{at}{path}")).code == 200
        for path in ("/nothing", "/api/v1/nothing", "/../../status"):
            with pytest.raises(HTTPClientError):
                await asker.fetch(f"{at}{path}")
        # Dask's own pages are as they were.
        assert (await asker.fetch(at.replace("/mars", "/health"))).code == 200
    await asyncio.sleep(0)


@gen_test()
async def test_a_token_that_is_none():
    with dask.config.set({"dask-mars.web.token": "short"}):
        async with Scheduler(dashboard_address="127.0.0.1:0", port=0) as scheduler:
            with pytest.raises(ValueError, match="at least 32 characters"):
                monitor.install(scheduler)
    await asyncio.sleep(0)


# -- without a cluster ----------------------------------------------------------------------------------------


@pytest.fixture
def watched():
    """A scheduler that does nothing, what notes its tasks, and the monitor of both."""
    scheduler = SimpleNamespace(plugins={}, workers={}, tasks={}, clients={})
    dashboard = Dashboard(scheduler)
    return scheduler, dashboard, SchedulerMonitor(scheduler, dashboard)


def submit(dashboard, name, *keys, chunks=2):
    mark = {"computation": name, "subtask": 0, "chunks": chunks}
    dashboard.update_graph(None, client="me", annotations={"dask-mars": dict.fromkeys(keys, mark)})


def test_states_of_a_computation(watched):
    scheduler, dashboard, monitor = watched
    submit(dashboard, "c", "x", "y")
    scheduler.tasks = dict.fromkeys("xy", SimpleNamespace(processing_on=SimpleNamespace(address="a")))

    def state():
        (one,) = is_a("Computations", monitor.computations(None, None, 10))["computations"]
        assert is_a("Computation", monitor.computation(one["id"]))["state"] == one["state"]
        return one["state"], one["chunks"]["finished"], one["ended"] is not None

    known = monitor.revision()
    assert state() == ("queued", 0, False)
    dashboard.transition("x", "waiting", "processing")
    assert state() == ("running", 0, False)
    times = [{"action": "transfer", "start": 1.0, "stop": 2.0}, {"action": "compute", "start": 2.0, "stop": 3.0}]
    dashboard.transition("x", "processing", "memory", worker="a", startstops=times)
    assert state() == ("running", 2, False)
    # Its host is lost.
    dashboard.transition("x", "memory", "released")
    dashboard.transition("x", "released", "waiting")
    assert state() == ("running", 0, False)
    for key in "xy":
        dashboard.transition(key, "waiting", "processing")
        dashboard.transition(key, "processing", "memory", worker="a", startstops=times)
    assert state() == ("finished", 4, True)
    id = monitor.computations(None, None, 1)["computations"][0]["id"]
    assert [
        (layer["label"], layer["finished"], layer["seconds"]) for layer in monitor.computation(id)["layers"]
    ] == [("x", 2, 2.0), ("y", 2, 1.0)]
    for key in "xy":
        dashboard.transition(key, "memory", "released")
        dashboard.transition(key, "released", "forgotten")
    assert not dashboard._computation_of
    assert state() == ("finished", 4, True)
    assert monitor.revision() > known
    assert (
        len(
            is_a("Timeline", monitor.timeline(monitor.computations(None, None, 1)["computations"][0]["id"]))[
                "tasks"
            ]
        )
        == 3
    )
    is_a("Overview", monitor.state())
    dashboard.restart(None)
    assert monitor.computations(None, None, 10)["computations"] == []


def test_what_is_forgotten_before_it_is_done_was_cancelled(watched):
    _, dashboard, monitor = watched
    submit(dashboard, "c", "x")
    dashboard.transition("x", "waiting", "forgotten")
    (one,) = monitor.computations(None, None, 10)["computations"]
    assert one["state"] == "cancelled"
    assert not monitor.cancel(one["id"])


def test_history_has_an_end(watched):
    _, dashboard, monitor = watched
    for number in range(150):
        submit(dashboard, f"c{number}", number)
        dashboard.transition(number, "waiting", "forgotten")
    assert len(monitor.computations(None, None, 1000)["computations"]) == 100
    # Those whose tasks are still there are kept besides.
    submit(dashboard, "new", "x")
    assert len(monitor.computations(None, None, 1000)["computations"]) == 101


@pytest.mark.parametrize("of", ["computation", "cancel", "error", "log", "timeline"])
def test_ids_that_nobody_knows(watched, of):
    with pytest.raises(KeyError):
        getattr(watched[2], of)("nonsense")


def test_there_are_no_layers(watched):
    _, dashboard, monitor = watched
    submit(dashboard, "c", "x")
    (one,) = monitor.computations(None, None, 10)["computations"]
    with pytest.raises(KeyError):
        monitor.graph(one["id"], "layer")
    with pytest.raises(KeyError):
        monitor.explain(None, "key")
    is_a("Error", monitor.error(one["id"]))
    assert "no agents" in monitor.explain(one["id"], None)["rows"][-1]
    assert "of 2 chunks 2 waiting" in monitor.explain(None, None)["rows"][0]
