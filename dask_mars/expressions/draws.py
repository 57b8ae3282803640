"""Random numbers as Dask requests them from NumPy, chunk by chunk, drawn many at a time.

A chunk of random numbers is defined by its seed, and need not be an array until one is needed. A region,
which is a group of steps evaluated together, draws its elements block by block and never stores them.

The programs it serves: simulations and samples, such as ``da.random.default_rng(0).random(shape).sum()``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dask_mars.dask_api.arrays import _apply_random_func

if TYPE_CHECKING:
    from dask_mars.expressions import _pcg64

#: Dask's function for a chunk of a `Generator`'s numbers; other versions may have another.
DASK_FUNCTION: Callable[..., Any] = _apply_random_func
#: Number of elements below which NumPy is as fast.
_FEWEST = 1 << 9

_INT64 = np.iinfo(np.int64)
_MOST_RANGE = (1 << 32) - 1
_FLOAT64, _FLOAT32 = np.dtype(np.float64), np.dtype(np.float32)


class Distribution(NamedTuple):
    """A distribution with its parameters, as `Stream.fill` takes them."""

    kind: str
    dtype: np.dtype[Any]
    first: float = 0
    second: float = 0


class Draw:
    """A lazy array of random numbers."""

    __slots__ = ("_distribution", "_stream_type", "_words", "dtype", "shape", "size")

    def __init__(
        self,
        distribution: Distribution,
        seed: np.random.SeedSequence,
        shape: tuple[int, ...],
        stream: type[_pcg64.Stream],
    ) -> None:
        self._distribution = distribution
        self._words = seed.generate_state(4, np.uint64)
        self._stream_type = stream
        self.dtype = distribution.dtype
        self.shape = shape
        self.size = math.prod(shape)

    def source(self) -> Any:
        """Return a source of the numbers, one after the other, for native programs."""
        kind, _, first, second = self._distribution
        return self._stream_type(self._words).source(kind, self.size, first, second)

    def array(self) -> np.ndarray:
        """Make the array."""
        out = np.empty(self.shape, self.dtype)
        kind, _, first, second = self._distribution
        self._stream_type(self._words).fill(kind, out, first, second)
        return out


def draw(
    bit_generator: Any, name: str, seed: Any, size: Any, args: Sequence[Any], keywords: Mapping[str, Any]
) -> Draw | None:
    """Return the lazy form of the result of Dask's function; None for unsupported arguments."""
    distribution = _distribution(_FEWEST, bit_generator, name, seed, size, args, keywords)
    stream = checked_stream(distribution.kind) if distribution is not None else None
    if distribution is None or stream is None:
        return None
    return Draw(distribution, seed, tuple(map(int, size)), stream)


def make_ns(*arguments: Any, fewest: int) -> float | None:
    """Return the nanoseconds per number; None for unsupported arguments, or fewer than `fewest` numbers."""
    distribution = _distribution(fewest, *arguments)
    if distribution is None or checked_stream(distribution.kind) is None:
        return None
    return _MAKE_NS[distribution.kind][_level()]


def _distribution(
    fewest: int,
    bit_generator: Any,
    name: str,
    seed: Any,
    size: Any,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
) -> Distribution | None:
    if bit_generator is not np.random.PCG64 or type(seed) is not np.random.SeedSequence:
        return None
    if type(size) is not tuple or not size or not all(isinstance(length, (int, np.integer)) for length in size):
        return None
    shape = tuple(map(int, size))
    read = _READERS.get(name) if isinstance(name, str) else None
    if read is None or math.prod(shape) < fewest or min(shape) < 0:
        return None
    try:
        return read(list(args), dict(keywords))
    except (TypeError, ValueError):
        # The arguments may hold an invalid dtype, for example.
        return None


def random_chunk(*arguments: Any) -> Any:
    """Return the array that Dask's function returns."""
    drawn = draw(*arguments)
    return DASK_FUNCTION(*arguments) if drawn is None else drawn.array()


def lazy_random_chunk(*arguments: Any) -> Any:
    """Return the array that Dask's function returns, or a `Draw` of it."""
    drawn = draw(*arguments)
    return DASK_FUNCTION(*arguments) if drawn is None else drawn


# NumPy handles invalid arguments, and valid ones that are rarely used.


def _random(args: list[Any], keywords: dict[str, Any]) -> Distribution | None:
    dtype = np.dtype(keywords.pop("dtype", _FLOAT64))
    if keywords.pop("out", None) is not None or keywords or args:
        return None
    if dtype == _FLOAT32:
        return Distribution("random_float", _FLOAT32)
    return Distribution("random", _FLOAT64) if dtype == _FLOAT64 else None


def _standard(kind: str) -> Callable[[list[Any], dict[str, Any]], Distribution | None]:
    def read(args: list[Any], keywords: dict[str, Any]) -> Distribution | None:
        plain = np.dtype(keywords.pop("dtype", _FLOAT64)) == _FLOAT64 and keywords.pop("out", None) is None
        return Distribution(kind, _FLOAT64) if plain and not args and not keywords else None

    return read


