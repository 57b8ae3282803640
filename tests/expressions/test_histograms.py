"""Histograms that are counted natively have NumPy's counts."""

from __future__ import annotations

import operator
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_mars.expressions import draws, histograms, native
from dask_mars.expressions.rewrite import with_expressions
from dask_mars.graph.chunks import Operand, Step

pytestmark = pytest.mark.skipif(native.histogram is None, reason="the extension was not built")

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, -1e-310, 1e308]


def same(values: Any, *bins_range: Any, native_wanted: bool | None = True) -> None:
    """Compare with Dask's function, and say whether it was needed."""
    called: list[Any] = []
    dask_function = histograms.DASK_FUNCTION
    assert dask_function is not None
    expected = dask_function(values, bins_range)

    def record(*arguments: Any) -> Any:
        called.append(arguments)
        return dask_function(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(histograms, "DASK_FUNCTION", record)
        found = histograms.block_histogram(values, bins_range)
    np.testing.assert_array_equal(found, expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if native_wanted is not None:
        assert native_wanted is not bool(called)


@given(
    seed=st.integers(0, 1 << 32),
    count=st.integers(1, 400) | st.just(5000),
    low=st.floats(-1e6, 1e6),
    width=st.floats(1e-3, 1e9),
    shape=st.sampled_from([(1500,), (40, 50), (3, 700), (2, 30, 30)]),
)
def test_numbers_of_bins(seed: int, count: int, low: float, width: float, shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(seed)
    values = low + width * (1.2 * generator.random(shape) - 0.1)
    edges = np.histogram_bin_edges(values, count, (low, low + width))
    # On edges, and beside them.
    places = generator.integers(0, values.size, values.size // 3)
    values.flat[places] = np.nextafter(generator.choice(edges, places.size), generator.choice([-1e300, 0, 1e300]))
    values.flat[places[::2]] = generator.choice(edges, places[::2].size)
    values.flat[places[:8]] = SPECIAL
    same(values, count, (low, low + width))
    same(values.T, count, [low, low + width])


@given(seed=st.integers(0, 1 << 32), count=st.integers(2, 200), unevenness=st.floats(0, 0.9))
def test_given_edges(seed: int, count: int, unevenness: float) -> None:
    generator = np.random.default_rng(seed)
    edges = np.arange(count + 1) + unevenness * np.sort(generator.random(count + 1))
    edges[1 : count // 2 : 3] = edges[: count // 2 - 1 : 3][: len(edges[1 : count // 2 : 3])]
    values = generator.uniform(-1, count + 2, 2000)
    values[::3] = generator.choice(edges, values[::3].size)
    values[:8] = SPECIAL
    same(values, edges, None, native_wanted=None)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.uint32])
def test_whole_numbers(dtype: Any) -> None:
    info = np.iinfo(dtype)
    values = np.random.default_rng(3).integers(info.min, info.max, (70, 1000), dtype, endpoint=True)
    same(values, 256, (int(info.min), int(info.max)))
    same(values, 10, (0, 99.5))
    same(values[::2, ::3], np.arange(0, 257), None)


@pytest.mark.filterwarnings("ignore:Converting input from bool")
@pytest.mark.parametrize(
    ("values", "bins_range"),
    [
        (np.linspace(0, 1, 2000, dtype=np.float32), (10, (0, 1))),
        (np.arange(2000, dtype=np.int64), (10, (0, 1))),
        (np.arange(2000) > 5, (10, (0, 1))),
        (np.linspace(0, 1, 2000).view(np.ndarray)[:100], (10, (0, 1))),
        (np.ma.masked_less(np.linspace(0, 1, 2000), 0.5), (10, (0, 1))),
        (np.linspace(0, 1, 2000), (np.array([0, 0.001, 0.002, 1]), None)),
        (np.linspace(0, 1, 2000), (np.array([0.5, 0.5]), None)),
    ],
)
def test_what_is_left_to_numpy(values: Any, bins_range: Any) -> None:
    same(values, *bins_range, native_wanted=False)


@pytest.mark.parametrize(
    "bins_range",
    [(0, (0, 1)), (10, (1, 0)), (10, (0, np.inf)), (10, (np.nan, 1)), (np.array([1.0, 0.5, 2]), None)],
)
def test_errors_are_numpys(bins_range: Any) -> None:
    values = np.linspace(0, 1, 2000)
    messages = []
    for function in (histograms.DASK_FUNCTION, histograms.block_histogram):
        try:
            function(values, bins_range)  # type: ignore[misc]
        except ValueError as error:
            messages.append(str(error))
    assert messages == [messages[0]] * 2


def test_random_numbers_are_never_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    array = draws.Draw.array
    monkeypatch.setattr(draws.Draw, "array", lambda self: made.append(self.size) or array(self))
    for numbers in ("random", "standard_normal"):
        arguments = (np.random.PCG64, numbers, np.random.SeedSequence(5), (300, 400), (), {})
        steps = (Step(0, (0, 1, 2, 3, 4, 5), ()), Step(1, (7, 6), ()))
        program = Operand("h", (draws.DASK_FUNCTION, histograms.DASK_FUNCTION), steps, 0, 7)
        literals = (*arguments, [50, (-1, 1)])
        np.testing.assert_array_equal(with_expressions(program).run([], literals), program.run([], literals))
    assert not made


def test_by_dask(get: Any) -> None:
    x = da.random.default_rng(1).normal(size=(500, 400), chunks=150)
    weights = da.ones_like(x)
    for keywords in ({"bins": 30, "range": (-3, 3)}, {"bins": np.linspace(-2, 2, 21), "density": True}):
        for source in (x, x * 2, x.astype("f4")):
            found = da.histogram(source, **keywords)[0].compute(scheduler=get)
            np.testing.assert_array_equal(found, da.histogram(source, **keywords)[0].compute(scheduler="sync"))
    counts = da.histogram(x, 30, (-3, 3), weights=weights)[0]
    np.testing.assert_array_equal(counts.compute(scheduler=get), counts.compute(scheduler="sync"))


def test_wrong_arrays_are_refused() -> None:
    values, edges, counts = np.zeros(10), np.arange(3.0), np.zeros(2, np.int64)
    for wrong in (
        (values.astype("f4"), edges, counts),
        (values[::2], edges, counts),
        (values, edges.astype(">f8"), counts),
        (values, edges, counts.astype("i4")),
        (values.reshape(2, 5), edges, counts),
    ):
        with pytest.raises(TypeError):
            native.histogram(*wrong, True)
    for edges in (np.arange(4.0), np.zeros(3), np.array([0, 2, 1.0]), np.array([0, 1, np.inf])):
        with pytest.raises(ValueError, match="edges have to rise"):
            native.histogram(values, edges, counts, True)
    assert operator.index(counts.sum()) == 0
