"""Chains computed by numexpr, where it gives exactly NumPy's values, and elsewhere by NumPy's functions."""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import cache, lru_cache, partial
from threading import get_ident
from typing import Any, Literal, NamedTuple

import numpy as np

from dask_mars.expressions.functions import Bound, Unsupported
from dask_mars.expressions.native import Chain

#: By NumPy's name: numexpr's notation, and characters of the dtypes with exactly NumPy's values.
EXACT: dict[str, tuple[str, str]] = {
    "add": ("({0} + {1})", "ilqfd"),
    "subtract": ("({0} - {1})", "ilqfd"),
    "multiply": ("({0} * {1})", "ilqfd"),
    "square": ("({0} * {0})", "ilqfd"),
    "divide": ("({0} / {1})", "fd"),
    "negative": ("(-{0})", "ilqfd"),
    "sqrt": ("sqrt({0})", "fd"),
    "less": ("({0} < {1})", "ilqfd"),
    "less_equal": ("({0} <= {1})", "ilqfd"),
    "greater": ("({0} > {1})", "ilqfd"),
    "greater_equal": ("({0} >= {1})", "ilqfd"),
    "equal": ("({0} == {1})", "ilqfd"),
    "not_equal": ("({0} != {1})", "ilqfd"),
    "bitwise_and": ("({0} & {1})", "?"),
    "bitwise_or": ("({0} | {1})", "?"),
    "invert": ("(~{0})", "?"),
    "where": ("where({0}, {1}, {2})", "ilqfd"),
}
#: Numexpr's names of dtypes: its "float" has 32 bits.
_TYPES = {"?": bool, "i": np.int32, "l": np.int64, "q": np.int64, "f": float, "d": np.double}
#: Maximum number of compiled expressions that are kept.
_MOST_COMPILED = 256
#: Maximum number of operations in one expression.
_LONGEST = 32


class _Call(NamedTuple):
    """A result that is computed as a whole: by a compiled expression of some slots, or by NumPy's function."""

    slot: int
    #: Text and signature of the expression, None for NumPy's function.
    expression: tuple[str, tuple[tuple[str, Any], ...]] | None
    #: Slots that the expression reads, and the dtypes in which it reads them.
    reads: tuple[tuple[int, np.dtype[Any]], ...]

    def sources(self, chain: Chain) -> Collection[int]:
        """Return the slots that it reads."""
        return chain.steps[self.slot][1] if self.expression is None else [slot for slot, _ in self.reads]


