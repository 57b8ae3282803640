"""Partitions of several local files of Parquet as one table of Arrow's, which is converted once.

Dask makes a frame of each file and concatenates these, which copies all columns a second time.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from dask_mars.graph.callables import is_of, is_parquet_reader
from dask_mars.graph.chunks import Operand, Step
from dask_mars.worker.coded_reads import CodedFrame, Texts
from dask_mars.worker.parquet_reads import native_reads

#: Maximum bytes of a row in a file's column of codes. With more, the dictionary is large, and sorting it takes too
#: long.
_ROW_BYTES = 2
#: Options with which Dask's reader changes what it reads.
_OPTIONS = "filters", "partitions", "dtype_backend", "arrow_to_pandas"


def joined_reads(operand: Operand) -> Operand:
    """Return an operand with one step for files that it reads and concatenates, or itself."""
    first, steps = operand.input_count + operand.literal_count, list(operand.steps)
    if not any(is_parquet_reader(type(function)) for function in operand.functions):
        return operand
    uses = Counter([slot for step in steps for slot in step.slots])
    functions = list(operand.functions)
    dropped: set[int] = set()
    for position, step in enumerate(steps):
        if is_of(functions[step.function], "dask.dataframe.", "concat") and len(step.slots) == 1:
            listed = step.slots[0] - first
            files = [slot - first for slot in steps[listed].slots] if listed >= 0 else []
            if uses[step.slots[0]] == 1 and _are_files(functions, steps, files, uses, first):
                reader = functions[steps[files[0]].function]
                steps[position] = Step(len(functions), tuple([steps[at].slots[0] for at in files]), ())
                functions.append(TableReader(reader, functions[step.function]))
                dropped.update(files, [listed])
    if not dropped:
        return operand
    return operand.reordered(functions, steps, [at for at in range(len(steps)) if at not in dropped])


def _are_files(
    functions: Sequence[Any], steps: Sequence[Step], files: Sequence[int], uses: Counter[int], first: int
) -> bool:
    """Return whether some steps read files by one reader for one list."""
    if len(files) < 2 or min(files) < 0 or len({steps[at].function for at in files}) > 1:
        return False
    return is_parquet_reader(type(functions[steps[files[0]].function])) and all(
        len(steps[at].slots) == 1 and not steps[at].keywords and uses[first + at] == 1 for at in files
    )


class TableReader:
    """Dask's reader and concatenation of files of Parquet."""

    def __init__(self, reader: Any, concat: Callable[[list[Any]], Any] | None, has_codes: bool = False) -> None:
        self._reader, self._concat, self._has_codes = reader, concat, has_codes
        self._native = native_reads(reader)
        #: Whether the files before were plain; those of a table are alike.
        self._is_plain = self._reads_plainly()

    def with_codes(self) -> TableReader:
        """Return a reader that returns a `CodedFrame` where files have codes."""
        return TableReader(self._reader, self._concat, True)

    def __call__(self, *parts: Any) -> Any:
        """Return the frame of one partition, which has some files."""
        if self._is_plain:
            # Errors and their tracebacks are Dask's.
            with contextlib.suppress(Exception):
                found = self._read(parts)
                if found is not None:
                    return found
            self._is_plain = False
        frames = [self._native(part) for part in parts]
        return frames[0] if self._concat is None else self._concat(frames)

    def _reads_plainly(self) -> bool:
        """Return whether files are local, and all their rows and columns are read as they are."""
        if self._native is self._reader:
            return False
        options, columns = self._reader.common_kwargs, self._reader.columns
        return (
            not any(map(options.get, _OPTIONS))
            and options.get("read") == {"open_file_options": {}}
            # With any other one Dask reads files by the schema of the first.
            and isinstance(options.get("dataset", {}).get("partitioning", ""), (str, list))
            and self._reader.index in ([], [None], None, False)
            and len(set(columns)) == len(columns)
        )

    def _read(self, parts: Sequence[Any]) -> Any:
        """Return a frame, or None if Dask may return another one."""
        arrow: Any = sys.modules["pyarrow"]
        read: Any = sys.modules["pyarrow.parquet"].ParquetFile
        columns = list(self._reader.columns)
        with contextlib.ExitStack() as stack:
            files = []
            for part in parts:
                piece = part[0] if type(part) is list and len(part) == 1 else part
                path, groups, directories = piece["piece"]
                if type(path) is not str or directories or piece.get("kwargs"):
                    return None
                opened = stack.enter_context(arrow.OSFile(path))
                file = read(opened)
                groups = range(file.num_row_groups) if groups in (None, [None]) else groups
                files.append((opened, file, [groups] if type(groups) is int else list(groups)))
            labels = [label for label in columns if self._has_codes and self._are_coded(files, label)]
            labels = labels if len(labels) < len(columns) else []
            if not labels and len(parts) == 1:
                return None
            tables = []
            for opened, file, groups in files:
                if labels:
                    file = read(opened, metadata=file.metadata, read_dictionary=labels)
                tables.append(
                    file.read_row_groups(groups, columns=columns, use_threads=False, use_pandas_metadata=True)
                )
        return self._frame(tables, labels)

    def _are_coded(self, files: Collection[tuple[Any, Any, Collection[int]]], label: str) -> bool:
        """Return whether files have few texts in a column, each once, and no row without one."""
        pandas: Any = sys.modules["pandas"]
        dtype = self._reader.meta.dtypes.get(label)
        if not isinstance(dtype, pandas.StringDtype) or dtype.storage != "pyarrow":
            return False
        return all(_has_codes(file, groups, label) for _, file, groups in files)

    def _frame(self, tables: Sequence[Any], labels: Collection[str]) -> Any:
        arrow: Any = sys.modules["pyarrow"]
        columns = list(self._reader.columns)
        reader = copy.copy(self._reader.project_columns([label for label in columns if label not in labels]))
        # A class is garbage of a cycle: it must not hold a table.
        reader.engine = type(
            "Engine", (reader.engine,), {"_read_table": staticmethod(lambda table, *_, **__: table)}
        )

        def converted(table: Any) -> Any:
            return reader({"piece": (table, None, None)})

        plain = [table.drop_columns(list(labels)) for table in tables]
        ranges = [_range_of(table, bool(reader.index)) for table in plain]
        if self._concat is None:
            frame = converted(plain[0])
        elif all(each is not None for each in ranges) and _are_alike(arrow, plain):
            frame = converted(arrow.concat_tables(plain))
            if frame.ndim == 2 and not frame.dtypes.is_unique:
                # Last bits of sums over several columns depend on their layout, which is that of a concatenation.
                frame = self._concat([frame.iloc[: len(plain[0])], frame.iloc[len(plain[0]) :]])
            frame.index = ranges[0].append(ranges[1:])
        else:
            frame = self._concat(list(map(converted, plain)))
        texts = {}
        for label in labels:
            # Files may differ in the width of offsets.
            kind = arrow.dictionary(arrow.int32(), arrow.large_string())
            parts = [chunk.cast(kind) for table in tables for chunk in table.column(label).chunks]
            column = arrow.chunked_array(parts).unify_dictionaries()
            codes = np.concatenate([chunk.indices.to_numpy() for chunk in column.chunks])
            frame.insert(columns.index(label), label, codes)
            texts[label] = Texts(self._reader.meta.dtypes[label], column.chunk(0).dictionary)
        return CodedFrame(frame, texts) if labels else frame


