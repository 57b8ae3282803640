"""Finds functions of the user's that only call libraries, without loops: they may run where library code may.

The programs it serves: ``x.map_overlap(lambda b: b[1:] - b[:-1], depth=1)``, or ``map_blocks`` with a filter of
SciPy's, of arrays in memory. In processes they wait for copies of these: 0.65 of the time.
"""

from __future__ import annotations

import builtins
import dis
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

from dask_mars.optimize.known import LIBRARIES, unfolded

#: Instructions of loops, generators, functions and classes within, and those that change what outlives the call.
_REFUSED = frozenset(
    {"FOR_ITER", "MAKE_FUNCTION", "LOAD_BUILD_CLASS", "YIELD_VALUE", "RETURN_GENERATOR", "IMPORT_NAME"}
    | {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "STORE_DEREF", "DELETE_DEREF"}
)
#: Instructions that refer to functions, modules and methods by name.
_NAMING = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD"})
#: Functions and methods that call a function many times, write files, change containers, or speak to the user.
_REFUSED_NAMES = frozenset(
    {"agg", "aggregate", "apply", "apply_along_axis", "apply_over_axes", "applymap", "curve_fit", "filter"}
    | {"fromfunction", "fromiter", "frompyfunc", "fsolve", "generic_filter", "generic_filter1d", "map", "odeint"}
    | {"geometric_transform", "least_squares", "map_blocks", "minimize", "piecewise", "pipe", "quad", "root"}
    | {"solve_ivp", "transform", "vectorize", "compute", "persist", "append", "extend", "pop", "update"}
    | {"dump", "save", "savetxt", "savez", "savez_compressed", "setdefault", "tofile"}
    | {"to_csv", "to_hdf", "to_json", "to_netcdf", "to_parquet", "to_pickle", "to_sql"}
    | {"breakpoint", "delattr", "globals", "input", "locals", "next", "print", "setattr", "sorted", "vars"}
)
#: Instructions, functions and methods that write into arrays.
_WRITING_NAMES = frozenset(
    {"STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR", "at", "byteswap", "copyto", "fill", "fill_diagonal"}
    | {"itemset", "partition", "place", "put", "put_along_axis", "putmask", "resize", "setfield", "shuffle"}
    | {"sort"}
)
_MUTABLE = frozenset({list, dict, set, bytearray})
_JUMPS = frozenset([*dis.hasjrel, *dis.hasjabs])
#: Maximum size of the code in bytes; longer ones are programs, and take long to read.
_MOST_BYTES = 2000


class Code(NamedTuple):
    """The code of a function that does no more than to call what it refers to."""

    #: The modules, functions and data that the function refers to.
    values: list[Any]
    #: Whether it writes into arrays, which may be its own.
    writes: bool
    #: Whether it takes numbers from a generator of random numbers that it refers to.
    draws: bool


def code_of(function: FunctionType) -> Code | None:
    """Return the code of a function; None if it may do more than call what it refers to."""
    code = function.__code__
    if len(code.co_code) > _MOST_BYTES:
        return None
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    try:
        values += [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:
        return None
    # Names of keyword arguments are a tuple among the constants.
    writes = any(type(constant) is tuple and "out" in constant for constant in code.co_consts)
    draws = False
    for instruction in dis.get_instructions(code):
        kind, argument = instruction.opname, instruction.argval
        if kind in _REFUSED or kind.startswith("JUMP_BACKWARD"):
            return None
        if instruction.opcode in _JUMPS and argument <= instruction.offset:
            return None
        if kind in _NAMING:
            if argument in _REFUSED_NAMES:
                return None
            if kind in ("LOAD_GLOBAL", "LOAD_NAME"):
                values.append(function.__globals__.get(argument, getattr(builtins, argument, None)))
        writes = writes or _may_write(instruction)
        draws = draws or argument == "random"
    # Of an array it may write into the user's own; in processes nothing would come of that.
    may_change = any(type(value) in _MUTABLE or (writes and hasattr(value, "__setitem__")) for value in values)
    return None if may_change else Code(values, writes, draws or any(map(_is_random, values)))


def writes_and_draws(function: Any, depth: int = 16) -> tuple[bool, bool]:
    """Return whether a function of the user's, or one that it calls, writes into arrays, and draws numbers."""
    if type(function) is partial and depth:
        return writes_and_draws(function.func, depth - 1)
    if type(function) is not FunctionType:
        return False, False
    if str(function.__globals__.get("__name__")).partition(".")[0] in LIBRARIES:
        return False, False
    code = code_of(function) if depth else None
    if code is None:
        return True, True
    inner = [writes_and_draws(value, depth - 1) for value in code.values]
    return code.writes or any(writes for writes, _ in inner), code.draws or any(draws for _, draws in inner)


def writes_of(functions: tuple[Any, ...]) -> bool:
    """Return whether functions of the user's among those of an operand write into arrays."""
    return any(writes_and_draws(function)[0] for function in unfolded(functions))


def _is_random(value: Any) -> bool:
    """Return whether a value is a generator of random numbers of NumPy's, or a method of one."""
    owner = getattr(value, "__self__", value)
    return any(str(type(each).__module__).startswith("numpy.random") for each in (value, owner))


def _may_write(instruction: dis.Instruction) -> bool:
    """Return whether an instruction writes into an array, or names a function that does."""
    kind, argument = instruction.opname, instruction.argval
    if kind == "BINARY_OP":
        # Such as `+=`.
        return instruction.argrepr.endswith("=")
    return kind in _WRITING_NAMES or argument in _WRITING_NAMES
