"""The fuzzer: its programs differ in nothing, and what is wrong is found and made short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import numpy as np
import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("xarray")
pytest.importorskip("dask.dataframe")

import hypothesis  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from dask_mars.errors import RequestTooLarge, WorkerDied, WorkerOverLimit  # noqa: E402
from tests.fuzz.compare import difference  # noqa: E402
from tests.fuzz.drawing import Draw  # noqa: E402
from tests.fuzz.engines import plan  # noqa: E402
from tests.fuzz.making import programs  # noqa: E402
from tests.fuzz.operations import OPERATIONS, SOURCES  # noqa: E402
from tests.fuzz.programs import Program  # noqa: E402
from tests.fuzz.running import Difference, Excuses, run, silenced  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

few = hypothesis.settings(max_examples=40, phases=[hypothesis.Phase.generate], database=None)


def ran(program: Program, scheduler: Any, **options: Any) -> Any:
    with silenced():
        return run(program, scheduler, **options)


# -- right results ------------------------------------------------------------------------------------------------


@few
@hypothesis.given(programs(), st.booleans())
@pytest.mark.nightly
def test_some_programs_differ_in_nothing(get, program, shared):
    found = ran(program, get, shared=shared)
    assert found is None, f"{program}\n\n{found}"


@pytest.mark.nightly
def test_the_command_runs_engines_with_troubles(scripts):
    options = ("--programs", "3", "--seed", "6", "--memory-limit", "192 MiB", "--kill")
    ended = scripts.run("-m", "tests.fuzz", *options, timeout_s=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith("3 programs")
    assert "0 engines differ" in ended.stdout


def test_engines_are_of_many_kinds():
    plans = [plan(seed) for seed in range(80)]
    assert {it.small for it in plans} == {it.kills for it in plans} == {True, False}
    assert plan(3) == plan(3) != plan(4)
    assert plan(0, 1 << 26, True).small
    assert plan(0, 1 << 26, True).kills


@hypothesis.given(st.randoms(use_true_random=False))
def test_slices_and_cuts_are_whole(random):
    draw = Draw(random)
    assert sum(draw.cut(11)) == 11
    length = draw.integer(0, 9)
    eval(f"np.arange(length)[{draw.slice(length)}]", {"np": np, "length": length})
    assert sorted(draw.shuffled(range(5))) == list(range(5))
    assert draw.weighted({"never": 0, "always": 1}) == "always"


# -- wrong results ------------------------------------------------------------------------------------------------


def other_value(value: Any) -> Any:
    return value + np.asarray(1).astype(value.dtype)


def other_dtype(value: Any) -> Any:
    return value.astype("f8" if value.dtype != "f8" else "f4")


def other_order(value: Any) -> Any:
    return value[..., ::-1] if value.ndim and value.shape[-1] else value


def read_only(value: Any) -> Any:
    value = value.copy()
    value.flags.writeable = False
    return value


def getter(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a scheduler that changes results: those that are arrays of numbers."""

    def changed(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(changed, value))
        plain = type(value) is np.ndarray and value.dtype.kind in "iuf"
        return change(value) if plain else value

    return lambda dsk, keys, **options: changed(dask.get(dsk, keys, **options))


@pytest.mark.nightly
@few
@hypothesis.given(programs())
def test_a_scheduler_of_dask_s_differs_in_nothing(program):
    assert ran(program, dask.get) is None
    assert {"array", "xarray", "frame", "bag", "delayed"} <= set(SOURCES)
    assert sum(map(len, OPERATIONS.values())) > 70


@pytest.mark.parametrize("change", [other_value, other_dtype, other_order, read_only])
def test_wrong_results_are_found(change):
    with silenced():
        hypothesis.find(programs(), lambda it: isinstance(ran(it, getter(change)), Difference), settings=few)


def test_an_error_in_place_of_a_result_is_found():
    def fail(dsk: Any, keys: Any, **options: Any) -> Any:
        raise KeyError("wrong")

    with silenced():
        program = hypothesis.find(programs(), lambda it: ran(it, fail) is not None, settings=few)
    assert "KeyError" in ran(program, fail).text


def test_errors_are_excused_by_what_caused_them():
    troubled = Excuses(small=True, kills=True)
    assert troubled.hold_for(WorkerDied("x", -9, 1, repeatable=False))
    assert not troubled.hold_for(WorkerDied("x", -9, 1))
    assert not Excuses().hold_for(WorkerDied("x", -9, 1, repeatable=False))
    assert troubled.hold_for(RequestTooLarge("x", 2, 1))
    assert not Excuses(kills=True).hold_for(RequestTooLarge("x", 2, 1))
    assert troubled.hold_for(WorkerOverLimit("x", 2, 1, 0, 0))
    assert not Excuses(kills=True).hold_for(WorkerOverLimit("x", 2, 1, 0, 0))
    assert not troubled.hold_for(ValueError())


X = np.arange(6.0)
FRAME = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (X, X.astype("f4")),
        (X, X.astype(">f8")),
        (X, X.reshape(2, 3)),
        (X, X + 1e-12),
        (X, list(X)),
        (X * -0.0, X * 0.0),
        (np.float64(1), 1.0),
        (1, True),
        ([X], (X,)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.ma.masked_less(X, 2), np.ma.masked_less(X, 3)),
        (np.ma.masked_less(X, 2), X),
        (FRAME, FRAME[::-1]),
        (FRAME, FRAME.rename(columns={"a": "c"})),
        (FRAME, FRAME.astype({"b": "category"})),
        (FRAME.a, FRAME.a.rename("c")),
        (pd.Categorical(["x"], ["x", "y"]), pd.Categorical(["x"], ["y", "x"])),
        (pd.RangeIndex(3), pd.Index([0, 1, 2])),
    ],
)
def test_differences_are_found(ours, expected):
    assert difference(ours, expected)
    assert not difference(ours, ours)
    assert not difference(expected, expected)


def test_missing_values_are_the_same():
    for value in (np.nan, np.array([np.nan, 1]), np.array("NaT", "M8[s]"), pd.NaT, pd.Series([None, "x"])):
        assert not difference(value, value)


def test_rounding_is_no_difference_where_it_is_allowed():
    assert not difference(X * (1 + 1e-13), X, rounded=True)
    assert difference(X * (1 + 1e-13), X)
    assert difference(X * (1 + 1e-5), X, rounded=True)
