"""Random numbers: NumPy's, bit for bit, whoever makes them and in whatever parts."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from dask.array import reductions
from hypothesis import given
from hypothesis import strategies as st

from dask_mars.expressions import draws, evaluate, native
from dask_mars.expressions.draws import DASK_FUNCTION, Draw, draw, lazy_random_chunk, random_chunk
from dask_mars.expressions.evaluate import RegionFunction
from dask_mars.expressions.rewrite import Moments, with_expressions
from dask_mars.graph.chunks import Operand, Step
from dask_mars.worker.fast_operands import made_fast

LENGTHS = [0, 1, 2, 3, 7, *range(31, 66), 1000, 1023, 1024, 1025, 2049, 100_003]
KINDS = list(draws._SAMPLES)

try:
    from dask_mars.expressions import _pcg64

    LEVELS = _pcg64.levels()
except ImportError:
    LEVELS = ()

compiled = pytest.mark.skipif(not LEVELS, reason="the extension was not compiled")


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Have numbers made by one kind of instructions."""
    for kind in KINDS:
        assert draws.checked_stream(kind) is not None
    _pcg64.use(request.param)
    yield request.param
    _pcg64.use(LEVELS[-1])


@pytest.fixture
def small_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "SMALL", 1)
    monkeypatch.setattr(draws, "_FEWEST", 1)


def stream_of(seed: int) -> Any:
    # Without this the extension does not know NumPy's functions.
    assert draws.checked_stream("normal") is not None
    return _pcg64.Stream(np.random.SeedSequence(seed).generate_state(4, np.uint64))


def numpys(kind: str, generator: np.random.Generator, length: int) -> np.ndarray:
    name, args, keywords, _ = draws._SAMPLES[kind]
    return getattr(generator, name)(*args, size=length, **keywords)


# -- streams ----------------------------------------------------------------------------------------------------


@compiled
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_and_state_are_numpys(level, kind):
    for seed in range(4):
        bit_generator = np.random.PCG64(np.random.SeedSequence(seed))
        generator, stream = np.random.Generator(bit_generator), stream_of(seed)
        for length in LENGTHS:
            expected = numpys(kind, generator, length)
            made = np.empty(length, expected.dtype)
            stream.fill(kind, made, *draws._SAMPLES[kind][3])
            assert made.tobytes() == expected.tobytes(), (seed, length)
            assert draws._same_state(stream, bit_generator), (seed, length)


@compiled
@given(st.integers(0, 2**128 - 1), st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 300)), max_size=12))
def test_kinds_may_follow_each_other(seed, calls):
    bit_generator = np.random.PCG64(np.random.SeedSequence(seed))
    generator, stream = np.random.Generator(bit_generator), stream_of(seed)
    for kind, length in calls:
        expected = numpys(kind, generator, length)
        made = np.empty(length, expected.dtype)
        stream.fill(kind, made, *draws._SAMPLES[kind][3])
        assert made.tobytes() == expected.tobytes()
        assert draws._same_state(stream, bit_generator)


@compiled
@pytest.mark.parametrize("name", ["standard_normal", "standard_exponential"])
def test_millions_of_a_ziggurat(level, name):
    expected = getattr(np.random.default_rng(5), name)(3_000_000)
    made = np.empty_like(expected)
    stream_of(5).fill(name, made)
    assert made.tobytes() == expected.tobytes()


@compiled
@given(
    st.integers(-(2**63), 2**63 - 1),
    st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([2**31, 2**31 + 1, 2**32 - 1])),
    st.integers(0, 200),
)
def test_integers_of_any_range(low, span, length):
    if low + span >= 2**63:
        return
    expected = np.random.default_rng(3).integers(low, low + span, size=length, endpoint=True)
    made = np.empty(length, np.int64)
    stream_of(3).fill("integers", made, low, span)
    assert made.tobytes() == expected.tobytes()


@compiled
@pytest.mark.parametrize(
    "array",
    [np.empty(4, "f4"), np.empty((4, 4))[:, 1], np.empty(33, "u1")[1:].view("f8"), np.empty(4).tobytes()],
    ids=["dtype", "strides", "alignment", "read-only"],
)
def test_only_arrays_of_the_right_form_are_filled(array):
    with pytest.raises((ValueError, BufferError, TypeError)):
        stream_of(1).fill("random", array)


