"""Columns of text from local files of Parquet as codes: places in the list of texts that a file has once."""

from __future__ import annotations

import contextlib
import copy
import importlib
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_mars.worker.parquet_reads import native_reads

#: Maximum bytes of a row in a file's column. With more, the dictionary is large, and sorting it takes too long.
_ROW_BYTES = 2
#: Options with which Dask's reader changes what it reads.
_OPTIONS = "filters", "partitions", "dtype_backend", "arrow_to_pandas"


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
    is_ordered: bool = False

    def at(self, places: NDArray[Any]) -> Any:
        """Return an array of pandas' with the texts at some places."""
        return self.dtype.__from_arrow__(self.values.take(sys.modules["pyarrow"].array(places)))


def in_order(texts: Sequence[Texts]) -> tuple[Texts, list[NDArray[Any]]]:
    """Return the texts of several files in order, and the places there of those of each file."""
    arrow: Any = sys.modules["pyarrow"]
    together = arrow.concat_arrays([own.values for own in texts]).dictionary_encode()
    order = importlib.import_module("pyarrow.compute").array_sort_indices(together.dictionary)
    ranks = np.empty(len(order), "i4")
    ranks[order.to_numpy()] = np.arange(len(order), dtype="i4")
    ends = np.cumsum([len(own.values) for own in texts])[:-1]
    places = np.split(ranks[together.indices.to_numpy()], ends)
    return Texts(texts[0].dtype, together.dictionary.take(order), True), places


def ordered(frames: Sequence[CodedFrame]) -> tuple[list[Any], dict[str, Texts]]:
    """Return the frames of codes for texts that are in order and the same for all frames."""
    found = [frame.codes.copy(deep=False) for frame in frames]
    common = {}
    for label in frames[0].texts:
        texts = [frame.texts[label] for frame in frames]
        common[label] = texts[0]
        if len(texts) > 1 or not texts[0].is_ordered:
            common[label], places = in_order(texts)
            for codes, own in zip(found, places, strict=True):
                codes[label] = own.take(codes[label].to_numpy())
    return found, common


class CodedReader:
    """Dask's reader of Parquet, which returns a `CodedFrame` where the file has codes, else Dask's frame."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._native = native_reads(reader)
        #: Whether the file before had codes; files of a table are alike.
        self._has_found = True

    def __call__(self, part: Any) -> Any:
        """Return a partition's frame."""
        if self._has_found:
            # Errors and their tracebacks are Dask's.
            with contextlib.suppress(Exception):
                found = self._coded(part) if self._is_plain() else None
                if found is not None:
                    return found
            self._has_found = False
        return self._native(part)

    def _is_plain(self) -> bool:
        """Return whether files are local, and all their rows and columns are read as they are."""
        options, columns = self._reader.common_kwargs, self._reader.columns
        return (
            self._native is not self._reader
            and not any(map(options.get, _OPTIONS))
            and not any(options["read"].values())
            and self._reader.index in ([], [None], None, False)
            and len(set(columns)) == len(columns)
        )

    def _coded(self, part: Any) -> CodedFrame | None:
        arrow: Any = sys.modules["pyarrow"]
        read: Any = sys.modules["pyarrow.parquet"].ParquetFile
        piece = part[0] if type(part) is list and len(part) == 1 else part
        path, groups, directories = piece["piece"]
        if type(path) is not str or directories or piece.get("kwargs"):
            return None
        columns = list(self._reader.columns)
        with arrow.OSFile(path) as opened:
            file = read(opened)
            if groups in (None, [None]):
                groups = range(file.num_row_groups)
            groups = [groups] if type(groups) is int else list(groups)
            labels = [label for label in columns if self._has_codes(file, groups, label)]
            if not 0 < len(labels) < len(columns):
                return None
            file = read(opened, metadata=file.metadata, read_dictionary=labels, pre_buffer=True)
            table = file.read_row_groups(groups, columns=columns, use_threads=False, use_pandas_metadata=True)
        frame = self._frame(table.drop_columns(labels), part)
        texts = {}
        for label in labels:
            column = table.column(label).unify_dictionaries()
            codes = np.concatenate([chunk.indices.to_numpy() for chunk in column.chunks])
            frame.insert(columns.index(label), label, codes)
            # Files may differ in the width of offsets.
            values = column.chunk(0).dictionary.cast(arrow.large_string())
            texts[label] = Texts(self._reader.meta.dtypes[label], values)
        return CodedFrame(frame, texts)

    def _has_codes(self, file: Any, groups: Collection[int], label: str) -> bool:
        """Return whether a file has few texts in a column, each once, and no row without one."""
        pandas: Any = sys.modules["pandas"]
        dtype, schema = self._reader.meta.dtypes.get(label), file.schema_arrow
        is_text = isinstance(dtype, pandas.StringDtype) and dtype.storage == "pyarrow"
        if not is_text or str(schema.field(label).type) not in ("string", "large_string"):
            return False
        if label in (schema.pandas_metadata or {}).get("index_columns", ()):
            return False
        position = schema.names.index(label)
        return all(
            part.path_in_schema == label
            and part.has_dictionary_page
            and part.statistics.null_count == 0
            and part.total_uncompressed_size < _ROW_BYTES * part.num_values
            for part in [file.metadata.row_group(group).column(position) for group in groups]
        )

    def _frame(self, table: Any, part: Any) -> Any:
        """Return what Dask's reader makes of a table of Arrow's."""
        columns = [label for label in self._reader.columns if label in table.column_names]
        reader = copy.copy(self._reader.project_columns(columns))
        reader.engine = type("Engine", (reader.engine,), {"_read_table": staticmethod(lambda *_, **__: table)})
        return reader(part)


__all__ = ["CodedFrame", "CodedReader", "ordered"]
