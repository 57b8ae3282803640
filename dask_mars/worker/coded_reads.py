"""Columns of text from local files of Parquet as codes: places in the list of texts that a file has once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


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
    sort: Any = importlib.import_module("pyarrow.compute").array_sort_indices
    texts = {}
    for label, found in frame.texts.items():
        order = sort(found.values)
        ranks = np.empty(len(order), "i4")
        ranks[order.to_numpy()] = np.arange(len(order), dtype="i4")
        codes[label] = ranks.take(codes[label].to_numpy())
        texts[label] = Texts(found.dtype, found.values.take(order))
    return codes, texts


__all__ = ["CodedFrame", "Texts", "ordered"]