@compiled
def test_wrong_arguments():
    stream = stream_of(1)
    with pytest.raises(ValueError, match="no distribution"):
        stream.fill("poisson", np.empty(4))
    with pytest.raises(ValueError, match="32 bits"):
        stream.fill("integers", np.empty(4, "i8"), 0, 2**32)
    with pytest.raises(OverflowError):
        stream.fill("integers", np.empty(4, "i8"), 2**63, 1)
    with pytest.raises(ValueError, match="four words"):
        _pcg64.Stream(b"1234")
    with pytest.raises(ValueError, match="processor"):
        _pcg64.use("abacus")
    assert _pcg64.learn("/no/such/library") is False
    assert draws._same_state(stream, np.random.PCG64(np.random.SeedSequence(1)))


# -- what Dask asks for -----------------------------------------------------------------------------------------

SEED = np.random.SeedSequence(11, spawn_key=(3,))

KNOWN = [
    ("random", [], {}),
    ("random", [], {"dtype": np.float64, "out": None}),
    ("random", [], {"dtype": "f4"}),
    ("uniform", [-1, 2.5], {}),
    ("standard_normal", [], {}),
    ("normal", [np.float64(1.5), 3], {}),
    ("normal", [0.0, 1.0], {}),
    ("normal", [math.nan, 1.0], {}),
    ("standard_exponential", [], {}),
    ("exponential", [0.5], {}),
    ("exponential", [math.inf], {}),
    ("integers", [10], {"high": None, "dtype": np.int64, "endpoint": False}),
    ("integers", [-3], {"high": 3, "dtype": np.int64, "endpoint": True}),
    ("integers", [-(2**63)], {"high": -(2**63) + 5}),
]
UNKNOWN = [
    ("random", [], {"dtype": np.dtype(">f8")}),
    ("random", [np.float64], {}),
    ("standard_normal", [], {"dtype": "f4"}),
    ("standard_exponential", [], {"method": "inv"}),
    ("uniform", [2.0, 1.0], {}),
    ("uniform", [-1.7e308, 1.7e308], {}),
    ("uniform", [np.zeros(700), 1.0], {}),
    ("normal", [0.0, -1.0], {}),
    ("normal", [0.0, math.nan], {}),
    ("normal", [10**400, 1.0], {}),
    ("normal", [0.0, 0.0], {}),
    ("exponential", [-1.0], {}),
    ("integers", [10], {"dtype": np.int32}),
    ("integers", [0], {"high": 2**40}),
    ("integers", [5], {"high": 5}),
    ("integers", [0.5], {"high": 5}),
    ("poisson", [3.0], {}),
    ("no such method", [], {}),
]


def outcome(function: Any, *arguments: Any) -> Any:
    """Return bits, dtype, shape and flags of what a function returns, or what it raises."""
    try:
        made = function(*arguments)
    except Exception as error:
        return type(error), str(error)
    return made.tobytes(), made.dtype, made.shape, made.flags.c_contiguous, made.flags.owndata, type(made)


@compiled
@pytest.mark.parametrize(("name", "args", "keywords"), KNOWN)
def test_known_calls(name, args, keywords):
    arguments = (np.random.PCG64, name, SEED, (30, 50), args, keywords)
    assert isinstance(draw(*arguments), Draw)
    assert outcome(random_chunk, *arguments) == outcome(DASK_FUNCTION, *arguments)
    assert isinstance(lazy_random_chunk(*arguments), Draw)


@pytest.mark.parametrize(("name", "args", "keywords"), UNKNOWN)
def test_other_calls_are_dasks(name, args, keywords):
    arguments = (np.random.PCG64, name, SEED, (700,), args, keywords)
    assert draw(*arguments) is None
    assert outcome(random_chunk, *arguments) == outcome(DASK_FUNCTION, *arguments)


@pytest.mark.parametrize(
    ("bit_generator", "seed", "size"),
    [
        (np.random.PCG64DXSM, SEED, (700,)),
        (np.random.MT19937, SEED, (700,)),
        (np.random.PCG64, np.random.PCG64(4), (700,)),
        (np.random.PCG64, SEED, 700),
        (np.random.PCG64, SEED, ()),
        (np.random.PCG64, SEED, None),
        (np.random.PCG64, SEED, (3, 4)),
        (np.random.PCG64, SEED, (0, 700)),
        (np.random.PCG64, SEED, (-700, -1)),
    ],
)
def test_other_generators_and_sizes_are_dasks(bit_generator, seed, size):
    arguments = (bit_generator, "random", seed, size, [], {})
    assert draw(*arguments) is None
    if not isinstance(seed, np.random.PCG64):
        assert outcome(random_chunk, *arguments)[:3] == outcome(DASK_FUNCTION, *arguments)[:3] if size else True


