"""The front of expressions, as of Dask's dataframes: those with one task for each partition are chunk records.

Such an expression can make the task of any partition. Where tasks certainly differ only in the partitions they
read, one task is made and stands for all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from types import MethodType
from typing import Any

import dask

from dask_mars.dask_api.core import Alias, DataNode, Expr, Task, TaskRef, _execute_subgraph, _HLGExprSequence
from dask_mars.graph.callables import package_of
from dask_mars.graph.chunks import Key, flatten
from dask_mars.lazy_numpy import np
from dask_mars.optimize.fronts.base import ChunkRecord, LazyLayer, NotSymbolic, ReadOptions, Symbolic, TaskCompiler
from dask_mars.optimize.programs import Program


def read_expressions(dsk: Any, options: ReadOptions) -> Symbolic | None:
    """Collect the layers of an expression as `Expr.__dask_graph__` does."""
    if not isinstance(dsk, Expr) or isinstance(dsk, _HLGExprSequence):
        return None
    whole = fused(dsk)
    # Fusion renames an expression and its dependents.
    names = zip(flatten(dsk.__dask_keys__()), flatten(whole.__dask_keys__()), strict=True)
    tasks: dict[Key, Any] = {key: Alias(key, new) for key, new in names if key != new}
    layers: list[LazyLayer] = []
    seen: set[str] = set()
    stack = [whole]
    while stack:
        expression = stack.pop()
        if expression._name in seen:
            continue
        seen.add(expression._name)
        if type(expression).__dask_graph__ is not Expr.__dask_graph__:
            return None
        lazy = lazy_expression(expression)
        if lazy is not None:
            layer, others = lazy
            layers.append(layer)
            stack += others
        else:
            tasks.update(_partitions_in_memory(expression) or _some_of_join(expression) or expression._layer())
        stack += expression.dependencies()
    return Symbolic(tasks, layers)


def fused(root: Expr) -> Expr:
    """Return an expression whose dataframes have their partitionwise steps fused."""
    # Dask does so when it persists a dataframe, but not when it computes one; then every step's partitions would
    # be chunks of their own.
    if not _dataframes_exist() or dask.config.get("optimization.fuse.active", None) is False:
        return root
    from dask_mars.dask_api.frames import optimize_blockwise_fusion

    return optimize_blockwise_fusion(root)


def _dataframes_exist() -> bool:
    """Return whether there can be dataframes; they need pandas, which may be missing."""
    return "dask.dataframe.dask_expr" in sys.modules


def lazy_expression(expression: Expr) -> tuple[LazyLayer, list[Expr]] | None:
    """Return an expression as a layer that is compiled when needed, or None."""
    # With it come the expressions within a fused one that need layers of their own.
    if not _dataframes_exist():
        return None
    if _is_mapped(expression):
        return LazyLayer((expression._name,), partial(MappedRecords, expression), expression._layer), []
    if _is_fused(expression):
        others = [member for member in expression.exprs if not _is_uniform(member)]
        # With several, all but one would stay in memory where Dask's single task drops them.
        if len(others) > 1 or not _is_uniform(expression.exprs[0]):
            return None
    elif _is_uniform(expression):
        others = []
    else:
        return None
    return LazyLayer((expression._name,), partial(PartitionRecords, expression), expression._layer), others


def _is_fused(expression: Expr) -> bool:
    from dask_mars.dask_api.frames import Fused

    return type(expression) is Fused


def _is_mapped(expression: Expr) -> bool:
    from dask_mars.dask_api.frames import FromMap, FromMapProjectable

    return type(expression) is FromMap or type(expression) is FromMapProjectable


def _is_uniform(expression: Expr) -> bool:
    """Return whether the tasks of all partitions certainly differ only in the partitions they read."""
    from dask_mars.dask_api import frames

    kind = type(expression)
    if not issubclass(kind, frames.Blockwise):
        return False
    if kind._layer is not Expr._layer or kind._blockwise_arg is not frames.Blockwise._blockwise_arg:
        return False
    if kind._task is frames.MapPartitions._task:
        return not expression._has_partition_info
    alike = (
        frames.Blockwise,
        frames.Apply,
        frames.BlockwiseHead,
        frames.BlockwiseHeadIndex,
        frames.BlockwiseTail,
        frames.BlockwiseTailIndex,
        frames.Index,
        frames.BlockwiseMerge,
    )
    return any(kind._task is known._task for known in alike)


def _partitions_in_memory(expression: Expr) -> dict[Key, Any] | None:
    """Return the partitions of a pandas frame of numbers, or None for others."""
    # Dask looks for text in each partition, and selects its columns, in half a millisecond.
    pandas: Any = sys.modules.get("pandas")
    if not _dataframes_exist():
        return None
    from dask_mars.dask_api.frames import FromPandas, frame_in_memory

    found = frame_in_memory(expression) if type(expression) is FromPandas else None
    if found is None:
        return None
    frame, columns, rows = found
    # Dask converts objects to text before it selects columns, which may fail.
    if type(frame) is not pandas.DataFrame or any(
        dtype.kind == "O" and isinstance(dtype, np.dtype) for dtype in frame.dtypes
    ):
        return None
    if columns is not None:
        frame = frame[columns]
    dtypes = [frame.dtype] if frame.ndim == 1 else list(frame.dtypes)
    if any(
        not isinstance(dtype, np.dtype) or dtype.kind not in "biufMm" for dtype in (*dtypes, frame.index.dtype)
    ):
        return None
    keys = [(expression._name, number) for number in range(len(rows))]
    return {key: DataNode(key, frame.iloc[part]) for key, part in zip(keys, rows, strict=True)}


def _some_of_join(expression: Expr) -> dict[Key, Any] | None:
    """Return the tasks of some partitions of a join between workers, or None for other expressions."""
    # Dask would number rows by the count of these partitions, and so return rows of others, or fail.
    if not _dataframes_exist():
        return None
    from dask_mars.dask_api.frames import HashJoinP2P

    if type(expression) is not HashJoinP2P or not expression._filtered:
        return None
    whole = expression.substitute_parameters({"_partitions": None})
    keys = [(expression._name, number) for number in range(expression.npartitions)]
    sources = [(whole._name, partition) for partition in expression._partitions]
    return {**whole._layer(), **{key: Alias(key, source) for key, source in zip(keys, sources, strict=True)}}


class _Partitions:
    """The partitions of an expression."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        """Return whether a key with the expression's name is that of a partition."""
        return len(key) == 2 and isinstance(key[1], int) and 0 <= key[1] < self._count


