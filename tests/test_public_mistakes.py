"""Wrong calls of the public API: each says what is wrong and what is right, and changes nothing in an engine."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_mars
from dask_mars import Runtime
from dask_mars.diagnostics import EventLog, decode_subtask_id
from dask_mars.errors import ServiceUnreachable
from tests.background import in_background
from tests.conftest import eventually
from tests.tasks import wait_for

GRAPH = {"x": (sum, [1, 2])}

Get = Callable[..., Any]


class Spiteful:
    """A key that is like no other."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("not to be compared")


def annotated(get: Get, **annotations: Any) -> Any:
    with dask.annotate(**annotations):
        value = dask.delayed(sum)([1, 2])
    return value.compute(scheduler=get, optimize_graph=False)


#: Runtimes of which types say nothing.
Made: Any = Runtime

CALLS: list[tuple[str, Callable[[Any], Any], type[Exception], str]] = [
    ("workers as text", lambda _: Made(num_workers="many"), ValueError, "whole number, not 'many'"),
    ("half a worker", lambda _: Made(num_workers=2.5), ValueError, "whole number, not 2.5"),
    ("True workers", lambda _: Made(num_workers=True), ValueError, "whole number, not True"),
    ("no worker", lambda _: Made(num_workers=0), ValueError, "at least 1, not 0"),
    ("fewer than none", lambda _: Made(num_workers=-2), ValueError, "at least 1, not -2"),
    ("a limit that is none", lambda _: Made(memory_limit="lots"), ValueError, "memory_limit .* not 'lots'"),
    (
        "no such policy",
        lambda _: Made(policy="best").get(GRAPH, "x"),
        ValueError,
        "'best', but mars, mars-strict, memory",
    ),
    ("a list of resources", lambda _: Made(resources=["GPU"]), ValueError, "as in {'GPU': 1}"),
    ("negative resources", lambda _: Made(resources={"GPU": -1}), ValueError, "positive numbers"),
    ("a key that is not there", lambda r: r.get(GRAPH, "y"), KeyError, "'y'"),
    ("a key that can be none", lambda r: r.get(GRAPH, {}), TypeError, "{} cannot be a key"),
    ("a set of keys", lambda r: r.get(GRAPH, {"x"}), TypeError, "cannot be a key"),
    ("no graph", lambda r: r.get(None, "x"), AttributeError, "NoneType"),
    ("fewer workers than none", lambda r: r.get(GRAPH, "x", num_workers=-1), ValueError, "at least 0, and not -1"),
    (
        "a crowd of workers",
        lambda r: r.get(GRAPH, "x", num_workers="many"),
        ValueError,
        "a number, and not 'many'",
    ),
    ("retries as text", lambda r: r.get(GRAPH, "x", retries="many"), ValueError, "'retries' is a number.* 'many'"),
    ("half a retry", lambda r: r.get(GRAPH, "x", retries=1.5), ValueError, "'retries' is a whole number.* 1.5"),
    ("negative retries", lambda r: r.get(GRAPH, "x", retries=-1), ValueError, "'retries' is at least 0.* -1"),
    ("retries without end", lambda r: r.get(GRAPH, "x", retries=float("inf")), ValueError, "and not inf"),
    ("callbacks that are none", lambda r: r.get(GRAPH, "x", callbacks=3), TypeError, "'callbacks' are tuples"),
    ("a cache that is none", lambda r: r.get(GRAPH, "x", cache=5), TypeError, "'cache' is a mapping .* not 5"),
    ("a client that is none", lambda _: dask_mars.get(GRAPH, "x", client=5), TypeError, "Client.* not 5"),
    ("persisting a number", lambda r: r.persist(3), TypeError, "must be an iterable, not int"),
    ("cancelling a list", lambda r: r.cancel([1]), TypeError, "expected an id, a number or a Computation, not"),
    ("explaining a list", lambda r: r.explain([]), TypeError, r"\[\] cannot be a key"),
    ("explaining an array", lambda r: r.explain(np.ones(2)), TypeError, "cannot be a key: unhashable type"),
    ("explaining what is like nothing", lambda r: r.explain(Spiteful()), KeyError, "goes on has the key"),
    ("explaining what is not there", lambda r: r.explain("x"), KeyError, "goes on has the key 'x'"),
    (
        "an option that is none",
        lambda r: r.submit(da.ones(2), nme="mine"),
        TypeError,
        "submit has no option 'nme'; did you mean 'name'",
    ),
    ("an option of a graph", lambda r: r.submit_graph(GRAPH, "x", hurry=1), TypeError, "'hurry'; it has name, id"),
    ("a port as text", lambda r: r.serve(port="x"), ValueError, "65535, and not 'x'"),
    ("a port too high", lambda r: r.serve(port=99999), ValueError, "a port is a whole number .* and not 99999"),
    ("a short token", lambda r: r.serve(token="x"), ValueError, "at least 32 .*secrets.token_urlsafe"),
    ("no service", lambda _: dask_mars.connect("/no/such/place"), ServiceUnreachable, "is dask-mars-web running"),
    ("a service that is a number", lambda _: dask_mars.connect(5), TypeError, "expected the URL or .* not 5"),
    ("no URL of a service", lambda _: dask_mars.connect("10.0.0.1:8899"), ValueError, "expected a URL of http"),
    ("nothing to draw", lambda _: dask_mars.visualize(5), ValueError, "no Dask collections given"),
    ("an id of one byte", lambda _: decode_subtask_id(b"x"), ValueError, "12 bytes, not 1"),
    (
        "a log nowhere",
        lambda _: EventLog("/no/such/place.json").__enter__(),
        FileNotFoundError,
        "/no/such/place.json",
    ),
    ("retries by annotation", lambda r: annotated(r.get, retries="x"), TypeError, "'retries' annotation must be"),
    ("a priority that is none", lambda r: annotated(r.get, priority="high"), TypeError, "'priority' annotation"),
    ("a priority of no kind", lambda r: annotated(r.get, priority=[1]), TypeError, "'priority' annotation"),
]


