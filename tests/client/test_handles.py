from __future__ import annotations

import copy
import gc
import os
import pickle
import sys
import threading
import uuid
import warnings
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag
import numpy as np
import pytest
from dask.callbacks import Callback

import dask_mars
from dask_mars import Computation, Runtime
from dask_mars.client import background
from dask_mars.errors import Cancelled, EngineStopped
from dask_mars.optimize import convert
from tests.background import in_background
from tests.conftest import eventually
from tests.tasks import fail_with, linger, notes, wait_for


def waiting(path: Path, name: str = "waits", value: Any = 1) -> Any:
    return dask.delayed(wait_for)(path, value, dask_key_name=name)


# -- results ------------------------------------------------------------------------------------------------------


def test_a_collection_has_its_value_and_several_have_a_tuple(runtime: Runtime):
    x = da.arange(12, chunks=4)
    np.testing.assert_array_equal(runtime.submit(x).result(100), np.arange(12))
    assert runtime.submit(x.sum(), x.max()).result(100) == (66, 11)
    assert runtime.submit({"sum": x.sum(), "one": 1}).result(100) == {"sum": 66, "one": 1}
    assert runtime.submit(3, 4).result(100) == (3, 4)
    assert runtime.submit().result(100) == ()


def test_the_module_submits_where_get_computes(runtime: Runtime):
    computation = dask_mars.submit(da.ones(8, chunks=4).sum(), name="ones")
    assert isinstance(computation, Computation)
    assert computation.result(100) == 8
    assert dask_mars.runtime() is runtime
    assert dask_mars.runtime().computations()[0]["id"] == computation.id


def test_a_finished_one_tells_all(runtime: Runtime):
    computation = runtime.submit(da.ones((8, 8), chunks=4).sum(), name="sum of ones")
    assert computation.wait(100)
    assert computation.done()
    assert (computation.state, computation.name) == ("finished", "sum of ones")
    assert str(uuid.UUID(computation.id)) == computation.id
    progress = computation.progress
    assert progress.total == progress.finished > 0
    assert progress.fraction == 1
    assert sum(layer.total for layer in computation.layers) == progress.total
    assert all(layer.finished == layer.total and layer.seconds > 0 for layer in computation.layers)
    assert sum(layer["count"] for layer in computation.profile().values()) == progress.total
    assert computation.exception() is None
    assert not computation.cancel()
    assert (
        repr(computation) == f"<Computation 'sum of ones' finished: {progress.total} of {progress.total} chunks>"
    )
    html = computation._repr_html_()
    assert "sum of ones" in html
    assert "finished" in html
    with pytest.raises(KeyError):
        computation.explain("no such key")


def test_one_that_runs_tells_how_far_it_is(runtime: Runtime, tmp_path: Path):
    computation = runtime.submit(waiting(tmp_path / "go", "a"), waiting(tmp_path / "go", "b"), name="<two>")
    try:
        assert eventually(lambda: computation.state == "running" and computation.progress.running == 2, 20)
        assert not computation.done()
        assert not computation.wait(0)
        with pytest.raises(TimeoutError, match="running"):
            computation.result(timeout=0)
        with pytest.raises(TimeoutError):
            computation.exception(0.01)
        assert "0 of 2 chunks" in repr(computation)
        assert "&lt;two&gt;" in computation._repr_html_()
        assert [(layer.label, layer.total, layer.running) for layer in computation.layers] == [
            ("a", 1, 1),
            ("b", 1, 1),
        ]
        assert "worker" in computation.explain("a")
        assert "graph" in computation.explain()
        with pytest.raises(KeyError):
            computation.explain("c")
    finally:
        (tmp_path / "go").touch()
    assert computation.result(100) == (1, 1)