class PartitionRecords(_Partitions):
    """The partitions of one expression."""

    def __init__(self, expression: Expr, compiler: TaskCompiler) -> None:
        super().__init__(expression.npartitions)
        # The compiler makes callables part of the operand at their second use, so the first compilation is
        # discarded.
        _compiled(expression, 0, compiler)
        first = _compiled(expression, 0, compiler)
        last = _compiled(expression, self._count - 1, compiler)
        if not _are_alike(first, last):
            raise NotSymbolic("its partitions differ")
        #: For each input: its name if it varies with the partition, else None; and its key.
        self._inputs: list[tuple[Any, Key]] = []
        for key, other in zip(first.input_keys, last.input_keys, strict=True):
            if key == other:
                self._inputs.append((None, key))
            elif isinstance(key, tuple) and (key, other) == ((key[0], 0), (key[0], self._count - 1)):
                self._inputs.append((key[0], key))
            else:
                raise NotSymbolic("its partitions read others")
        _hold_data(last, compiler)
        self._operand = compiler.operand_of(expression._name, last)
        self._literals = tuple(last.literals)

    def record(self, key: tuple[Any, ...]) -> ChunkRecord | None:
        """Return the record of one partition."""
        if key not in self:
            return None
        partition = key[1]
        input_keys = [known if name is None else (name, partition) for name, known in self._inputs]
        return self._operand, self._literals, input_keys


