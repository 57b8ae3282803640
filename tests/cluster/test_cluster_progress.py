"""Progress of operands on a cluster: Dask's callbacks, the overview at the scheduler, and what agents measure."""

from __future__ import annotations

import asyncio
import io
import operator
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.cache import Cache
from dask.callbacks import Callback
from dask.diagnostics import CacheProfiler, ProgressBar
from distributed import Client, wait
from distributed.client import FutureCancelledError

import dask_mars
from dask_mars.cluster import monitor, progress
from dask_mars.cluster.dashboard import Dashboard
from dask_mars.cluster.partition.subtasks import cut, place
from dask_mars.cluster.progress import ProgressReceiver
from dask_mars.diagnostics import Progress
from dask_mars.engine.listeners import listeners
from dask_mars.optimize.convert import convert
from dask_mars.scheduler.events import GraphPlan
from tests.background import in_background
from tests.cluster.conftest import asked, nothing_is_left
from tests.conftest import cluster_of_agents, eventually
from tests.observe.test_diagnostics import Recorder
from tests.tasks import fail_first, note, noted, notes, wait_for

pytestmark = pytest.mark.usefixtures("by_value")

TOPIC = "dask-mars-progress"
#: What takes longer hangs.
PATIENCE_S = 40.0


@pytest.fixture(autouse=True)
def nobody_listens() -> Iterator[None]:
    yield
    assert not progress._inboxes
    assert not progress._watched