@compiled
def test_seed_stays_as_it_is():
    seed = np.random.SeedSequence(5)
    before = repr(seed), seed.n_children_spawned
    first, second = (random_chunk(np.random.PCG64, "random", seed, (700,), [], {}) for _ in range(2))
    assert (repr(seed), seed.n_children_spawned) == before
    assert np.array_equal(first, second)


# -- sources ------------------------------------------------------------------------------------------------------


def sum_of(source: Any, dtype: Any, length: int, out: Any, count: int = 1) -> bool:
    """Add up arrays that sources make, by a native program."""
    native = pytest.importorskip("dask_mars.expressions._native")
    item = np.dtype(dtype).itemsize
    _, loop = np.add._resolve_dtypes_and_context((np.dtype(dtype),) * 2 + (None,))  # type: ignore[attr-defined]
    np.add._get_strided_loop(loop)  # type: ignore[attr-defined]
    program = native.Program(
        ((loop, (0, count - 1, count), 0),), (item,) * count + (item,), (), (length,), False, 1024
    )
    return program.run(0, *source if count > 1 else [source], out)


@compiled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 1023, 4096, 4097, 50_001])
def test_sources_make_what_follows(kind, length):
    generator, stream = np.random.Generator(np.random.PCG64(np.random.SeedSequence(8))), stream_of(8)
    before = numpys(kind, generator, 3)
    stream.fill(kind, np.empty_like(before), *draws._SAMPLES[kind][3])
    state = stream.state
    expected = numpys(kind, generator, length)
    out = np.empty_like(expected)
    assert sum_of(stream.source(kind, length, *draws._SAMPLES[kind][3]), out.dtype, length, out)
    assert out.tobytes() == (expected + expected).tobytes()
    assert stream.state == state


@compiled
def test_two_sources_of_one_program():
    out = np.empty(9_000)
    sources = [stream_of(seed).source("random", 9_000) for seed in (1, 2)]
    assert sum_of(sources, "f8", 9_000, out, count=2)
    expected = [np.random.Generator(np.random.PCG64(np.random.SeedSequence(s))).random(9_000) for s in (1, 2)]
    assert out.tobytes() == sum(expected[1:], expected[0]).tobytes()


@compiled
def test_sources_that_do_not_fit():
    native = pytest.importorskip("dask_mars.expressions._native")
    out = np.empty(100)
    for source in (stream_of(1).source("random", 99), stream_of(1).source("random_float", 100)):
        with pytest.raises(ValueError, match="source"):
            sum_of(source, "f8", 100, out)
    used = stream_of(1).source("random", 100)
    assert sum_of(used, "f8", 100, out)
    with pytest.raises(ValueError, match="source"):
        sum_of(used, "f8", 100, out)
    # What is written is no source.
    with pytest.raises(ValueError, match="source"):
        sum_of(out, "f8", 100, stream_of(1).source("random", 100))
    assert native.rest(used).size == 0
    for wrong in (stream_of(1).source("random_float", 40), stream_of(1).source("integers", 40, 0, 9)):
        with pytest.raises(TypeError, match="doubles"):
            native.rest(wrong)
        with pytest.raises(TypeError, match="doubles"):
            native.histogram(wrong, np.arange(3.0), np.zeros(2, np.int64), True)
        with pytest.raises(TypeError, match="doubles"):
            native.moments(wrong, np.zeros(10), np.zeros(10), np.zeros(10))
    with pytest.raises(ValueError, match="less than no"):
        stream_of(1).source("random", -1)
    with pytest.raises(ValueError, match="no distribution"):
        stream_of(1).source("poisson", 1)