def test_nobody_waits_for_an_engine_that_has_no_time(runtime: Runtime, tmp_path: Path):
    computation = runtime.submit(waiting(tmp_path / "never"))
    assert eventually(lambda: computation.progress.running == 1, 20)
    engine, held = runtime.engine(), threading.Event()
    engine._commands.call_soon(lambda: held.wait(60) and None)
    try:
        assert computation.cancel()
        # Who looks has been told by now that it has none, and waits no more.
        with pytest.raises(TimeoutError):
            engine.inspection.workers(300)
        with pytest.raises(TimeoutError):
            computation._record.explain(patience_s=300)
        assert computation.progress.total == 1
    finally:
        held.set()
    with pytest.raises(Cancelled):
        computation.result(100)
    assert engine.inspection.workers(20)


def test_delayed_functions_of_one_name_are_one_layer(runtime: Runtime):
    computation = runtime.submit(*[dask.delayed(abs)(number) for number in range(5)])
    assert computation.result(100) == (0, 1, 2, 3, 4)
    assert [(layer.name, layer.finished) for layer in computation.layers] == [("abs", 5)]


def test_an_id_may_be_chosen(runtime: Runtime):
    chosen = str(uuid.uuid4())
    computation = runtime.submit(dask.delayed(abs)(-1), id=chosen.upper())
    assert computation.id == chosen
    assert computation.result(100) == 1
    with pytest.raises(ValueError, match="already"):
        runtime.submit(dask.delayed(abs)(-1), id=chosen)
    other = uuid.uuid4()
    assert runtime.submit(dask.delayed(abs)(-1), id=other).id == str(other)  # type: ignore[arg-type]


def test_a_graph_is_submitted_as_get_takes_it(runtime: Runtime):
    computation = runtime.submit_graph({"x": 1, "y": (abs, "x")}, [["x"], "y"], name="graph")
    assert computation.result(100) == ((1,), 1)
    assert computation.name == "graph"
    # Options are those of `get`.
    assert runtime.submit_graph({"x": (fail_with, "no"), "y": (abs, "x")}, "y", cache={"x": -3}).result(100) == 3


def test_callbacks_are_those_that_were_active_when_it_was_submitted(runtime: Runtime):
    ended: list[Any] = []
    with Callback(posttask=lambda key, *_: ended.append(key)):
        computation = runtime.submit(dask.delayed(abs)(-1, dask_key_name="x"))
        computation.result(100)
    runtime.submit(dask.delayed(abs)(-1, dask_key_name="y")).result(100)
    assert ended == ["x"]
    assert not Callback.active


def test_collections_of_all_kinds(runtime: Runtime):
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    bag = dask.bag.from_sequence(range(4), npartitions=2).map(abs)
    frame = dd.from_pandas(pd.DataFrame({"a": range(6)}), npartitions=2)
    values = runtime.submit(
        dask.delayed(abs)(-1), bag, frame, frame.a.sum(), {"in": [da.ones(2, chunks=1)]}
    ).result(100)
    assert values[0] == 1
    assert values[1] == [0, 1, 2, 3]
    pd.testing.assert_frame_equal(values[2], pd.DataFrame({"a": range(6)}))
    assert values[3] == 15
    assert values[4]["in"][0].tolist() == [1, 1]
    assert runtime.submit([da.ones(2)], traverse=False).result(100)[0].name.startswith("ones")


def test_datasets_whose_variables_are_made_of_each_other(runtime: Runtime):
    xr = pytest.importorskip("xarray")
    x = da.arange(6, chunks=3)
    data = xr.Dataset({"a": ("x", x), "b": ("x", x + 1)})
    assert runtime.submit(data).result(100).identical(data.compute(scheduler="sync"))
    (found,) = dask.compute(data, scheduler=runtime.get)
    assert found.b.values.tolist() == [1, 2, 3, 4, 5, 6]


