"""When two results are the same: in type, dtype, shape, structure, names and, but for rounding, in value."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np


def _default_fills() -> set[str]:
    """Return the fill values that NumPy takes for each dtype, and what becomes of them in others."""
    own = [np.ma.zeros(1, code).fill_value for code in "?bhilBHILefdFDOSUM"]
    numbers = [np.asarray(fill) for fill in own if isinstance(fill, np.number | np.bool)]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cast = [fill.astype(code)[()] for fill in numbers for code in "?bhilBHILefdFD"]
    return {str(fill) for fill in [*own, *cast]} | {"999999.0"}


_DEFAULT_FILLS = _default_fills()
#: Relative errors that sums in another order may have, by the bytes of a real number.
TOLERANCES = {2: 3e-2, 4: 2e-4, 8: 1e-9, 16: 1e-9}


def difference(ours: Any, expected: Any, rounded: bool = False) -> str:
    """Return how two results differ."""
    if type(ours) is not type(expected):
        return f"{_named(ours)} instead of {_named(expected)}"
    for types, compare in _COMPARISONS:
        if isinstance(expected, types):
            return compare(ours, expected, rounded)
    module = type(expected).__module__.partition(".")[0]
    if module in _BY_LIBRARY:
        return _BY_LIBRARY[module](ours, expected, rounded)
    try:
        same = bool(ours == expected)
    except Exception as error:
        return f"{_named(ours)} cannot be compared: {error!r}"
    return "" if same else f"{ours!r:.200} instead of {expected!r:.200}"


def _named(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__} {value!r:.200}"


def _first(found: Any) -> str:
    return next((text for text in found if text), "")


def _sequences(ours: Any, expected: Any, rounded: bool) -> str:
    if len(ours) != len(expected):
        return f"{len(ours)} values instead of {len(expected)}"
    for number, (one, other) in enumerate(zip(ours, expected, strict=True)):
        if text := difference(one, other, rounded):
            return f"[{number}]: {text}"
    return ""


def _dicts(ours: Any, expected: Any, rounded: bool) -> str:
    if text := _sequences(list(ours), list(expected), rounded):
        return f"keys: {text}"
    for (key, one), other in zip(ours.items(), expected.values(), strict=True):
        if text := difference(one, other, rounded):
            return f"[{key!r}]: {text}"
    return ""


def _floats(ours: Any, expected: Any, rounded: bool) -> str:
    if isinstance(expected, complex):
        return _first(_floats(getattr(ours, at), getattr(expected, at), rounded) for at in ("real", "imag"))
    if math.isnan(expected) and math.isnan(ours):
        return ""
    if rounded and math.isclose(ours, expected, rel_tol=TOLERANCES[8], abs_tol=TOLERANCES[8]):
        return ""
    same = ours == expected and math.copysign(1, ours) == math.copysign(1, expected)
    return "" if same else f"{ours!r} instead of {expected!r}"


# -- NumPy --------------------------------------------------------------------------------------------------------


def _scalars(ours: Any, expected: Any, rounded: bool) -> str:
    return _arrays(np.asarray(ours), np.asarray(expected), rounded)


def _arrays(ours: Any, expected: Any, rounded: bool) -> str:
    if ours.dtype != expected.dtype or ours.dtype.byteorder != expected.dtype.byteorder:
        return f"dtype {ours.dtype!r} instead of {expected.dtype!r}"
    if ours.shape != expected.shape:
        return f"shape {ours.shape} instead of {expected.shape}"
    if isinstance(expected, np.ma.MaskedArray):
        return _masked(ours, expected, rounded)
    if expected.dtype.names:
        return _first(_arrays(ours[name], expected[name], rounded) for name in expected.dtype.names)
    if expected.dtype.kind == "O":
        text = _sequences(ours.ravel().tolist(), expected.ravel().tolist(), rounded)
    else:
        text = _elements(ours, expected, rounded)
    if not text and expected.flags.writeable and not ours.flags.writeable:
        return "it cannot be written to"
    return text


def _elements(ours: Any, expected: Any, rounded: bool) -> str:
    if expected.dtype.kind not in "fcMm":
        wrong = ours != expected
    else:
        missing = np.isnan(expected)
        same = (ours == expected) | (missing & np.isnan(ours))
        if expected.dtype.kind in "fc" and not rounded:
            # Bit for bit, but for the many ways not to be a number. Zeros have signs.
            for at in ("real", "imag"):
                signs = np.signbit(getattr(ours, at)) == np.signbit(getattr(expected, at))
                same &= signs | missing
        wrong = ~same
        if rounded and expected.dtype.kind in "fc" and wrong.any():
            wrong &= ~_close(ours, expected)
    if not np.any(wrong):
        return ""
    at = tuple(int(index[0]) for index in np.nonzero(np.atleast_1d(wrong)))
    pair = (repr(np.atleast_1d(array)[at]) for array in (ours, expected))
    return f"{int(np.sum(wrong))} of {wrong.size} elements, at {at} {' instead of '.join(pair)}"


def _close(ours: Any, expected: Any) -> Any:
    """Compare with a tolerance relative to the largest element: where that cancels out, rounding is left."""
    size = expected.dtype.itemsize // (2 if expected.dtype.kind == "c" else 1)
    tolerance = TOLERANCES.get(size, TOLERANCES[8])
    magnitudes = np.abs(expected)
    scale = max(1.0, float(np.max(magnitudes, initial=0.0, where=np.isfinite(magnitudes))))
    return np.isclose(ours, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _is_nobodys(fill_value: Any) -> bool:
    """Return whether a fill value is what NumPy takes for some dtype."""
    return np.ndim(fill_value) == 0 and str(fill_value) in _DEFAULT_FILLS


def _masked(ours: Any, expected: Any, rounded: bool) -> str:
    if expected is np.ma.masked:
        return "" if ours is np.ma.masked else "a copy of the one np.ma.masked"
    if (ours.mask is np.ma.nomask) != (expected.mask is np.ma.nomask):
        return f"mask {ours.mask!r:.100} instead of {expected.mask!r:.100}"
    mask = np.ma.getmaskarray(expected)
    if not np.array_equal(np.ma.getmaskarray(ours), mask):
        return f"mask {ours.mask!r:.100} instead of {expected.mask!r:.100}"
    fills = [array.view().fill_value for array in (ours, expected)]
    # An array that nobody has given one gets that of its dtype when it is first asked, be it by NumPy itself, and
    # hands it on to others: which of them it is depends on who has had the same object before.
    if not all(map(_is_nobodys, fills)) and (text := difference(*fills, rounded)):
        return f"fill value: {text}"
    if ours.hardmask != expected.hardmask:
        return "hardness of the mask"
    pair = (np.where(mask, np.zeros((), expected.dtype), array.data) for array in (ours, expected))
    return _arrays(*pair, rounded)


# -- pandas and Xarray --------------------------------------------------------------------------------------------


def _pandas(ours: Any, expected: Any, rounded: bool) -> str:
    import pandas as pd

    if isinstance(expected, pd.MultiIndex):
        same = [
            difference(ours.get_level_values(n), expected.get_level_values(n)) for n in range(expected.nlevels)
        ]
        return _first(same) or difference(list(ours.names), list(expected.names))
    if isinstance(expected, pd.DataFrame):
        if text := difference(ours.columns, expected.columns):
            return f"columns: {text}"
        if text := difference(ours.index, expected.index, rounded):
            return f"index: {text}"
        for number, name in enumerate(expected.columns):
            if text := difference(ours.iloc[:, number], expected.iloc[:, number], rounded):
                return f"column {name!r}: {text}"
        return difference(dict(ours.attrs), dict(expected.attrs))
    if isinstance(expected, pd.Series) and (text := difference(ours.index, expected.index, rounded)):
        return f"index: {text}"
    if isinstance(expected, pd.Series | pd.Index):
        if text := difference(ours.name, expected.name):
            return f"name: {text}"
        if ours.dtype != expected.dtype or repr(ours.dtype) != repr(expected.dtype):
            return f"dtype {ours.dtype!r} instead of {expected.dtype!r}"
        if getattr(ours, "freq", None) != getattr(expected, "freq", None):
            return f"freq {ours.freq} instead of {expected.freq}"
        return difference(ours.array, expected.array, rounded)
    if isinstance(expected, pd.Categorical):
        if text := difference(ours.categories, expected.categories) or difference(ours.ordered, expected.ordered):
            return f"categories: {text}"
        return difference(ours.codes, expected.codes)
    if isinstance(expected, pd.api.extensions.ExtensionArray):
        pair = [array.to_numpy(copy=True) for array in (ours, expected)]
        return _arrays(*pair, rounded)
    if expected is pd.NA or expected is pd.NaT:
        return ""
    return "" if ours == expected else f"{ours!r:.200} instead of {expected!r:.200}"


def _xarrays(ours: Any, expected: Any, rounded: bool) -> str:
    import xarray as xr

    if isinstance(expected, xr.Dataset):
        found = [
            difference(dict(ours.sizes), dict(expected.sizes)),
            difference(list(ours.variables), list(expected.variables)),
            difference(dict(ours.attrs), dict(expected.attrs), rounded),
            *(difference(ours[name], expected[name], rounded) for name in expected.variables),
        ]
        return _first(found)
    if isinstance(expected, xr.DataArray):
        found = [
            difference(ours.name, expected.name),
            difference(ours.dims, expected.dims),
            difference(list(ours.coords), list(expected.coords)),
            difference(dict(ours.attrs), dict(expected.attrs), rounded),
            difference(dict(ours.encoding), dict(expected.encoding), rounded),
            difference(list(ours.xindexes), list(expected.xindexes)),
            difference(ours.variable._data, expected.variable._data, rounded),
        ]
        for name, coordinate in expected.coords.items():
            mine = ours.coords[name]
            found.append(difference(mine.dims, coordinate.dims))
            if text := difference(mine.to_numpy(), coordinate.to_numpy(), rounded):
                found.append(f"coordinate {name}: {text}")
            found.append(difference(dict(mine.attrs), dict(coordinate.attrs), rounded))
        found += [difference(ours.indexes[name], expected.indexes[name], rounded) for name in expected.indexes]
        return _first(found)
    return "" if bool(np.all(np.asarray(ours) == np.asarray(expected))) else "other values"


_COMPARISONS: list[tuple[Any, Callable[..., str]]] = [
    ((list, tuple), _sequences),
    (dict, _dicts),
    # Scalars of NumPy before those of Python, which some of them are too.
    (np.generic, _scalars),
    (np.ndarray, _arrays),
    (bool, lambda ours, expected, rounded: "" if ours == expected else f"{ours} instead of {expected}"),
    ((float, complex), _floats),
]
_BY_LIBRARY: dict[str, Callable[..., str]] = {"pandas": _pandas, "xarray": _xarrays}