@pytest.fixture
def sent(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what agents tell of progress."""
    messages: list[Any] = []
    nothing_is_on_its_way(cluster)
    for agent in cluster.workers.values():

        def log_event(topic: str, message: Any, log: Any = agent.log_event) -> None:
            if topic.startswith(TOPIC):
                messages.append(message)
            log(topic, message)

        monkeypatch.setattr(agent, "log_event", log_event)
    return messages


def nothing_is_on_its_way(cluster: Any) -> None:
    """Wait until agents have sent all that they have to tell."""
    assert eventually(lambda: not any(agent._messenger._news for agent in cluster.workers.values()), PATIENCE_S)
    # What is taken is sent before their event loop comes to anything else.
    cluster.sync(asyncio.sleep, 0)


class Opener(Callback):
    """Makes a file once the operands of a layer have ended, on which others wait."""

    def __init__(self, layer: str, count: int, path: Path) -> None:
        self.layer, self.left, self.path = layer, count, path

    def _posttask(self, key: Any, value: Any, dsk: Any, state: Any, worker: Any) -> None:
        self.left -= key[0] == self.layer
        if not self.left:
            self.path.touch()


def waiting_for_news(path: Path) -> tuple[dict[Any, Any], str]:
    """Return a graph that ends only if somebody makes a file when he hears of its first operands."""
    first = {("first", number): (operator.add, number, 1) for number in range(20)}
    return {**first, "wait": (wait_for, str(path), [*first], PATIENCE_S), "sum": (total, [*first], "wait")}, "sum"


def total(numbers: list[int], *_: Any) -> int:
    return sum(numbers)


def columns(calls: list[tuple[Any, ...]]) -> dict[str, set[Any]]:
    return {hook: {call[1] for call in calls if call[0] == hook} for hook in ("pretask", "posttask", "finish")}


# -- callbacks ------------------------------------------------------------------------------------------------


def test_callbacks_hear_of_each_operand_once_and_in_order(get):
    x = da.random.default_rng(0).random((60, 60), chunks=10)
    y = (x + x.T).mean(axis=0)
    # It checks, of each operand that begins, that the inputs have ended.
    recorder = Recorder()
    with recorder:
        ours = y.compute(scheduler=get)
    with Recorder() as reference:
        theirs = y.compute(scheduler="sync")
    np.testing.assert_allclose(ours, theirs)
    assert len(recorder.calls) == len(set(recorder.calls)) == len(reference.calls)
    assert columns(recorder.calls)["finish"] == {False}
    assert columns(recorder.calls)["pretask"] == columns(recorder.calls)["posttask"] == set(recorder.values)
    assert len(recorder.values) == len(reference.values)
    assert recorder.states == [{"ready": 0, "waiting": 0, "running": 0}]
    # Only what is put together here has a value here.
    assert [key for key, value in recorder.values.items() if value is not None] == [recorder.calls[-2][1]]


def test_news_arrive_while_it_is_computed(get, tmp_path):
    path = tmp_path / "go"
    with Opener("first", 20, path), Recorder() as recorder:
        assert get(*waiting_for_news(path)) == 210
    assert any(worker.startswith("tcp://") and "process" in worker for worker in recorder.workers)


def test_counting_callbacks_hear_while_it_is_computed(get, tmp_path, monkeypatch):
    path = tmp_path / "go"
    out = io.StringIO()

    class Bar(ProgressBar):
        def _draw_bar(self, fraction: float, elapsed: float) -> None:
            super()._draw_bar(fraction, elapsed)
            if fraction > 0.8:
                path.touch()

    # A subclass may look at anything; this one is known not to.
    monkeypatch.setattr("dask_mars.client.callbacks._COUNTING", {"dask.diagnostics.progress", __name__})
    with Bar(out=out, dt=0.01):
        assert get(*waiting_for_news(path)) == 210
    assert out.getvalue().rstrip().rsplit("\r", 1)[-1].startswith("[" + 40 * "#" + "] | 100% Completed")


def test_the_display_shows_a_computation_and_not_its_parts(get):
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=100)
    with Progress(console=console):
        da.ones((40, 40), chunks=10).sum().compute(scheduler=get)
    (line,) = console.file.getvalue().splitlines()
    done, count = line.removeprefix("finished: ").split(" tasks ")[0].split(" of ")
    assert done == count != "0"
    assert not listeners.active


def test_what_runs_here_is_heard_of_too(get):
    lock = threading.Lock()
    graph = {
        "before": (operator.add, 1, 1),
        "here": (with_lock, lock, "before"),
        "after": (operator.add, "here", 1),
    }
    with Recorder() as recorder:
        assert get(graph, "after") == 4
    assert [call[1] for call in recorder.calls if call[0] == "posttask"] == ["before", "here", "after"]
    assert recorder.values["here"] == 3


def with_lock(lock: Any, value: int) -> int:
    with lock:
        return value + 1


def test_callbacks_that_need_values_are_left_out(get):
    cachey = pytest.importorskip("cachey")

    class Own(Cache):
        pass

    cache = Own(cachey.Cache(1e9, 0))
    with cache, CacheProfiler() as profiler, Recorder() as recorder, pytest.warns(match="is left out") as warned:
        assert get({"a": (operator.add, 1, 1)}, "a") == 2
    assert sorted(str(each.message).split()[0] for each in warned) == ["CacheProfiler", "Own"]
    assert not cache.cache.data
    assert not profiler.results
    assert columns(recorder.calls)["posttask"] == {"a"}


# -- errors ---------------------------------------------------------------------------------------------------


def test_errors_end_callbacks(get, tmp_path):
    graph = {"a": (fail_first, str(tmp_path / "n"), 9, 1), "b": (operator.neg, "a")}
    with Recorder() as recorder, pytest.raises(OSError, match="failure 1") as caught:
        get(graph, "b")
    assert caught.traceback[-1].name == "fail_first"
    assert recorder.calls[-1] == ("finish", True)
    assert not columns(recorder.calls)["posttask"]
    # What is tried again with success is told of once.
    with Recorder() as recorder:
        assert get({"a": (fail_first, str(tmp_path / "m"), 1, 1)}, "a", retries=1) == 1
    assert [call[0] for call in recorder.calls] == ["start", "start_state", "pretask", "posttask", "finish"]


def test_callbacks_that_raise_cancel(get, cluster, tmp_path):
    class Raiser(Callback):
        def _posttask(self, *_: Any) -> None:
            raise KeyboardInterrupt

    graph = {"a": (note, str(tmp_path / "begun")), "b": (wait_for, str(tmp_path / "never"), "a", PATIENCE_S)}
    with Raiser(), pytest.raises(KeyboardInterrupt):
        get(graph, "b")
    assert eventually(lambda: nothing_is_left(cluster), PATIENCE_S)


def test_clients_that_are_closed_meanwhile(cluster, tmp_path):
    client = Client(cluster, set_as_default=False)

    class Closer(Callback):
        def _posttask(self, *_: Any) -> None:
            client.close()

    graph = {"a": (note, str(tmp_path / "begun")), "b": (wait_for, str(tmp_path / "never"), "a", PATIENCE_S)}
    with Closer(), pytest.raises(FutureCancelledError):
        dask_mars.get(graph, "b", client=client)
    assert not progress._inboxes
    assert not progress._watched
    assert eventually(lambda: nothing_is_left(cluster), PATIENCE_S)


@pytest.mark.slow
def test_hosts_that_are_lost(private_tmp, tmp_path):
    path, heard, begun, times = [tmp_path / name for name in ("go", "heard", "begun", "times")]
    first = {("first", number): (noted, str(times), number) for number in range(20)}
    graph = {
        **first,
        "wait": (note_and_wait_for, str(begun), str(path), [*first]),
        "sum": (total, [*first], "wait"),
    }
    with (
        cluster_of_agents(2) as cluster,
        Client(cluster, set_as_default=False) as client,
        Opener("first", 20, heard),
        Recorder() as recorder,
    ):

        def lose_then_go_on() -> None:
            wait_for(heard, None, PATIENCE_S)
            assert eventually(lambda: notes(begun), PATIENCE_S)
            # Nobody else has what this one has computed.
            (agent,) = [
                agent for agent in cluster.workers.values() if int(notes(begun)[0]) in agent.engine.worker_pids()
            ]
            remove = cluster.scheduler.remove_worker
            cluster.sync(remove, agent.address, stimulus_id="test", close=True)
            path.touch()

        losing = in_background(lose_then_go_on)
        assert dask_mars.get(graph, "sum", client=client) == 190
        losing.result(100)
    # Some was computed twice.
    assert len(notes(times)) > 20
    assert len(recorder.values) == 22
    assert len(recorder.calls) == len(set(recorder.calls)) == 47
    assert recorder.states == [{"ready": 0, "waiting": 0, "running": 0}]


def note_and_wait_for(begun: str, path: str, value: Any) -> Any:
    note(begun, str(os.getpid()))
    return wait_for(path, value, PATIENCE_S)


# -- what it costs --------------------------------------------------------------------------------------------


def test_without_callbacks_nothing_is_sent(get, sent):
    x = da.ones((40, 40), chunks=10).sum()
    x.compute(scheduler=get)
    assert not sent
    with Recorder():
        x.compute(scheduler=get)
    assert eventually(lambda: sent, PATIENCE_S)


def test_messages_are_few_and_short(get, sent, cluster):
    graph = {("x", number): (operator.add, number, 1) for number in range(3000)}
    with Recorder() as recorder:
        get(graph, list(graph))
    assert len(recorder.values) == 3000
    nothing_is_on_its_way(cluster)
    told = [subtask for message in sent for subtask in message["subtasks"]]
    places = {
        (number, place)
        for _, number, _, ended in told
        for _, ranges, _ in ended
        for place in progress.numbers_in(ranges)
    }
    assert len(places) == 3000
    # Operands of a subtask run in their order, more or less.
    assert sum([len(ranges) for *_, ended in told for _, ranges, _ in ended]) < 3000
    # Callbacks are not told how long they took.
    assert not [seconds for *_, ended in told for *_, seconds in ended if seconds]


def test_nothing_grows_at_the_scheduler(get, client, cluster):
    for _ in range(3):
        with Recorder():
            get({"a": (operator.add, 1, 1)}, "a")
    topics = [topic for topic in cluster.scheduler._broker._topics if topic.startswith(TOPIC)]
    assert len(topics) <= progress._TOPICS
    name = f"{TOPIC}-{progress.zlib.crc32(client.id.encode()) % progress._TOPICS}"
    assert name in topics
    assert eventually(lambda: client.id not in cluster.scheduler._broker._topics[name].subscribers, PATIENCE_S)


class Told:
    """An observer that writes down what it is told."""

    def __init__(self, in_order: bool) -> None:
        self.in_order = in_order
        self.calls: list[tuple[str, Any, Any]] = []

    def begun(self, graph: Any, chunks: list[int]) -> None:
        self.calls += [("begun", graph.keys[chunk], None) for chunk in chunks]

    def ended(self, graph: Any, chunks: list[int], values: dict[int, Any], worker: Any) -> None:
        self.calls += [("ended", graph.keys[chunk], worker) for chunk in chunks]


def watch_of(dsk: dict[Any, Any], wanted: str, observer: Any) -> ProgressReceiver:
    graph = convert(dsk, [wanted])
    plan = GraphPlan(graph.inputs, graph.outputs, graph.operand_of)
    subtasks = cut(plan, place(plan, {}, [0]), {0: 1}, seconds=[0.0] * len(graph))
    assert len(subtasks) == 1
    return ProgressReceiver(SimpleNamespace(id="client"), "name", graph, subtasks, observer)


@pytest.mark.parametrize("in_order", [True, False])
def test_messages_out_of_order_and_repeated(in_order):
    told = Told(in_order)
    watch = watch_of({"a": (abs, 1), "b": (abs, "a"), "c": (abs, "b")}, "c", told)
    watch._take("host", 0, [0, 1], [])
    assert told.calls == [("begun", "a", None)]
    # Of what `b` has read nothing was heard.
    watch._take("host", 0, [2, 1], [[7, [1, 1], [0.5]]])
    watch._take("other", 0, [0, 2], [[8, [0, 2], [0.25, 0.5]]])
    begun = [call[1] for call in told.calls if call[0] == "begun"]
    ended = [call[1:] for call in told.calls if call[0] == "ended"]
    assert sorted(begun) == ["a", "b", "c"]
    assert ended == [("a", "unknown"), ("b", "host process 7")]
    if in_order:
        assert [call[:2] for call in told.calls].index(("begun", "c")) == 4
    watch.finish()
    assert [call[1] for call in told.calls if call[0] == "ended"] == ["a", "b", "c"]


# -- the overview ---------------------------------------------------------------------------------------------


@pytest.fixture
def installed(cluster: Any) -> Dashboard:
    return monitor.install(cluster.scheduler)


def test_operands_in_progress(client, get, cluster, installed, tmp_path):
    path = tmp_path / "go"
    assert monitor.install(cluster.scheduler) is installed
    graph, wanted = waiting_for_news(path)
    computing = in_background(get, graph, wanted)
    try:
        # It waits with all of `first` behind it.
        counts = {"total": 22, "waiting": 1, "running": 1, "finished": 20, "failed": 0}
        running = lambda: asked(client, "computations?state=running")["computations"]  # noqa: E731
        assert eventually(lambda: [one["chunks"] for one in running()] == [counts], PATIENCE_S)
        state = asked(client, "state")
        assert (state["counts"]["running"], state["can"]) == (1, [])
        assert sorted(worker["dispatched"] for worker in state["workers"]) == [0, 1]
    finally:
        path.touch()
    computing.result(100)
    assert eventually(lambda: not installed._computations and not installed._computation_of, PATIENCE_S)


def test_what_failed_and_what_is_kept_is_not_in_progress(client, get, installed, tmp_path):
    with client.as_current():
        kept = da.ones(100, chunks=10).persist(scheduler=dask_mars.get)
        wait(kept)
    assert eventually(lambda: [one.state for one in installed._computations.values()] == ["finished"], PATIENCE_S)
    del kept
    with pytest.raises(OSError, match="failure"):
        get({"a": (fail_first, str(tmp_path / "n"), 9, 1)}, "a")
    assert eventually(lambda: not installed._computations and not installed._computation_of, PATIENCE_S)


def test_persist_calls_none(client):
    with Recorder() as recorder, client.as_current():
        kept = da.ones(10, chunks=5).persist(scheduler=dask_mars.get)
        wait(kept)
    assert not recorder.calls


def test_a_scheduler_without_pages():
    plugins: dict[str, Any] = {}
    scheduler = SimpleNamespace(plugins=plugins, workers={}, tasks={})
    scheduler.add_plugin = lambda plugin: plugins.setdefault(plugin.name, plugin)
    installed = monitor.install(scheduler)
    mark = {"computation": "c", "subtask": 0, "chunks": 3}
    tasks = {"x": mark, "part": {**mark, "chunks": 0}, "old": True}
    installed.update_graph(scheduler, client="me", annotations={"dask-mars": tasks})
    assert installed._computations["c"].counts == {"waiting": 3}
    installed.restart(scheduler)
    assert installed.tracked == {}