# -- bad calls ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"name": 5}, TypeError, "name of a computation is text"),
        ({"name": "n" * 201}, ValueError, "at most 200 characters, not 201"),
        ({"id": 5}, ValueError, "UUID.*and not 5"),
        ({"id": "mine"}, ValueError, "UUID.*and not 'mine'"),
        ({"num_workers": "many"}, ValueError, "'num_workers' is a number, and not 'many'"),
        ({"num_workers": -1}, ValueError, "'num_workers' is at least 0"),
        ({"retries": "often"}, ValueError, "'retries' is a number"),
        ({"retries": -1}, ValueError, "'retries' is at least 0"),
        ({"cache": 3}, TypeError, "'cache' is a mapping"),
        ({"callbacks": 3}, TypeError, "'callbacks' are"),
    ],
)
def test_what_makes_no_sense_is_said_at_once(runtime: Runtime, arguments: Any, error: Any, says: str):
    before = len(runtime.records.live())
    with pytest.raises(error, match=says):
        runtime.submit(dask.delayed(abs)(-1), **arguments)
    with pytest.raises(error, match=says):
        runtime.submit_graph({"x": (abs, -1)}, "x", **arguments)
    assert len(runtime.records.live()) == before
    assert runtime.submit(dask.delayed(abs)(-1)).result(100) == 1


def test_functions_are_not_submitted(runtime: Runtime):
    with pytest.raises(TypeError, match=r"submit dask\.delayed"):
        runtime.submit(pow, 2, 3)


def test_a_handle_is_no_value(runtime: Runtime):
    computation = runtime.submit(dask.delayed(abs)(-1))
    assert computation.result(100) == 1
    assert copy.copy(computation) is copy.deepcopy(computation) is computation
    uses = [
        lambda: pickle.dumps(computation),
        lambda: dask.delayed(abs)(computation),
        lambda: dask.compute([computation], scheduler=runtime.get),
        lambda: runtime.submit(computation).result(100),
        lambda: runtime.submit_graph({"x": (abs, computation)}, "x").result(100),
    ]
    for use in uses:
        with pytest.raises(TypeError, match=r"(what its result\(\) returns|bad operand)"):
            use()
    assert dask.delayed(abs)(computation.result()).compute(scheduler=runtime.get) == 1


def test_timeouts(runtime: Runtime, tmp_path: Path):
    computation = runtime.submit(waiting(tmp_path / "never"))
    wrong: list[Any] = ["soon", float("nan"), [1], object()]
    for timeout in wrong:
        for ask in (computation.result, computation.wait, computation.exception):
            with pytest.raises(ValueError, match="a timeout is a number of seconds"):
                ask(timeout)
    right: list[Any] = [0, -1, "1ms", timedelta(milliseconds=1)]
    for timeout in right:
        with pytest.raises(TimeoutError, match="of waiting; it goes on"):
            computation.result(timeout)
    computation.cancel()
    assert computation.wait(float("inf"))


def test_keys_that_nothing_is_known_of(runtime: Runtime, tmp_path: Path):
    computation = runtime.submit(waiting(tmp_path / "never", "a"))
    assert eventually(lambda: computation.state == "running", 20)
    with pytest.raises(TypeError, match="key"):
        computation.explain(["a"])
    with pytest.raises(KeyError, match=r"'b'.*no such key"):
        computation.explain("b")
    computation.cancel()
    computation.wait(100)
    with pytest.raises(KeyError, match="cancelled"):
        computation.explain("a")


def test_many_threads_submit(runtime: Runtime):
    def compute(number: int) -> int:
        return runtime.submit(dask.delayed(abs)(-number)).result(60)

    found = [in_background(compute, number) for number in range(40)]
    assert [each.result(60) for each in found] == list(range(40))


# -- failures -----------------------------------------------------------------------------------------------------


def test_what_a_task_raises_is_raised_by_result(runtime: Runtime):
    computation = runtime.submit(dask.delayed(fail_with)("broken"), name="bad")
    with pytest.raises(LookupError, match="broken"):
        computation.result(100)
    assert isinstance(computation.exception(), LookupError)
    assert computation.state == "failed"
    assert computation.progress.failed == 1
    assert "LookupError: broken" in repr(computation)
    assert "LookupError" in computation._repr_html_()
    assert "LookupError: broken" in computation.explain()
    (record,) = [record for record in runtime.records if record.id == computation.id]
    assert record.failure is not None
    assert "fail_with" in record.failure.traceback