def _has_codes(file: Any, groups: Collection[int], label: str) -> bool:
    """Return whether a file has few texts in a column, each once, and no row without one."""
    schema = file.schema_arrow
    if str(schema.field(label).type) not in ("string", "large_string"):
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


def _are_alike(arrow: Any, tables: Sequence[Any]) -> bool:
    """Return whether frames of tables certainly have the dtypes of a frame of all their rows."""
    schema, kinds = tables[0].schema, arrow.types
    if not all(len(table) and table.schema.equals(schema) for table in tables):
        return False
    if any(_described(table.schema) != _described(schema) for table in tables):
        return False
    for position, field in enumerate(schema):
        if kinds.is_integer(field.type) or kinds.is_boolean(field.type):
            # A missing value changes the dtype.
            is_alike = not any(table.column(position).null_count for table in tables)
        else:
            known = kinds.is_floating, kinds.is_timestamp, kinds.is_string, kinds.is_large_string
            is_alike = any(is_kind(field.type) for is_kind in known)
        if not is_alike:
            return False
    return True


def _range_of(table: Any, as_stored: bool) -> Any:
    """Return the index of a table's frame, or None if it is not a range without a name."""
    range_index: Any = sys.modules["pandas"].RangeIndex
    described = (table.schema.pandas_metadata or {}).get("index_columns", ())
    if any(type(each) is not dict or each["kind"] != "range" or each["name"] is not None for each in described):
        return None
    if as_stored and len(described) == 1:
        stored = range_index(*map(described[0].get, ("start", "stop", "step")))
        # Part of a file has an index of its own.
        if len(stored) == len(table):
            return stored
    return range_index(len(table))


def _described(schema: Any) -> dict[str, Any]:
    """Return the pandas metadata of a file, without its index, whose length differs between files."""
    return {name: value for name, value in (schema.pandas_metadata or {}).items() if name != "index_columns"}
