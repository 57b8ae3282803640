"""Tiles computed by numexpr, where it gives exactly NumPy's values and is faster."""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from dask_mars.expressions.costs import costs
from dask_mars.expressions.functions import Bound

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
#: Nanoseconds of one call of numexpr, which a tile has to save.
_CALL_NS = 8_000.0


def compile_tile(
    steps: Mapping[int, tuple[Bound, tuple[int, ...]]],
    root: int,
    types: Mapping[int, Any],
    forced: bool,
) -> tuple[CompiledTile, tuple[int, ...]] | None:
    """Compile the computation of one result from a tile.

    Parameters
    ----------
    steps : mapping
        By slot: the function and the slots of its arguments.
    root : int
        The slot of the result.
    types : mapping
        By slot: dtype, or type of a Python number.
    forced : bool
        Whether to compile even against the costs.

    Returns
    -------
    call, arguments
        The call takes values of the arguments' slots, and the array for the result. None if numexpr is not exact
        here, not installed, or does not pay.
    """
    if not (forced or _cheaper(steps, types)) or _status() is None or _compiler() is None:
        return None
    names: dict[int, str] = {}
    wanted: dict[int, np.dtype[Any]] = {}

    def write(slot: int, dtype: np.dtype[Any] | None) -> str:
        if slot not in steps:
            own = types[slot]
            known = own if isinstance(own, np.dtype) else dtype
            if known is None or known.char not in _TYPES or wanted.setdefault(slot, known) != known:
                raise _NotExactError
            return names.setdefault(slot, f"a{len(names)}")
        bound, arguments = steps[slot]
        template, characters = EXACT[bound.name]
        data = arguments[1:] if bound.name == "where" else arguments
        common = _common_dtype([types[source] for source in data], characters)
        parts = [
            write(source, np.dtype(bool) if bound.name == "where" and position == 0 else common)
            for position, source in enumerate(arguments)
        ]
        return template.format(*parts)

    try:
        text = write(root, None)
    except (_NotExactError, KeyError):
        return None
    if not names:
        return None
    return CompiledTile(text, tuple(names.values()), tuple([wanted[slot] for slot in names])), tuple(names)


class _NotExactError(Exception):
    """The value or the dtype would differ from NumPy's."""


def _common_dtype(types: list[Any], characters: str) -> np.dtype[Any]:
    """Return the common dtype of the arguments; Python's numbers take that of the others."""
    dtypes = {kind for kind in types if isinstance(kind, np.dtype)}
    if len(dtypes) != 1:
        raise _NotExactError
    (dtype,) = dtypes
    if dtype.char not in characters:
        raise _NotExactError
    for kind in types:
        # A real number with integers gives reals.
        if kind is complex or (kind is float and dtype.kind != "f"):
            raise _NotExactError
    return dtype


def _cheaper(steps: Mapping[int, tuple[Bound, tuple[int, ...]]], types: Mapping[int, Any]) -> bool:
    table = costs()
    tiled, compiled = 0.0, _CALL_NS / (1 << 15)
    for bound, arguments in steps.values():
        kind = next(
            (types[slot] for slot in reversed(arguments) if isinstance(types[slot], np.dtype)), bound.dtype
        )
        entry = table.get(f"{bound.name}-{kind.char}")
        if entry is None:
            return False
        tiled += entry[0]
        compiled += entry[1]
    return compiled < 0.9 * tiled


class CompiledTile:
    """A compiled expression.

    Parameters
    ----------
    text : str
        The expression.
    names : tuple of str
        Names of its variables.
    dtypes : tuple of numpy.dtype
        Dtypes of its variables.
    """

    def __init__(self, text: str, names: tuple[str, ...], dtypes: tuple[np.dtype[Any], ...]) -> None:
        self._compiled = _compile(text, names, dtypes)
        self._dtypes = dtypes
        status = _status()
        assert status is not None, "compiled only where errors can be seen"
        self._library, self._flags = status
        self._mask = 0

    def watch(self, errors: Mapping[str, str]) -> None:
        """Raise floating point errors from now on, except those that `errors` ignores."""
        self._mask = sum(bit for kind, bit in self._flags.items() if errors[kind] != "ignore")

    def __call__(self, *arguments: Any, out: Any) -> None:
        """Compute into an array."""
        arrays = [np.asarray(value, dtype) for value, dtype in zip(arguments, self._dtypes, strict=True)]
        library, mask = self._library, self._mask
        if mask:
            library.feclearexcept(mask)
        self._compiled(*arrays, out=out, order="K", casting="no", ex_uses_vml=False)
        # NumPy warns of these errors or raises them, and numexpr ignores them.
        if mask and library.fetestexcept(mask):
            raise FloatingPointError("in numexpr")


@cache
def _compile(text: str, names: tuple[str, ...], dtypes: tuple[np.dtype[Any], ...]) -> Any:
    compiler = _compiler()
    assert compiler is not None, "compiled only where numexpr is"
    types = [_TYPES[dtype.char] for dtype in dtypes]
    return compiler(text, signature=list(zip(names, types, strict=True)))


@cache
def _compiler() -> Any:
    """Return numexpr's class of compiled expressions, or None; the newest Pythons have no wheels of it."""
    try:
        from numexpr.necompiler import NumExpr
    except ImportError:
        return None
    return NumExpr


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