@compiled
@pytest.mark.parametrize("shape", [(40, 100), (70_001, 17), (3, 30_000), (90_000,)])
def test_moments_and_histograms_of_sources(shape):
    native = pytest.importorskip("dask_mars.expressions._native")
    drawn = draw(np.random.PCG64, "normal", SEED, (math.prod(shape),), [100.0, 2.0], {})
    assert drawn is not None
    values = drawn.array()
    columns = shape[-1] if len(shape) > 1 else 512
    whole = values.size // columns * columns
    source = drawn.source()
    found, expected = np.zeros((3, columns)), np.zeros((3, columns))
    native.moments(source, *found)
    native.moments(values[:whole], *expected)
    rows = values.size // columns
    # Pivots are the means of fewer rows where these are long.
    np.testing.assert_allclose(found[1] + rows * found[0], expected[1] + rows * expected[0], rtol=1e-13)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-11)
    assert native.rest(source).tobytes() == values[whole:].tobytes()
    counts, wanted = np.zeros(50, np.int64), np.zeros(50, np.int64)
    edges = np.linspace(90, 110, 51)
    native.histogram(drawn.source(), edges, counts, True)
    native.histogram(values, edges, wanted, True)
    assert counts.tolist() == wanted.tolist()


# -- without the extension, or with another NumPy -----------------------------------------------------------------


@pytest.fixture
def unchecked() -> Iterator[None]:
    draws.checked_stream.cache_clear()
    yield
    draws.checked_stream.cache_clear()


def assert_dasks() -> None:
    for name, args, keywords in KNOWN:
        arguments = (np.random.PCG64, name, SEED, (700,), args, keywords)
        assert draw(*arguments) is None
        assert outcome(random_chunk, *arguments) == outcome(DASK_FUNCTION, *arguments)


def test_without_the_extension(monkeypatch, unchecked):
    monkeypatch.delattr("dask_mars.expressions._pcg64", raising=False)
    monkeypatch.setitem(sys.modules, "dask_mars.expressions._pcg64", None)
    assert_dasks()


@compiled
def test_stream_that_differs_from_numpys_is_not_used(monkeypatch, unchecked):
    for kind, (name, args, keywords, _) in draws._SAMPLES.items():
        monkeypatch.setitem(draws._SAMPLES, kind, (name, args, keywords, (1, 1)))
    monkeypatch.setattr(draws, "_same_state", lambda *_: False)
    assert_dasks()


@compiled
def test_numpy_whose_functions_are_not_found(monkeypatch, unchecked):
    monkeypatch.setattr(_pcg64, "learn", lambda path: False)
    assert draws.checked_stream("random") is not None
    assert draws.checked_stream("normal") is None


# -- within operands ----------------------------------------------------------------------------------------------


def operand(*steps: tuple[Any, ...]) -> Operand:
    """Build an operand that begins with a chunk of random numbers, whose arguments are its literals."""
    made = [Step(0, (0, 1, 2, 3, 4, 5), ())]
    functions: list[Any] = [DASK_FUNCTION]
    for function, slots in steps:
        functions.append(function)
        made.append(Step(len(functions) - 1, slots, ()))
    return Operand("test", tuple(functions), tuple(made), 0, 6)


def literals_of(name: str = "random", shape: tuple[int, ...] = (90, 40), *args: Any) -> tuple[Any, ...]:
    return (np.random.PCG64, name, SEED, shape, list(args), {})


def check(program: Operand, literals: tuple[Any, ...], lazy: bool, exact: bool = True) -> None:
    rewritten = with_expressions(program)
    assert (lazy_random_chunk in rewritten.functions) is lazy
    assert DASK_FUNCTION not in rewritten.functions
    for _ in range(2):
        expected, made = program.run([], literals), rewritten.run([], literals)
        leaves = [(expected, made)]
        if isinstance(expected, dict):
            leaves = [(expected[key], made[key]) for key in expected]
        for one, other in leaves:
            assert type(one) is type(other)
            assert (one.dtype, np.shape(one)) == (other.dtype, np.shape(other))
            if exact:
                assert one.tobytes() == other.tobytes()
            else:
                np.testing.assert_allclose(one, other, rtol=1e-9)
    for function in rewritten.functions:
        if isinstance(function, RegionFunction):
            assert all(plan is not None and not plan.failures for plan in function._plans.values())


