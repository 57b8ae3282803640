"""Wrong calls of the public API: each says what is wrong and what is right, and none ends an engine."""

from __future__ import annotations

import re
import uuid
import warnings
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import pytest

import dask_mars
from dask_mars import Runtime
from dask_mars.diagnostics import EventLog, decode_subtask_id
from dask_mars.errors import ServiceUnreachable

GRAPH = {"x": (sum, [1, 2])}
ID = str(uuid.uuid4())


def annotated(get: Callable[..., Any], **annotations: Any) -> Any:
    with dask.annotate(**annotations):
        value = dask.delayed(sum)([1, 2])
    return value.compute(scheduler=get, optimize_graph=False)


def submitted_twice(runtime: Runtime) -> None:
    runtime.submit(da.ones(4, chunks=2).sum(), id=ID).result(100)
    runtime.submit(da.ones(4, chunks=2).sum(), id=ID)


#: Runtimes of which types say nothing.
Made: Any = Runtime

CALLS: list[tuple[str, Callable[[Any], Any], type[Exception], str]] = [
    ("workers as text", lambda _: Made(num_workers="many"), ValueError, "whole number, not 'many'"),
    ("half a worker", lambda _: Made(num_workers=2.5), ValueError, "whole number, not 2.5"),
    ("True workers", lambda _: Made(num_workers=True), ValueError, "whole number, not True"),
    ("no worker", lambda _: Made(num_workers=0), ValueError, "at least 1, not 0"),
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
    ("retries as text", lambda r: r.get(GRAPH, "x", retries="many"), ValueError, "'retries' is a number.* 'many'"),
    ("half a retry", lambda r: r.get(GRAPH, "x", retries=1.5), ValueError, "'retries' is a whole number.* 1.5"),
    ("negative retries", lambda r: r.get(GRAPH, "x", retries=-1), ValueError, "'retries' is at least 0.* -1"),
    ("a cache that is none", lambda r: r.get(GRAPH, "x", cache=5), TypeError, "'cache' is a mapping .* not 5"),
    ("a client that is none", lambda _: dask_mars.get(GRAPH, "x", client=5), TypeError, "Client.* not 5"),
    ("cancelling 1.5", lambda r: r.cancel(1.5), TypeError, "expected an id, a number or a Computation, not 1.5"),
    ("explaining a list", lambda r: r.explain([]), TypeError, r"\[\] cannot be a key"),
    ("explaining what is not there", lambda r: r.explain("x"), KeyError, "goes on has the key 'x'"),
    ("an id that is none", lambda r: r.submit(da.ones(2), id="mine"), ValueError, "a UUID, .* not 'mine'"),
    ("an id twice", submitted_twice, ValueError, f"there is a computation with the id {ID} already"),
    (
        "an option that is none",
        lambda r: r.submit(da.ones(2), nme="mine"),
        TypeError,
        "submit has no option 'nme'; did you mean 'name'",
    ),
    ("an option of a graph", lambda r: r.submit_graph(GRAPH, "x", hurry=1), TypeError, "'hurry'; it has name, id"),
    ("a name that is a number", lambda r: r.submit(da.ones(2), name=5), TypeError, "is text, and not 5"),
    ("a time-out that is none", lambda r: r.submit(1).result("soon"), ValueError, "a timeout is .* not 'soon'"),
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
]


@pytest.mark.parametrize(("call", "kind", "told"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
def test_it_says_what_is_wrong(
    runtime: Runtime, call: Callable[[Runtime], Any], kind: type[Exception], told: str
) -> None:
    before = runtime.engine().worker_pids()
    with pytest.raises(kind, match=told):
        call(runtime)
    assert runtime.get(GRAPH, "x") == 3
    assert set(before) <= set(runtime.engine().worker_pids())


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
