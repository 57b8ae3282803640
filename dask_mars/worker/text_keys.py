"""Groups by columns of text from Parquet, without a look-up of the text in each row.

A file has the texts of a column in a dictionary, and a number (code) for each row. Where an operand reads files
and groups their rows, such columns stay codes from the reader to the function that groups. Other steps get texts.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from dask_mars.graph.callables import called_by, is_of, is_parquet_reader
from dask_mars.graph.chunks import Operand, Step
from dask_mars.worker.coded_reads import CodedFrame, ordered
from dask_mars.worker.number_keys import method_of, number_keys
from dask_mars.worker.table_reads import TableReader

_Function = Callable[..., Any]

#: Dtypes of series that select rows.
_BOOLEANS = frozenset({"bool", "bool[pyarrow]", "boolean"})
#: Methods of groups that see only the values of a group.
_REDUCTIONS = frozenset({"count", "first", "last", "max", "min", "prod", "size", "sum"})


def text_keys(operand: Operand) -> Operand:
    """Return an operand that groups by codes of texts, or itself if it does not read files and group them."""
    functions = operand.functions
    if not any(map(_reads, functions)) or not any(map(_groups, functions)):
        return operand
    replaced: list[_Function] = list(functions)
    steps = []
    #: Numbers of values that may be frames with codes.
    coded: set[int] = set()
    value = -1
    for value, step in enumerate(operand.steps, operand.input_count + operand.literal_count):
        function, position = functions[step.function], step.function
        is_reader = _reads(function)
        if is_reader or not coded.isdisjoint(step.slots):
            position = len(replaced)
            substitute, keeps_codes = (_reader(function), True) if is_reader else _substitute(function)
            replaced.append(substitute)
            if keeps_codes:
                coded.add(value)
        steps.append(Step(position, step.slots, step.keywords))
    if value in coded:
        return operand
    return operand.replaced(replaced, steps)


def _reads(function: _Function) -> bool:
    return type(function) is TableReader or is_parquet_reader(type(function))


def _reader(function: _Function) -> _Function:
    reader = function if type(function) is TableReader else TableReader(function, None)
    return reader.with_codes()


def _substitute(function: _Function) -> tuple[_Function, bool]:
    """Return a function of frames with codes, and whether its result may be one."""
    if function is operator.getitem:
        return _selected, True
    if is_of(function, "dask.dataframe.", "assign"):
        return partial(_assigned, function), True
    return partial(_grouped if _groups(function) else _with_texts, function), False


def _groups(function: _Function) -> bool:
    """Return whether a function groups a partition by some of its columns."""
    known = "SingleAggregation.chunk", "NUnique.chunk", "_groupby_apply_funcs", "_var_chunk"
    return is_of(called_by(function), "dask.dataframe.", *known)


def _plain(value: Any) -> Any:
    """Return a value with texts for codes."""
    if type(value) is CodedFrame:
        return value.decoded()
    return list(map(_plain, value)) if type(value) is list else value


def _with_texts(function: _Function, *values: Any, **named: Any) -> Any:
    return function(*map(_plain, values), **{name: _plain(value) for name, value in named.items()})


def _selected(frame: Any, index: Any) -> Any:
    """Return a column, some of the columns, or some of the rows."""
    if type(frame) is CodedFrame:
        if type(index) is str and index not in frame.texts:
            return frame.codes[index]
        is_mask = type(index).__name__ == "Series" and str(index.dtype) in _BOOLEANS
        is_list = type(index) is list and set(map(type, index)) == {str} and len({*index}) == len(index)
        if is_mask or is_list:
            return CodedFrame(frame.codes[index], frame.texts)
    return _with_texts(operator.getitem, frame, index)


def _assigned(assign: _Function, frame: Any, *pairs: Any) -> Any:
    if type(frame) is not CodedFrame or not frame.texts.keys().isdisjoint(pairs[::2]):
        return _with_texts(assign, frame, *pairs)
    return CodedFrame(_with_texts(assign, frame.codes, *pairs), frame.texts)


def _grouped(function: _Function, frame: Any, *by: Any, **named: Any) -> Any:
    """Return what a function makes of the groups of a partition."""
    if type(frame) is CodedFrame and len(frame.codes):
        keys = [label for label in by if type(label) is str and label in frame.texts]
        # Errors and their tracebacks are Dask's.
        with contextlib.suppress(Exception):
            if keys and len(set(by)) == len(by) and _leaves_keys(named, by):
                return _group_by_codes(number_keys(function), frame, by, keys, named)
    return _with_texts(number_keys(function), frame, *by, **named)


def _leaves_keys(named: Mapping[str, Any], by: Collection[Any]) -> bool:
    """Return whether options of a function that groups certainly make it aggregate other columns than the keys."""
    aggregates, columns = [named.get("chunk")], [named.get("columns"), named.get("name")]
    for _, _, options in named.get("funcs", ()):
        aggregates.append(options.get("func"))
        columns.append(options.get("column"))
    labels = [label for each in columns for label in (each if isinstance(each, (list, tuple)) else [each])]
    # Functions of the user's may look at the keys.
    are_known = all(each is None or method_of(each) in _REDUCTIONS for each in aggregates)
    return are_known and set(by).isdisjoint(labels)


def _group_by_codes(
    function: _Function, frame: CodedFrame, by: Sequence[str], keys: Sequence[str], named: Mapping[str, Any]
) -> Any:
    """Group by codes in the order of the texts, and put texts into the index of the result."""
    codes, texts = ordered(frame)
    result = function(CodedFrame(codes, texts).decoded(but=keys), *by, **named)
    index, pandas = result.index, sys.modules["pandas"]
    if list(index.names) != list(by):
        raise ValueError("the index does not have the keys")

    def with_texts(label: str, codes: Any) -> Any:
        return pandas.Index(texts[label].at(codes.to_numpy()), name=label)

    if len(by) == 1:
        result.index = with_texts(by[0], index)
    else:
        places = [by.index(label) for label in keys]
        levels = [with_texts(by[place], index.levels[place]) for place in places]
        result.index = index.set_levels(levels, level=places, verify_integrity=False)
    return result