class NumexprPlan:
    """A chain as calls of numexpr: each stores one result, and everything before it stays in blocks."""

    # It raises `Unsupported` if numexpr is missing, or no two steps in a row are exact in it.

    def __init__(self, chain: Chain) -> None:
        if chain.made or _interpreter() is None or _status() is None:
            raise Unsupported
        self._chain = chain
        self._order: Literal["C", "F"] = "F" if chain.transposed else "C"
        exact = {slot for slot, (bound, sources) in chain.steps.items() if self._dtype(bound, sources) is not None}
        stored = {*chain.written, *[reduced.source for reduced in chain.reductions]}
        for slot, (_, sources) in chain.steps.items():
            if slot not in exact:
                stored.update([slot, *sources])
        lengths: dict[int, int] = {}
        for slot, (_, sources) in chain.steps.items():
            lengths[slot] = 1 + sum([lengths.get(source, 0) for source in sources if source not in stored])
            if lengths[slot] >= _LONGEST:
                stored.add(slot)
        self._calls = [
            self._call(slot, stored) if slot in exact and lengths[slot] > 1 else _Call(slot, None, ())
            for slot in chain.steps
            if slot in stored
        ]
        expressions = [call.expression for call in self._calls if call.expression is not None]
        if not expressions:
            raise Unsupported
        for expression in expressions:
            _compile(*expression, get_ident())
        kept = {*chain.written, *[reduced.source for reduced in chain.reductions]}
        last = {source: at for at, call in enumerate(self._calls) for source in call.sources(chain)}
        #: By call, the results that no later one reads.
        self._dead: list[list[int]] = [[] for _ in self._calls]
        for slot, at in last.items():
            if slot in chain.steps and slot not in kept:
                self._dead[at].append(slot)

    def run(
        self, values: list[Any], errors: Mapping[str, str], sources: Mapping[int, Any]
    ) -> tuple[dict[int, Any], dict[int, Any]] | None:
        """Compute the written arrays and the totals of reductions, by slot; return None if NumPy has to do it."""
        chain, interpreter, status = self._chain, _interpreter(), _status()
        assert status is not None, "planned only where errors can be seen"
        library, flags = status
        # Errors in other threads would not be seen.
        if interpreter._get_num_threads() != 1:
            return None
        mask = sum(bit for kind, bit in flags.items() if errors[kind] != "ignore")
        values = list(values)
        # Later results are written over those that no later call reads, as new pages cost more than computing.
        spare: defaultdict[np.dtype[Any], list[Any]] = defaultdict(list)

        def array_of(dtype: np.dtype[Any]) -> Any:
            return spare[dtype].pop() if spare[dtype] else np.empty(chain.shape, dtype, self._order)

        for (slot, expression, reads), dead in zip(self._calls, self._dead, strict=True):
            bound, arguments = chain.steps[slot]
            if expression is None:
                values[slot] = bound.compute([values[at] for at in arguments], partial(array_of, bound.dtype))
            else:
                values[slot] = out = array_of(bound.dtype)
                inputs = [np.asarray(values[at], dtype) for at, dtype in reads]
                compiled = _compile(*expression, get_ident())
                library.feclearexcept(mask)
                compiled(*inputs, out=out, order="K", casting="no", ex_uses_vml=False)
                if library.fetestexcept(mask):
                    return None
            for at in dead:
                spare[values[at].dtype].append(values[at])
                values[at] = None
        totals = {
            slot: ufunc.reduce(values[source], axis=axes, dtype=dtype, keepdims=True)
            for slot, source, ufunc, dtype, axes, *_ in chain.reductions
        }
        return {slot: values[slot] for slot in chain.written}, totals

    def _dtype(self, bound: Bound, sources: tuple[int, ...]) -> np.dtype[Any] | None:
        """Return the common dtype of a step's arguments but conditions, None if numexpr is not exact."""
        kinds = [self._chain.types[source] for source in _data(bound, sources)]
        dtypes = {kind for kind in kinds if isinstance(kind, np.dtype)}
        if len(dtypes) != 1 or bound.name not in EXACT:
            return None
        (dtype,) = dtypes
        # A real number with integers gives reals.
        others = [kind for kind in kinds if kind is complex or (kind is float and dtype.kind != "f")]
        return None if others or dtype.char not in EXACT[bound.name][1] else dtype

    def _call(self, slot: int, stored: set[int]) -> _Call:
        """Compile the computation of a slot from stored ones and inputs."""
        names: dict[tuple[int, np.dtype[Any]], str] = {}

        def write(slot: int) -> str:
            bound, sources = self._chain.steps[slot]
            dtype = self._dtype(bound, sources)
            assert dtype is not None, "only exact steps are within an expression"
            data = _data(bound, sources)
            kinds = [np.dtype(bool)] * (len(sources) - len(data)) + [dtype] * len(data)
            parts = [
                write(source)
                if source in self._chain.steps and source not in stored
                else names.setdefault((source, kind), f"a{len(names)}")
                for source, kind in zip(sources, kinds, strict=True)
            ]
            return EXACT[bound.name][0].format(*parts)

        text = write(slot)
        signature = tuple([(name, _TYPES[kind.char]) for (_, kind), name in names.items()])
        return _Call(slot, (text, signature), tuple(names))


def _data(bound: Bound, sources: tuple[int, ...]) -> tuple[int, ...]:
    """Return the arguments of a step except a condition."""
    return sources[1:] if bound.name == "where" else sources


@lru_cache(_MOST_COMPILED)
def _compile(text: str, signature: tuple[tuple[str, Any], ...], thread: int) -> Any:
    # A compiled expression has memory for its temporaries, which its calls in several threads would share.
    from numexpr.necompiler import NumExpr

    try:
        return NumExpr(text, signature=list(signature))
    except (NotImplementedError, TypeError, ValueError):
        # The expression exceeds a limit of numexpr, for example.
        raise Unsupported from None


@cache
def _interpreter() -> Any:
    """Return numexpr's interpreter, or None; the newest Pythons have no wheels of it."""
    try:
        from numexpr import interpreter
    except ImportError:
        return None
    return interpreter if hasattr(interpreter, "_get_num_threads") else None


#: Bits of the floating point status word, by processor.
_FLAGS = {
    "x86_64": {"invalid": 1, "divide": 4, "over": 8, "under": 16},
    "aarch64": {"invalid": 1, "divide": 2, "over": 4, "under": 8},
    "arm64": {"invalid": 1, "divide": 2, "over": 4, "under": 8},
}


@cache
def _status() -> tuple[Any, dict[str, int]] | None:
    """Return the C library with the floating point status, and its bits."""
    flags = _FLAGS.get(platform.machine())
    name = ctypes.util.find_library("m")
    return None if flags is None or name is None else (ctypes.CDLL(name), flags)