def test_bad_input_fails_and_others_go_on(runtime: Runtime):
    computation = runtime.submit_graph({"x": (abs, 1)}, "y")
    with pytest.raises(KeyError):
        computation.result(100)
    assert runtime.submit(dask.delayed(abs)(-1)).result(100) == 1


def test_an_error_that_cannot_be_shown_fails_all_the_same(runtime: Runtime):
    class Unshowable(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def fail() -> None:
        raise Unshowable

    computation = runtime.submit_graph({"x": (fail,)}, "x")
    assert computation.exception(100) is not None
    assert computation.state == "failed"
    assert runtime.records.find(computation.id).failure is not None


# -- cancelling ---------------------------------------------------------------------------------------------------


def test_what_runs_is_cancelled(runtime: Runtime, tmp_path: Path):
    computation = runtime.submit(waiting(tmp_path / "never"))
    assert eventually(lambda: computation.state == "running", 20)
    assert computation.cancel()
    with pytest.raises(Cancelled):
        computation.result(100)
    assert computation.state == "cancelled"
    assert not computation.cancel()


def test_a_runtime_cancels_by_id_number_and_handle(runtime: Runtime, tmp_path: Path):
    one, two = (runtime.submit(waiting(tmp_path / "never", name)) for name in ("one", "two"))
    assert eventually(lambda: one.state == two.state == "running", 20)
    three = runtime.submit(waiting(tmp_path / "never"))
    assert runtime.cancel(three)
    assert isinstance(three.exception(100), Cancelled)
    assert runtime.cancel(one.id)
    (graph_id,) = [row["graph"] for row in runtime.computations() if row["id"] == two.id]
    assert runtime.cancel(graph_id)
    assert isinstance(one.exception(100), Cancelled)
    assert isinstance(two.exception(100), Cancelled)
    assert not runtime.cancel(one.id)
    assert not runtime.cancel(str(uuid.uuid4()))
    assert not runtime.cancel("nonsense")
    assert not runtime.cancel(one)
    for nothing in (None, 1.5, [one]):
        with pytest.raises(TypeError, match="expected an id, a number or a Computation"):
            runtime.cancel(nothing)  # type: ignore[arg-type]


def test_what_is_being_prepared_is_cancelled(runtime: Runtime, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(convert, "_KEYS_BETWEEN_CHECKPOINTS", 10)
    entered, go_on = threading.Event(), threading.Event()

    enter = convert.Converter._enter

    def slowly(*args: Any) -> Any:
        entered.set()
        go_on.wait(100)
        return enter(*args)

    monkeypatch.setattr(convert.Converter, "_enter", slowly)
    computation = runtime.submit_graph(
        {"x": 0, **{("y", n): (abs, "x") for n in range(100)}}, [("y", n) for n in range(100)]
    )
    assert entered.wait(100)
    assert computation.state == "preparing"
    assert "prepared" in computation.explain()
    with pytest.raises(KeyError):
        computation.explain("x")
    (row,) = [row for row in runtime.computations() if row["id"] == computation.id]
    assert (row["state"], row["graph"], row["started"]) == ("preparing", None, None)
    assert runtime.cancel(computation.id)
    # Its thread is in the middle of it, and nobody waits for that.
    assert computation.state == "cancelled"
    with pytest.raises(Cancelled, match=computation.id):
        computation.result(0)
    assert not computation.cancel()
    go_on.set()
    assert runtime.submit(dask.delayed(abs)(-1)).result(100) == 1
    assert computation.progress.total == 0


def test_what_stands_in_the_queue_is_cancelled_at_once(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(background, "_MOST_AT_ONCE", 1)
    first = runtime.submit(waiting(tmp_path / "go"))
    try:
        second, third = (runtime.submit(dask.delayed(abs)(number)) for number in (-2, -3))
        assert second.state == "queued"
        assert "turn" in second.explain()
        assert second.cancel()
        assert second.done()
        assert second.state == "cancelled"
        assert isinstance(second.exception(), Cancelled)
    finally:
        (tmp_path / "go").touch()
    assert third.result(100) == 3
    assert first.result(100) == 1


def test_a_get_in_another_thread_is_seen_and_cancelled(runtime: Runtime, tmp_path: Path):
    computing = in_background(waiting(tmp_path / "never", "x").compute, scheduler=runtime.get)
    assert eventually(lambda: runtime.computations()[0]["state"] == "running", 20)
    row = runtime.computations()[0]
    assert row["chunks"]["total"] == 1
    assert runtime.cancel(row["id"])
    assert isinstance(computing.exception(100), Cancelled)
    assert runtime.computations()[0]["state"] == "cancelled"


# -- what is kept -------------------------------------------------------------------------------------------------


def test_records_keep_no_values_and_a_result_lives_as_long_as_its_handle(runtime: Runtime):
    computation = runtime.submit(da.ones(1000, chunks=500))
    alive = weakref.ref(computation.result(100))
    assert runtime.records.find(computation.id).result == {
        "kind": "array",
        "dtype": "float64",
        "shape": [1000],
        "bytes": 8000,
        "evicted": False,
    }
    assert alive() is not None
    del computation
    gc.collect()
    assert eventually(lambda: alive() is None)


def test_one_that_nobody_holds_goes_on(runtime: Runtime, tmp_path: Path):
    id = runtime.submit(dask.delayed(linger)(tmp_path / "begun", tmp_path / "go", 1)).id
    gc.collect()
    assert eventually(lambda: notes(tmp_path / "begun"), 20)
    (tmp_path / "go").touch()
    assert eventually(lambda: runtime.records.find(id).state == "finished", 20)


def test_what_tasks_print_and_warn_is_kept(runtime: Runtime, capfd: pytest.CaptureFixture[str]):
    def talk() -> None:
        print("one\ntwo")
        print("three", file=sys.stderr)
        warnings.warn("four", stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        computation = runtime.submit(dask.delayed(talk)())
        computation.result(100)
    lines, truncated = runtime.records.find(computation.id).log
    assert not truncated
    said = [(line.stream, line.text) for line in lines]
    assert [said for said in said if said[0] == "stdout"] == [("stdout", "one"), ("stdout", "two")]
    assert ("stderr", "three") in said
    assert any(stream == "warning" and "UserWarning: four" in text for stream, text in said)


# -- ends ---------------------------------------------------------------------------------------------------------


def test_closing_ends_what_runs_and_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(background, "_MOST_AT_ONCE", 1)
    with Runtime(num_workers=1) as runtime:
        running = runtime.submit(waiting(tmp_path / "never"))
        queued = runtime.submit(dask.delayed(abs)(-1))
        assert eventually(lambda: running.state == "running", 20)
    assert isinstance(queued.exception(100), EngineStopped)
    assert isinstance(running.exception(100), EngineStopped)
    assert running.state == queued.state == "failed"
    with pytest.raises(EngineStopped):
        runtime.submit(dask.delayed(abs)(-1))
    with pytest.raises(EngineStopped):
        runtime.submit_graph({"x": 1}, "x")


FORKED = """
import os, sys, dask, dask_mars, time
from dask_mars.errors import EngineStopped

computation = dask_mars.submit(dask.delayed(time.sleep)(60))
while computation.state != "running":
    time.sleep(0.01)
child = os.fork()
if child == 0:
    try:
        computation.result()
    except EngineStopped:
        second = dask_mars.submit(dask.delayed(abs)(-5))
        os._exit(second.result(100) + (computation.state == "failed"))
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), computation.state)
"""


@pytest.mark.slow
def test_a_forked_process_waits_for_nothing_of_its_parent(scripts: Any):
    done = scripts.run("-c", FORKED)
    assert (done.stdout.split(), done.returncode) == (["6", "running"], 0), done.stderr


def test_within_a_task_it_is_computed_there(runtime: Runtime):
    def within() -> tuple[Any, ...]:
        computation = dask_mars.submit(dask.delayed(os.getpid)())
        return computation.result(), os.getpid(), computation.state

    inner, outer, state = runtime.submit(dask.delayed(within)()).result(100)
    assert inner == outer != os.getpid()
    assert state == "finished"