def _uniform(args: list[Any], keywords: dict[str, Any]) -> Distribution | None:
    numbers = _floats(args, 2)
    if numbers is None or keywords:
        return None
    low, high = numbers
    span = high - low
    return Distribution("uniform", _FLOAT64, low, span) if 0 < span < math.inf else None


def _normal(args: list[Any], keywords: dict[str, Any]) -> Distribution | None:
    numbers = _floats(args, 2)
    return Distribution("normal", _FLOAT64, *numbers) if numbers and not keywords and numbers[1] > 0 else None


def _exponential(args: list[Any], keywords: dict[str, Any]) -> Distribution | None:
    numbers = _floats(args, 1)
    return Distribution("exponential", _FLOAT64, *numbers) if numbers and not keywords and numbers[0] > 0 else None


def _integers(args: list[Any], keywords: dict[str, Any]) -> Distribution | None:
    high = keywords.pop("high", None)
    endpoint = keywords.pop("endpoint", False)
    if len(args) != 1 or np.dtype(keywords.pop("dtype", np.int64)) != np.dtype(np.int64) or keywords:
        return None
    low = args[0]
    if high is None:
        low, high = 0, low
    if type(low) is not int or type(high) is not int or type(endpoint) is not bool:
        return None
    span = high - low - (not endpoint)
    if not (_INT64.min <= low <= low + span <= _INT64.max and span <= _MOST_RANGE):
        return None
    return Distribution("integers", np.dtype(np.int64), low, span)


def _floats(args: list[Any], count: int) -> list[float] | None:
    plain = len(args) == count and all(type(number) in (int, float, np.float64) for number in args)
    try:
        return [float(number) for number in args] if plain else None
    except OverflowError:
        return None


_READERS = {
    "random": _random,
    "uniform": _uniform,
    "standard_normal": _standard("standard_normal"),
    "normal": _normal,
    "standard_exponential": _standard("standard_exponential"),
    "exponential": _exponential,
    "integers": _integers,
}

#: For each kind: NumPy's method and arguments, and the same parameters for a stream.
_SAMPLES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], tuple[float, ...]]] = {
    "random": ("random", (), {}, ()),
    "random_float": ("random", (), {"dtype": np.float32}, ()),
    "uniform": ("uniform", (-3.3, 7.9), {}, (-3.3, 7.9 - -3.3)),
    "standard_normal": ("standard_normal", (), {}, ()),
    "normal": ("normal", (3.1, 2.7), {}, (3.1, 2.7)),
    "standard_exponential": ("standard_exponential", (), {}, ()),
    "exponential": ("exponential", (2.3,), {}, (2.3,)),
    "integers": ("integers", (-5, 3_000_000_000), {}, (-5, 3_000_000_004)),
}
#: For each kind: nanoseconds per number for each instruction set of `levels`, on a processor of 2024.
_MAKE_NS = {
    "random": (0.9, 0.4, 0.25),
    "random_float": (0.5, 0.35, 0.25),
    "uniform": (1.1, 0.65, 0.5),
    "standard_normal": (2.3, 2.1, 1.8),
    "normal": (2.4, 2.2, 1.9),
    "standard_exponential": (2.1, 1.9, 1.6),
    "exponential": (2.2, 2.0, 1.7),
    "integers": (0.9, 0.75, 0.7),
}
#: Lengths that fill blocks and lanes, and lengths that do not.
_SAMPLE_LENGTHS = (1, 67, 2081)


@cache
def _level() -> int:
    from dask_mars.expressions import _pcg64

    return len(_pcg64.levels()) - 1


@cache
def checked_stream(kind: str) -> type[_pcg64.Stream] | None:
    """Return the type of streams if it reproduces NumPy's numbers of a kind; otherwise None."""
    try:
        from dask_mars.expressions import _pcg64
    except ImportError:
        return None
    if "normal" in kind or "exponential" in kind:
        try:
            from numpy.random import _generator
        except ImportError:
            return None
        if not _pcg64.learn(_generator.__file__):
            return None
    name, args, keywords, parameters = _SAMPLES[kind]
    seed = np.random.SeedSequence(20_140_905)
    bit_generator = np.random.PCG64(seed)
    method = getattr(np.random.Generator(bit_generator), name)
    stream = _pcg64.Stream(seed.generate_state(4, np.uint64))
    for length in _SAMPLE_LENGTHS:
        expected = method(*args, size=length, **keywords)
        got = np.empty(length, expected.dtype)
        stream.fill(kind, got, *parameters)
        if got.tobytes() != expected.tobytes():
            return None
    return _pcg64.Stream if _same_state(stream, bit_generator) else None


def _same_state(stream: _pcg64.Stream, bit_generator: np.random.PCG64) -> bool:
    state = bit_generator.state
    high, low, high_increment, low_increment, *half = stream.state
    numbers = state["state"]
    return (
        numbers["state"] == high << 64 | low
        and numbers["inc"] == high_increment << 64 | low_increment
        and half == [state["has_uint32"], state["uinteger"]]
    )
