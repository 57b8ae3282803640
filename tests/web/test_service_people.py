"""What people do with a service: collections of all kinds, files, modules of their own, coming and going."""

from __future__ import annotations

import pickle
import signal
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cloudpickle
import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pytest

from dask_mars.errors import Cancelled, ServiceError
from dask_mars.web.client import Service
from tests.conftest import eventually
from tests.web.services import raw, submission

pytest.importorskip("tornado")


# -- collections ----------------------------------------------------------------------------------------------


def test_collections_are_computed_as_by_any_scheduler(service: Service, get) -> None:
    x = da.arange(100_000, chunks=10_000)
    found = x.compute(scheduler=service.get)
    assert np.array_equal(found, np.arange(100_000))
    assert found.flags.writeable
    assert dask.compute(x[:3], [x[3]], scheduler=service.get)[1] == [3]
    bag = db.from_sequence(range(10), npartitions=3).map(lambda x: x + 1)
    assert bag.sum().compute(scheduler=service.get) == 55
    assert service.submit(bag).result(100) == list(range(1, 11))
    assert dask.delayed(lambda x: {"x": x})([1]).compute(scheduler=service.get) == {"x": [1]}
    found = service.submit({"a": da.ones(3), "b": [da.full(1, 2), da.zeros(2)], "c": 5}).result(100)
    assert (found["a"].tolist(), found["b"][0], found["b"][1].tolist(), found["c"]) == ([1] * 3, 2, [0] * 2, 5)
    # What is persisted is in the user's process.
    kept = x.persist(scheduler=service.get)
    assert len(kept.dask) == 10
    assert kept.sum().compute(scheduler=service.get) == 4_999_950_000
    graph = {"a": 1, "b": (lambda x: x + 1, "a")}
    assert service.get(graph, "b") == 2
    assert service.get(graph, ["b", ["a"]]) == get(graph, ["b", ["a"]])
    with pytest.raises(Exception, match="nothing"):
        service.get(graph, "nothing")


@pytest.mark.slow
def test_frames(service: Service, tmp_path: Path) -> None:
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    frame = dd.from_pandas(pd.DataFrame({"a": [1, 1, 2], "b": [1.0, 2.0, 3.0]}), npartitions=2)
    assert frame.groupby("a").b.sum().compute(scheduler=service.get).tolist() == [3.0, 3.0]
    assert service.submit(frame).result(100).b.tolist() == [1.0, 2.0, 3.0]
    pytest.importorskip("pyarrow")
    with dask.config.set(scheduler=service.get):
        frame.to_parquet(tmp_path / "p")
        assert dd.read_parquet(tmp_path / "p").b.sum().compute() == 6


@pytest.mark.slow
def test_datasets_are_written_and_read(service: Service, tmp_path: Path, zarr) -> None:
    xr = pytest.importorskip("xarray")
    values = np.random.default_rng(0).random((20, 30))
    data = xr.Dataset({"t": (("x", "y"), da.from_array(values, chunks=10))})
    with dask.config.set(scheduler=service.get):
        data.to_zarr(tmp_path / "a.zarr", consolidated=False)
    writing = service.submit(data.to_zarr(tmp_path / "b.zarr", compute=False, consolidated=False), name="write")
    assert writing.result(100) is None
    for name in ("a.zarr", "b.zarr"):
        with xr.open_zarr(tmp_path / name, consolidated=False) as opened:
            assert np.array_equal(opened.t.values, values)
            assert np.array_equal(opened.t.sum("x").compute(scheduler=service.get), opened.t.sum("x").values)
    found = service.submit(data).result(100)
    assert isinstance(found, xr.Dataset)
    assert np.array_equal(found.t.values, values)


def test_stores_are_where_the_user_is(service: Service, tmp_path: Path, monkeypatch, zarr) -> None:
    """A service works in a directory of its own, to which relative paths must not lead."""
    monkeypatch.chdir(tmp_path)
    with dask.config.set(scheduler=service.get):
        da.ones((4, 4), chunks=2).to_zarr("ones.zarr")
        assert da.from_zarr("ones.zarr").sum().compute() == 16
    assert zarr.open_array(tmp_path / "ones.zarr")[:].sum() == 16


def test_a_handle_shows_how_it_is(service: Service) -> None:
    computation = service.submit(da.ones(4, chunks=2).sum(), name="four")
    assert computation.wait(100)
    assert repr(computation).startswith("<RemoteComputation 'four' finished: ")
    assert repr(service.computation(computation.id)) == repr(computation)
    failing = service.submit(dask.delayed(int)("x"))
    assert failing.wait(100)
    assert f"<RemoteComputation {failing.id} failed: 0 of 1 chunk; ValueError: invalid" in repr(failing)
    failing.delete()
    assert f"{failing.id} deleted" in repr(failing)


# -- what cannot go there -------------------------------------------------------------------------------------