class MappedRecords(_Partitions):
    """The partitions that a function returns, each of other arguments."""

    def __init__(self, expression: Expr, compiler: TaskCompiler) -> None:
        super().__init__(len(expression._partitions))
        self._compiler = compiler
        self._partitions = expression._partitions
        #: Values of each varying argument.
        self._columns = expression.iterables
        count = len(self._columns)
        tokens = [(_VARYING, number) for number in range(count)]
        task = _with_arguments(expression, self._partitions[0], tokens)
        # As in `PartitionRecords`, the first compilation is discarded.
        for _ in range(2):
            program = Program()
            compiler.emit_result(program, task, {token: program.literal(None) for token in tokens})
        _hold_data(program, compiler)
        self._operand = compiler.operand_of(expression._name, program)
        self._inputs, self._literals = program.input_keys, tuple(program.literals[count:])

    def record(self, key: tuple[Any, ...]) -> ChunkRecord | None:
        """Return the record of one partition."""
        if key not in self:
            return None
        at = self._partitions[key[1]]
        values = tuple([column[at] for column in self._columns])
        if not _PLAIN.issuperset(map(type, values)) and not all(map(self._is_literal, values)):
            raise NotSymbolic("a partition's argument is no literal")
        return self._operand, values + self._literals, self._inputs

    def _is_literal(self, value: Any) -> bool:
        program = Program()
        return self._compiler.emit_argument(program, value, {}) < 0


#: First element of placeholders.
_VARYING = object()


def _with_arguments(expression: Expr, partition: int, tokens: Sequence[Key]) -> Task:
    """Return the task of a mapped function with references in place of the arguments of a partition."""
    key = (expression._name, 0)
    task = expression._filtered_task(key, partition)
    # The selection of a column may come last.
    reading, *rest = task.args if task.args and type(task.args[0]) is Task else (task,)
    values = [column[partition] for column in expression.iterables]
    given = reading.args[: len(values)]
    if not _same([*given], values):
        raise NotSymbolic("its function takes other arguments")
    arguments = *map(TaskRef, tokens), *reading.args[len(values) :]
    read = Task(key, reading.func, *arguments, **reading.kwargs)
    return read if reading is task else Task(key, task.func, read, *rest, **task.kwargs)


def _hold_data(program: Program, compiler: TaskCompiler) -> None:
    """Let data among a program's literals be part of its operand."""
    program.hold_literals(lambda value: compiler.shared_constant(value) if _is_data(value) else None)


def _compiled(expression: Expr, partition: int, compiler: TaskCompiler) -> Program:
    key = (expression._name, partition)
    task = _fused_task(expression, key) if _is_fused(expression) else expression._task(key, partition)
    if type(task) is not Task:
        raise NotSymbolic(f"its task is a {type(task).__name__}")
    program = Program()
    compiler.emit_result(program, task, {})
    return program


def _fused_task(expression: Expr, key: tuple[str, int]) -> Task:
    """Return the task of a fused expression's partition, as Dask does, but with inputs in a fixed order."""
    inner = {}
    for member in expression.exprs:
        if _is_uniform(member):
            partition = 0 if expression._broadcast_dep(member) else key[1]
            name = (member._name, partition)
            inner[name] = member._task(name, partition)
    return Task(key, _execute_subgraph, inner, next(iter(inner)), ())


def _is_data(value: Any) -> bool:
    """Return whether a literal has no effects and no locks, for which literals are searched."""
    kind = type(value)
    if kind is list or kind is tuple:
        return all(map(_is_data, value))
    if kind is dict:
        return all(map(_is_data, value)) and all(map(_is_data, value.values()))
    return value is None or kind in _PLAIN or package_of(kind) == "pandas"


def _are_alike(one: Program, other: Program) -> bool:
    """Return whether two programs differ only in their inputs."""
    # Ids of functions do not count: some expressions make new functions for each task.
    return (
        [step[1:] for step in one.steps] == [step[1:] for step in other.steps]
        and _same(one.functions, other.functions)
        and _same(one.literals, other.literals)
    )


def _same(one: Any, other: Any) -> bool:
    """Return whether two values of programs are certainly the same."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in _PLAIN or kind is MethodType:
        return bool(one == other)
    if kind is list or kind is tuple:
        return len(one) == len(other) and all(map(_same, one, other))
    if kind is dict:
        return _same([*one.items()], [*other.items()])
    if kind is partial:
        return _same([one.func, one.args, one.keywords], [other.func, other.args, other.keywords])
    return False


_PLAIN = frozenset({int, float, str, bytes, bool, complex})