@pytest.fixture(scope="module")
def busy(private_tmp: Path) -> Iterator[tuple[Runtime, da.Array, Future[int]]]:
    """An engine with persisted data that computes meanwhile."""
    with Runtime(num_workers=2) as runtime:
        engine = runtime.engine()
        persisted = da.random.default_rng(0).random((100, 1000), chunks=(10, 1000)).persist(scheduler=runtime.get)
        path = private_tmp / "go on"
        task = dask.delayed(wait_for)(path, 7)
        computing = in_background(task.compute, scheduler=runtime.get)
        assert eventually(lambda: any(worker["running"] for worker in runtime.state()["workers"]), 10)
        yield runtime, persisted, computing
        path.touch()
        assert computing.result(100) == 7
        assert runtime.engine() is engine


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("call", "kind", "told"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
def test_it_says_what_is_wrong_and_does_no_more(
    busy: tuple[Runtime, da.Array, Future[int]],
    call: Callable[[Runtime], Any],
    kind: type[Exception],
    told: str,
) -> None:
    runtime, persisted, computing = busy
    engine = runtime.engine()
    with pytest.raises(kind, match=told):
        call(runtime)
    assert runtime.engine() is engine
    assert not computing.done()
    assert runtime.get(GRAPH, "x") == 3
    assert 0 < persisted.sum().compute(scheduler=runtime.get) < 100_000
    running = next(worker["running"] for worker in runtime.state()["workers"] if worker["running"])
    assert "dispatched to worker" in runtime.explain(running)


def test_cancelling_what_is_not_there(busy: tuple[Runtime, da.Array, Future[int]]) -> None:
    runtime, persisted, _ = busy
    of_persisted = next(iter(persisted.dask.values())).value.graph
    for number in (of_persisted, 10**6, -1, 2**70, True):
        assert runtime.cancel(number) is False
    assert np.isfinite(persisted.sum().compute(scheduler=runtime.get))


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("num_worker", "did you mean 'num_workers'?"),
        ("callback", "did you mean 'callbacks'?"),
        ("memry_limit", "dask_mars.Runtime(memory_limit=...), or set dask-mars.memory-limit"),
        ("memory_limit", "dask_mars.Runtime(memory_limit=...), or set dask-mars.memory-limit"),
    ],
)
def test_options_that_have_no_effect_and_look_like_others(runtime: Runtime, option: str, told: str) -> None:
    with pytest.warns(UserWarning, match=f"^dask_mars ignores the option '{option}' .*{re.escape(told)}"):
        assert runtime.get(GRAPH, "x", **{option: 1}) == 3


@pytest.mark.parametrize(
    "option", ["pool", "chunksize", "workers", "priority", "resources", "optimize_graph", "pure"]
)
def test_options_of_other_schedulers_are_passed_over(runtime: Runtime, option: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert runtime.get(GRAPH, "x", **{option: 1}) == 3


# -- objects that do other things when they are pickled ---------------------------------------------------------


class Exits:
    """An object whose pickling ends the process."""

    def __reduce__(self) -> Any:
        raise SystemExit(3)


class Computes:
    """An object that computes when it is pickled."""

    def __reduce__(self) -> Any:
        with dask.config.set(scheduler="mars"):
            return int, (int(da.ones(10, chunks=5).sum().compute()),)


def test_objects_that_exit_when_they_are_pickled(get: Get) -> None:
    assert get({"x": (type, Exits())}, "x") is Exits
    exits = Exits()
    assert dask.delayed(lambda: type(exits).__name__)().compute(scheduler=get) == "Exits"
    assert isinstance(dask.delayed(lambda: [Exits()])().compute(scheduler=get)[0], Exits)


def test_objects_that_compute_when_they_are_pickled(get: Get) -> None:
    """The engine's thread pickles them, and would wait for itself."""
    assert get({"x": (str, Computes())}, "x") in ("10", str(Computes()))
    computes = Computes()
    assert dask.delayed(lambda: str(computes))().compute(scheduler=get) == "10"
    with dask.config.set(scheduler=dask_mars.get):
        assert dask.delayed(lambda: [Computes()])().compute() == [10]