def test_what_cannot_be_pickled_is_said_to_be_so(service: Service, tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(pickle.PicklingError, match=r"cannot go to another process: .*lock"):
        dask.delayed(lambda: lock)().compute(scheduler=service.get)
    with (tmp_path / "file").open("w") as file, pytest.raises(pickle.PicklingError, match="an open file"):
        service.submit(dask.delayed(lambda: file.name)())
    with pytest.raises(pickle.PicklingError, match="generator"):
        dask.delayed(lambda: (x for x in "ab"))().compute(scheduler=service.get)


def test_modules_that_are_not_there_are_named(service: Service, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "dask_mars_local.py").write_text(
        "class Lost(Exception): pass\ndef double(x): return 2 * x\ndef lose(x): raise Lost(x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import dask_mars_local

    try:
        with pytest.raises(ServiceError, match=r"No module named 'dask_mars_local'.*PYTHONPATH") as caught:
            dask.delayed(dask_mars_local.double)(2).compute(scheduler=service.get)
        assert caught.value.status == 422
        cloudpickle.register_pickle_by_value(dask_mars_local)
        assert dask.delayed(dask_mars_local.double)(2).compute(scheduler=service.get) == 4
        with pytest.raises(dask_mars_local.Lost):
            dask.delayed(dask_mars_local.lose)(2).compute(scheduler=service.get)
        cloudpickle.unregister_pickle_by_value(dask_mars_local)
    finally:
        del sys.modules["dask_mars_local"]


def test_names_and_options_are_looked_at(service: Service) -> None:
    with pytest.raises(ServiceError, match="at most 500 characters"):
        service.submit(da.ones(3), name="x" * 501)
    with pytest.raises(ValueError, match="many"):
        da.ones(3).compute(scheduler=service.get, num_workers="many")
    assert service.submit(da.ones(3), name="größer ✓").name == "größer ✓"
    assert da.ones(3).sum().compute(scheduler=service.get, num_workers=1, retries=2) == 3


# -- coming and going -----------------------------------------------------------------------------------------

MAIN = """
import dask, dask_mars, sys

class Shape:
    def __init__(self, sides):
        self.sides = sides

class Bad(Exception):
    pass

def make(sides):
    if sides < 3:
        raise Bad(sides)
    return Shape(sides)

service = dask_mars.connect(sys.argv[1])
print(type(dask.delayed(make)(4).compute(scheduler=service.get)) is Shape)
try:
    service.submit(dask.delayed(make)(2)).result()
except Bad as error:
    print(error)
"""


@pytest.mark.slow
def test_scripts_have_classes_of_their_own(served, scripts) -> None:
    done = scripts.run(str(scripts.write("main.py", MAIN)), str(served.directory))
    assert (done.stdout, done.stderr) == ("True\n2\n", "")


WAITS = """
import dask, dask_mars, sys, time

service = dask_mars.connect(sys.argv[1])
print("ready", flush=True)
try:
    dask.delayed(time.sleep)(1000).compute(scheduler=service.get, name="endless")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
def test_ctrl_c_cancels(served, service, scripts) -> None:
    with scripts.start(str(scripts.write("waits.py", WAITS)), str(served.directory)) as client:
        assert client.stdout.readline() == "ready\n"
        assert eventually(lambda: ("endless", "running") in [(c.name, c.state) for c in service.computations()])
        client.send_signal(signal.SIGINT)
        assert client.communicate(timeout=100)[0] == "interrupted\n"
    newest = next(service.computations())
    assert newest.wait(100)
    assert (newest.name, newest.state) == ("endless", "cancelled")


LEAVES = """
import dask, dask.array as da, dask_mars, sys, time

service = dask_mars.connect(sys.argv[1])
x = da.random.default_rng(7).random((200, 200), chunks=100)
print(service.submit(x, name="noise").id, flush=True)
dask.delayed(time.sleep)(0.5).compute(scheduler=service.get, name="left behind")
"""


@pytest.mark.slow
def test_who_is_killed_loses_nothing_and_another_process_gets_the_same_bits(served, service, scripts) -> None:
    with scripts.start(str(scripts.write("leaves.py", LEAVES)), str(served.directory)) as client:
        noise = service.computation(client.stdout.readline().strip())
        assert eventually(lambda: next(service.computations()).name == "left behind")
        client.kill()
    assert next(service.computations()).result(100) == (None,)
    expected = da.random.default_rng(7).random((200, 200), chunks=100).compute(scheduler="sync")
    assert noise.result(100).tobytes() == expected.tobytes()
    assert (noise.name, noise.state) == ("noise", "finished")


def test_one_submission_ten_times_at_once_is_one_computation(served, service) -> None:
    before = len(list(service.computations()))
    body, id = submission(da.arange(10, chunks=5)), str(uuid.uuid4())
    with ThreadPoolExecutor(10) as clients:
        told = [clients.submit(raw, served, "PUT", f"computations/{id}", body) for _ in range(10)]
    assert sorted(answer.result()[0] for answer in told) == [200] * 9 + [201]
    computation = service.computation(id)
    assert computation.result(100).tolist() == list(range(10))
    assert computation.summary()["attempt"] == 1
    assert len(list(service.computations())) == before + 1


def test_two_at_once_do_not_wait_for_each_other(served, service) -> None:
    with served.connect() as other:
        slow = service.submit(dask.delayed(time.sleep)(5), name="slow")
        assert eventually(lambda: slow.state == "running", 20)
        results: list[int] = []
        threads = [
            threading.Thread(
                target=lambda n=n: results.append(da.arange(n, chunks=2).sum().compute(scheduler=other.get))
            )
            for n in (3, 5)
        ]
        for thread in threads:
            thread.start()
        assert [c.name for c in other.computations("running")][-1:] == ["slow"]
        assert slow.cancel()
        for thread in threads:
            thread.join(100)
        assert sorted(results) == [3, 10]
        with pytest.raises(Cancelled):
            slow.result(100)


def test_who_does_not_want_to_wait_longer(service: Service) -> None:
    slow = service.submit(dask.delayed(time.sleep)(60))
    assert not slow.wait(0.05)
    with pytest.raises(TimeoutError, match=slow.id):
        slow.result(timeout=0.05)
    assert slow.progress == 0.0
    assert eventually(slow.explain)
    slow.delete()
    with pytest.raises(KeyError):
        slow.wait()
