"""Columns of text as codes: places in the list of their texts, which a file of Parquet has once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Number of rows by which is judged whether most have a text of their own.
_SAMPLE = 1 << 12


class CodedFrame:
    """A frame with codes in columns of text."""

    __slots__ = ("codes", "texts")

    def __init__(self, codes: Any, texts: Mapping[str, Any]) -> None:
        self.codes = codes
        #: By column, the texts without duplicates.
        self.texts = {label: found for label, found in texts.items() if label in codes.columns}

    def decoded(self, but: Collection[str] = ()) -> Any:
        """Return the frame with texts, except in some columns."""
        frame = self.codes.copy(deep=False)
        for label, texts in self.texts.items():
            if label not in but:
                frame[label] = texts.at(frame[label].to_numpy())
        return frame


class Texts(NamedTuple):
    """The texts of a column without duplicates."""

    dtype: Any
    #: An array of Arrow's.
    values: Any

    def at(self, places: NDArray[Any]) -> Any:
        """Return an array of pandas' with the texts at some places."""
        return self.dtype.__from_arrow__(self.values.take(sys.modules["pyarrow"].array(places)))


def ordered(frame: CodedFrame) -> tuple[Any, dict[str, Texts]]:
    """Return a frame of codes for texts that are in order, and these."""
    codes = frame.codes.copy(deep=False)
    texts = {}
    for label, found in frame.texts.items():
        codes[label], texts[label] = _in_order(codes[label].to_numpy(), found)
    return codes, texts


def encoded(column: Any) -> tuple[NDArray[Any], Texts] | None:
    """Return codes for a series in Arrow's form with few texts, and these in order; None for others."""
    pandas, pyarrow = sys.modules["pandas"], sys.modules.get("pyarrow")
    if pyarrow is None or not isinstance(column.dtype, pandas.StringDtype) or column.dtype.storage != "pyarrow":
        return None
    values = pyarrow.array(column.array)
    if isinstance(values, pyarrow.ChunkedArray):
        values = values.combine_chunks()
    if not len(values) or values.null_count or 2 * len(values[:_SAMPLE].unique()) > min(len(values), _SAMPLE):
        return None
    found = values.dictionary_encode()
    return _in_order(found.indices.to_numpy(), Texts(column.dtype, found.dictionary))


def _in_order(codes: NDArray[Any], texts: Texts) -> tuple[NDArray[Any], Texts]:
    sort: Any = importlib.import_module("pyarrow.compute").array_sort_indices
    order = sort(texts.values)
    ranks = np.empty(len(order), "i4")
    ranks[order.to_numpy()] = np.arange(len(order), dtype="i4")
    return ranks.take(codes), Texts(texts.dtype, texts.values.take(order))