@pytest.mark.usefixtures("small_arrays")
class TestOperands:
    """Chunks of random numbers at the beginning of an operand."""

    @pytest.mark.parametrize(
        ("name", "args"),
        [("random", ()), ("normal", (1, 2)), ("exponential", (3,)), ("integers", (9,)), ("poisson", (3.0,))],
    )
    def test_chain(self, name, args):
        steps = [(np.multiply, (6, 6)), (np.sqrt, (7,)), (np.add, (8, 6))]
        check(operand(*steps), literals_of(name, (90, 40), *args), lazy=True)

    def test_array_is_made_for_other_functions(self):
        check(operand((np.sort, (6,)), (np.subtract, (6, 7))), literals_of(), lazy=False)

    @pytest.mark.parametrize("axis", [(0, 1), (0,), (1,)])
    @pytest.mark.parametrize("function", [np.sum, np.max, partial(reductions.mean_chunk, dtype=np.dtype("f8"))])
    def test_reduction(self, function, axis):
        steps = (Step(0, (0, 1, 2, 3, 4, 5), ()), Step(1, (8, 6, 7), ("axis", "keepdims")))
        program = Operand("test", (DASK_FUNCTION, function), steps, 0, 8)
        literals = (*literals_of(), axis, True)
        check(program, literals, lazy=True, exact=False)
        # Those that may not reassociate have NumPy's bits.
        if not isinstance(function, partial):
            rewritten = with_expressions(program, reductions=False)
            assert rewritten.run([], literals).tobytes() == program.run([], literals).tobytes()

    @pytest.mark.parametrize("shape", [(90, 40), (1, 40), (40,), (90, 1)])
    def test_beside_another_chunk(self, shape):
        steps = (Step(0, (1, 2, 3, 4, 5, 6), ()), Step(1, (7, 0), ()), Step(2, (8, 7), ()))
        program = Operand("test", (DASK_FUNCTION, np.add, np.multiply), steps, 1, 6)
        rewritten = with_expressions(program)
        for other in (
            np.random.rand(90, 40),
            np.asfortranarray(np.random.rand(90, 40)),
            np.random.rand(180, 40)[::2],
        ):
            arguments = literals_of("random", shape)
            expected, made = program.run([other], arguments), rewritten.run([other], arguments)
            assert (expected.tobytes(), expected.shape, expected.dtype) == (made.tobytes(), made.shape, made.dtype)

    def test_two_of_them(self):
        steps = (Step(0, (0, 1, 2, 3, 4, 5), ()), Step(0, (0, 6, 7, 3, 8, 5), ()), Step(1, (9, 10), ()))
        program = Operand("test", (DASK_FUNCTION, np.add), steps, 0, 9)
        other = np.random.SeedSequence(12)
        check(program, (*literals_of(), "normal", other, [0.0, 1.0]), lazy=True)

    def test_fallback_begins_anew(self):
        program, literals = operand((np.subtract, (6, 6)), (np.divide, (6, 7))), literals_of()
        rewritten = with_expressions(program)
        for _ in range(4):
            with pytest.warns(RuntimeWarning, match="divide by zero"):
                made = rewritten.run([], literals)
            with np.errstate(all="ignore"):
                assert made.tobytes() == program.run([], literals).tobytes()
        with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
            rewritten.run([], literals)

    def test_without_the_extension(self, monkeypatch):
        monkeypatch.setattr(native, "AVAILABLE", False)
        program, literals = operand((np.multiply, (6, 6)), (np.add, (7, 6))), literals_of()
        made = with_expressions(program).run([], literals)
        assert made.tobytes() == program.run([], literals).tobytes()

    @pytest.mark.parametrize("shape", [(90, 40), (5, 2000), (300,)])
    @pytest.mark.parametrize("axis", [(0,), (0, 1), (1,)])
    def test_moments(self, shape, axis):
        axis = tuple(a for a in axis if a < len(shape)) or (0,)
        function = partial(reductions.moment_chunk, implicit_complex_dtype=False, dtype=np.dtype("f8"))
        steps = (Step(0, (0, 1, 2, 3, 4, 5), ()), Step(1, (8, 6, 7), ("axis", "keepdims")))
        program = Operand("test", (DASK_FUNCTION, function), steps, 0, 8)
        assert any(isinstance(f, Moments) for f in with_expressions(program).functions)
        check(program, (*literals_of("normal", shape, 3.0, 2.0), axis, True), lazy=True, exact=False)

    def test_worker_replaces_a_step_alone(self):
        program = operand()
        assert random_chunk in made_fast(program).functions
