"""Arrays put together from parts of chunks, which are read where they are: no part is a chunk of its own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from dask_mars.dask_api import is_gone
from dask_mars.dask_api.arrays import concatenate_shaped
from dask_mars.optimize.layers import NotSymbolic, TaskCompiler

#: Of what a store keeps in memory, the part that may stay there for those that read parts of it in place.
RESIDENT_SHARE = 4


class Residents:
    """What may stay in memory, for those that read parts of it in place.

    Parameters
    ----------
    limit_bytes : callable
        Returns how much that is; called when somebody asks for some of it.
    """

    def __init__(self, limit_bytes: Callable[[], int]) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0

    def reserve(self, size: int) -> bool:
        """Say whether there is room for so many bytes more, and take it."""
        if self._used_bytes + size > self._limit_bytes():
            return False
        self._used_bytes += size
        return True


class PartOperands:
    """The operands that put parts of their inputs together.

    Parameters
    ----------
    compiler : TaskCompiler
        Numbers them.
    name : str
        The layer that they are of.
    """

    def __init__(self, compiler: TaskCompiler, name: str) -> None:
        self._compiler = compiler
        self._name = name
        self._operands: dict[tuple[bool, ...], int] = {}

    def number(self, whole: Sequence[bool]) -> int:
        """Return the number of an operand.

        Parameters
        ----------
        whole : sequence of bool
            Of each of its inputs, whether it is taken as it is. Its literals are the slices of the others, in
            order, and how many parts there are along each axis; or the slice alone if it has one input.
        """
        pattern = tuple(whole)
        operand = self._operands.get(pattern)
        if operand is None:
            program = self._compiler.new_program()
            inputs = [program.input(at) for at in range(len(pattern))]
            parts = [
                code if is_all else program.step(operator.getitem, (code, program.literal(None)))
                for code, is_all in zip(inputs, pattern, strict=True)
            ]
            if len(parts) > 1:
                if is_gone(concatenate_shaped):
                    raise NotSymbolic("Dask has no concatenate_shaped")
                blocks = self._compiler.emit_list(program, parts)
                program.step(concatenate_shaped, (blocks, program.literal(None)))
            operand = self._operands[pattern] = self._compiler.operand_of(self._name, program)
        return operand


__all__ = ["RESIDENT_SHARE", "PartOperands", "Residents"]
