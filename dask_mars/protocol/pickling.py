"""Pickling between the client and its workers.

It uses cloudpickle, so that lambdas and definitions in ``__main__`` travel by value. Large buffers go out of band,
and the caller puts them into shared memory. Dask's locks are replaced by interprocess ones.
"""

from __future__ import annotations

import copyreg
import io
import mmap
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MemberDescriptorType
from typing import Any, ClassVar

import cloudpickle
from dask.utils import SerializableLock

from dask_mars.graph.callables import attribute, package_of
from dask_mars.lazy_numpy import np, once_loaded
from dask_mars.protocol import by_value, hdf5
from dask_mars.protocol.frames import is_data_frame
from dask_mars.protocol.locks import InterprocessLock

#: Size below which buffers stay in the pickle, in bytes.
BUFFER_BYTES = 1 << 12

# Stores that pickle without their contents, or with a full copy: writes to the copy would be lost.
_IN_MEMORY = {"MemoryFileSystem": "fsspec", "MemoryStore": "zarr", "ManagedMemoryStore": "zarr"}


def _reduce_dtype(dtype: np.dtype[Any]) -> Any:
    """Reduce a dtype that is a singleton of NumPy's to its name, so that it stays that object."""
    return (np.dtype, (dtype.str,)) if np.dtype(dtype.str) is dtype else dtype.__reduce__()


#: Length of cloudpickle's reduction of a function or class by value.
_BY_VALUE = 6

# NumPy's own pickles copy the dtype, and some code compares dtypes by identity.
_DTYPES: dict[type, Callable[[Any], Any]] = {}
_ARRAYS: dict[type, Callable[[Any], Any]] = {}


#: Methods by which classes define their pickling.
_WAYS_OF_PICKLING = ("__reduce_ex__", "__reduce__", "__getstate__")


def _holds_descriptor(kind: type) -> bool:
    """Return whether instances have a file descriptor, which they would pickle as a bare number."""
    fileno = getattr(kind, "fileno", None)
    if fileno is None or fileno is io.IOBase.fileno:
        return False
    # A class with its own pickling methods reopens the file, or refuses.
    return all(getattr(kind, name, None) is getattr(object, name, None) for name in _WAYS_OF_PICKLING)


class _PlainPickler(pickle.Pickler):
    """Pickles plain values without any checks: ten times as fast."""

    dispatch_table: Any = ChainMap(_ARRAYS, _DTYPES, copyreg.dispatch_table)  # noqa: RUF012


#: Packages whose objects open no files when they are unpickled or used.
_WITHOUT_FILES = sys.stdlib_module_names | {
    "cloudpickle",
    "cytoolz",
    "dask",
    "dask_array",
    "dask_mars",
    "numpy",
    "pandas",
    "pyarrow",
    "toolz",
}


#: Packages of frames, each of which has dozens of parts.
_FRAMES = frozenset({"pandas", "pyarrow"})
#: By id: their classes whose instances need nothing of the below, and their classes and functions that are pickled
#: by name.
_plain_kinds: dict[int, type] = {}
_by_name: dict[int, Any] = {}


class _FramePickler(pickle.Pickler):
    """Pickles frames that `is_data_frame` has found: only their arrays need a look."""

    def __init__(self, file: io.BytesIO, buffers: Any, thaw: Callable[[Any], Any] | None) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers)
        reduce_array = partial(_reduce_array, thaw=thaw)
        self.dispatch_table = {**copyreg.dispatch_table, **_DTYPES, np.ndarray: reduce_array}


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar[Any] = ChainMap(_DTYPES, cloudpickle.Pickler.dispatch_table)
    thaw: Callable[[Any], Any] | None = None
    #: Pickled classes by id, as classes need not be hashable.
    kinds: dict[int, type] | None = None

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if self.kinds is not None:
            self.kinds[id(kind)] = kind
        if _plain_kinds.get(id(kind)) is kind and kind not in copyreg.dispatch_table:
            return obj.__reduce_ex__(5)
        if _by_name.get(id(obj)) is obj:
            return NotImplemented
        if kind is SerializableLock:
            return InterprocessLock, (obj.token,)
        self._refuse(kind, obj)
        if kind is CodeType:
            build, arguments = self.dispatch_table[CodeType](obj)
            return _code_of_file, (obj.co_filename, build, arguments)
        if kind.__name__ == "Dataset" and package_of(kind) == "h5py":
            reduced = hdf5.reduce_dataset(obj)
            if reduced is not None:
                return reduced
        if kind.__name__ == "File" and package_of(kind) == "partd":
            # A shuffle's files: the object removes them at its end, when copies may still read and write them.
            # Partd removes them, too, when this process exits.
            obj._explicitly_given_path = True
            return NotImplemented
        if kind is np.memmap:
            reduced = _reduce_mapped(obj)
            if reduced is not None:
                return reduced
        if kind is np.ma.MaskedArray and obj.baseclass is np.ndarray:
            return _reduce_masked(obj)
        if kind is np.ndarray:
            return _reduce_array(obj, self.thaw)
        if issubclass(kind, np.ndarray) and _is_pickled_as_array(kind):
            return _reduce_subclass(obj)
        if kind is memoryview:
            return _reduce_memoryview(obj)
        if not (kind is FunctionType or issubclass(kind, type)):
            # cloudpickle treats an object as a function if its `__class__` claims so.
            if package_of(kind) in _FRAMES and kind not in self.dispatch_table:
                _plain_kinds[id(kind)] = kind
            return NotImplemented
        reduced = super().reducer_override(obj)
        if reduced is NotImplemented and package_of(obj) in _FRAMES:
            _by_name[id(obj)] = obj
        if type(reduced) is tuple and len(reduced) == _BY_VALUE:
            if kind is type(np.dtype):
                return _dtype_class, (obj.__name__,)
            return by_value.reduce_named(obj, reduced)
        return reduced

    def _refuse(self, kind: type, obj: Any) -> None:
        """Raise for an object that only the user's process can have."""
        if issubclass(kind, SerializableLock):
            raise pickle.PicklingError(f"a {kind.__name__} may do more than lock")
        if kind is io.TextIOWrapper and obj not in (sys.stdout, sys.stderr):
            # cloudpickle would send a copy of its contents, and writes to the copy would be lost.
            raise pickle.PicklingError("an open file is in the user's process")
        if _holds_descriptor(kind) and kind not in self.dispatch_table:
            # In another process the number means another file, or none.
            raise pickle.PicklingError(f"what a {kind.__name__} has open is in the user's process")
        if kind.__name__ in _IN_MEMORY and package_of(kind) == _IN_MEMORY[kind.__name__]:
            raise pickle.PicklingError(f"the contents of a {kind.__name__} are in the user's process")
        if kind.__module__ == "unittest.mock" and _is_mock(kind):
            raise pickle.PicklingError("a mock notes its calls in the user's process")


def _dtype_class(name: str) -> type:
    """Return a class of dtypes that no module has: NumPy's errors name those of Python's numbers."""
    waiting: list[type] = [np.dtype]
    while waiting:
        kind = waiting.pop()
        if kind.__name__ == name:
            return kind
        waiting += type.__subclasses__(kind)
    raise pickle.UnpicklingError(f"NumPy has no {name} here")


def _is_mock(kind: type) -> bool:
    """Return whether a class is one of mocks: each mock has its own class, which does not pickle."""
    return any(base.__name__ == "NonCallableMock" for base in kind.__mro__)


def _reduce_memoryview(view: memoryview) -> tuple[Any, ...]:
    """Reduce a view of memory to a view of a copy; cloudpickle would return bytes."""
    data = view.tobytes()
    return _view_again, (data if view.readonly else bytearray(data), view.format, view.shape)


def _view_again(data: bytes | bytearray, form: Any, shape: Any) -> memoryview:
    return memoryview(data).cast(form, shape) if form != "B" or len(shape) != 1 else memoryview(data)


def may_open_files(kinds: Mapping[int, type]) -> bool:
    """Return whether an object of these classes, collected by `dumps`, may hold files open, or open one later."""
    for kind in kinds.values():
        package = package_of(kind)
        # Functions of compiled modules have a class of Cython's.
        if package not in _WITHOUT_FILES and not package.startswith("_cython_"):
            return True
    return False


def _code_of_file(name: str, build: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    """Create code with its file name, which tracebacks show: since 3.1.3 cloudpickle omits it."""
    return build(*arguments).replace(co_filename=name)


def dumps(
    value: Any,
    buffers: Callable[[pickle.PickleBuffer], Any] | None = None,
    thaw: Callable[[Any], Any] | None = None,
    kinds: dict[int, type] | None = None,
) -> bytes:
    """Pickle a value."""
    # `buffers` is called with each out-of-band buffer, and returns a true value to keep it in band; `thaw` with
    # each array, and returns the one to pickle instead. `kinds` receives the classes of all parts of the value,
    # except Python's own numbers, texts and containers, and those of frames of data.
    if plain_bytes(value, arrays=thaw is not frozen) is not None:
        return dumps_plain(value, buffers)
    with io.BytesIO() as file:
        if is_data_frame(value):
            _FramePickler(file, buffers, thaw).dump(value)
            return file.getvalue()
        pickler = _Pickler(file, protocol=5, buffer_callback=buffers)
        if thaw is not None:
            pickler.thaw = thaw
        pickler.kinds = kinds
        pickler.dump(value)
        return file.getvalue()


def dumps_plain(value: Any, buffers: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """Pickle a value that `plain_bytes` has found plain."""
    with io.BytesIO() as file:
        _PlainPickler(file, protocol=5, buffer_callback=buffers).dump(value)
        return file.getvalue()


loads = pickle.loads

_NUMBERS = frozenset({type(None), type(Ellipsis), bool, int, float, complex, range})
#: Dtypes of plain numbers in native byte order, and the types of their scalars.
_PLAIN_DTYPES: set[Any] = set()
_NUMPY_NUMBERS: set[type] = set()


@once_loaded
def _know_numpy(numpy: Any) -> None:
    codes, make = numpy.typecodes, numpy.dtype
    _DTYPES.update((type(make(code)), _reduce_dtype) for code in codes["All"])
    _ARRAYS[numpy.ndarray] = lambda array: _reduce_plain(array)
    _PLAIN_DTYPES.update(make(code) for code in "?" + codes["AllInteger"] + codes["AllFloat"])
    _NUMPY_NUMBERS.update(dtype.type for dtype in _PLAIN_DTYPES)


#: Maximum number of items and depth of a container to check, beyond which a check takes longer than it saves; and
#: the approximate size of a pickled number, in bytes.
_MOST_ITEMS, _DEPTH, _NUMBER_BYTES = 64, 5, 16


def plain_bytes(
    value: Any,
    arrays: bool = True,
    depth: int = _DEPTH,
    stays: Callable[[np.ndarray[Any, Any]], bool] = lambda array: False,
) -> int | None:
    """Return the approximate pickle size of a plain value."""
    # Plain values are numbers, ranges, text, NumPy's numbers, seeds and classes, arrays of numbers that are
    # writable or broadcast, and small containers of these, at most `depth` deep. None for other values. `stays`
    # says whether a contiguous array is to remain read-only, as the count of a mean is.
    kind = type(value)
    if kind in _NUMBERS:
        return _NUMBER_BYTES
    if kind is str or kind is bytes:
        return len(value)
    if kind is np.ndarray:
        if not arrays or value.dtype not in _PLAIN_DTYPES:
            return None
        if value.flags.writeable:
            return int(value.nbytes)
        if _is_broadcast(value):
            return 4 * _NUMBER_BYTES
        return int(value.nbytes) if value.flags.forc and stays(value) else None
    if kind is tuple or kind is list or kind is dict:
        if len(value) > _MOST_ITEMS or not depth:
            return None
        total = _NUMBER_BYTES
        for items in (value, value.values()) if kind is dict else (value,):
            for item in items:
                size = plain_bytes(item, arrays, depth - 1, stays)
                if size is None:
                    return None
                total += size
        return total
    if kind in _NUMPY_NUMBERS or kind is np.random.SeedSequence:
        return 4 * _NUMBER_BYTES
    # A user's own module may be called numpy_something.
    return 4 * _NUMBER_BYTES if kind is type and package_of(value) == "numpy" else None


#: Types that can be pickled without a check.
_TRAVEL = frozenset({type(None), bool, int, float, complex, str, bytes})


def is_picklable(value: Any) -> bool:
    """Return whether a value can be pickled."""
    if type(value) in _TRAVEL or (type(value) is np.ndarray and not value.dtype.hasobject):
        return True
    try:
        # Out-of-band buffers need not be copied.
        dumps(value, lambda buffer: False)
    except BaseException:
        return False
    return True


def _reduce_mapped(array: np.memmap[Any, Any]) -> tuple[Any, ...] | None:
    """Reduce a memory-mapped array to its place in the file: its data need not travel."""
    if array.filename is None or array.mode not in ("r", "r+", "w+") or not array.size:
        return None
    # The mapping starts at a page boundary, at or before the requested offset.
    page = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    mapping = np.frombuffer(array._mmap, dtype=np.uint8)  # type: ignore[attr-defined]
    start = int(mapping.__array_interface__["data"][0])
    first, last = np.lib.array_utils.byte_bounds(array)
    position = int(array.__array_interface__["data"][0]) - first
    mode = "r" if array.mode == "r" else "r+"
    array.flush()
    place = (str(array.filename), mode, page + first - start, last - first)
    return _map_again, (*place, array.shape, array.dtype, array.strides, position)


def _map_again(
    filename: str,
    mode: Any,
    offset: int,
    size: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    strides: tuple[int, ...],
    position: int,
) -> Any:
    memory = np.memmap(filename, np.uint8, mode, offset, (size,))
    return np.ndarray.__new__(np.memmap, shape, dtype, memory.data, position, strides)


def _travels_raw(dtype: np.dtype[Any]) -> bool:
    """Return whether NumPy's pickles of arrays with a dtype may lose byte order or the read-only flag."""
    if dtype.isnative and dtype.kind not in "mMV":
        return False
    return not dtype.hasobject and dtype.itemsize > 0 and (dtype.kind != "V" or dtype.names is not None)


def _with_dtype(raw: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return raw.view(dtype)


def _is_pickled_as_array(kind: type[np.ndarray[Any, Any]]) -> bool:
    """Return whether NumPy itself pickles a subclass of arrays: data in band, attributes lost."""
    # Each task on a part of a matrix, of records, or of a copied memory map would then read all of it.
    return kind not in copyreg.dispatch_table and all(
        getattr(kind, name) is getattr(np.ndarray, name)
        for name in ("__reduce_ex__", "__reduce__", "__setstate__")
    )


def _reduce_subclass(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """Reduce an array of a subclass to its data and its attributes, which threads would pass with the object."""
    kind = type(array)
    # Attributes of a memory map are valid only in its process.
    own = {} if issubclass(kind, np.memmap) else attribute(array, "__dict__", {})
    slots = filled_slots(array)
    state = (own, slots) if own or slots else None
    return _build_subclass, (kind, array.view(np.ndarray)), state, None, None, set_state


def _build_subclass(kind: type[np.ndarray[Any, Any]], array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Create an array of a subclass on the memory of another."""
    if not array.size or array.dtype.hasobject:
        return array.view(kind)
    memory = array.ravel(order="K").view(np.uint8).data
    return np.ndarray.__new__(kind, array.shape, array.dtype, memory, 0, array.strides)


UNSET = object()
#: Members that an exception's chain contains, or that groups have by their arguments.
_OF_ALL_ERRORS = frozenset({"__suppress_context__", "exceptions", "message"})


def members_of(kind: type) -> Iterator[tuple[str, bool]]:
    """Yield names of slots, and of members of Python's own classes, such as an errno, and whether it is a slot."""
    for base in kind.__mro__:
        for name, member in vars(base).items():
            # The object that lacks an attribute may be a large array, and Python's own pickles omit it.
            is_told = name not in _OF_ALL_ERRORS and (name, base) != ("obj", AttributeError)
            if type(member) is MemberDescriptorType and is_told:
                yield name, "__slots__" in vars(base)


def filled_slots(value: Any) -> dict[str, Any]:
    """Return an object's values in members of its classes; in members of Python's own classes None means unset."""
    found = {}
    for name, is_slot in members_of(type(value)):
        item = attribute(value, name, UNSET)
        if item is not UNSET and (is_slot or item is not None):
            found[name] = item
    return found


def set_state(value: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Set an object's dictionary and slots, bypassing the `__setattr__` of its class."""
    own, slots = state
    if own:
        object.__getattribute__(value, "__dict__").update(own)
    for name, item in slots.items():
        object.__setattr__(value, name, item)


def _is_broadcast(array: np.ndarray[Any, Any]) -> bool:
    """Return whether an array comes from `numpy.broadcast_to` and is large enough to preserve that."""
    if array.nbytes <= BUFFER_BYTES or array.flags.writeable or array.dtype.hasobject:
        return False
    return any(length > 1 and not stride for length, stride in zip(array.shape, array.strides, strict=True))


def _reduce_broadcast(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """Reduce an array to its repeated part: the counts of a mean, for example, are one number."""
    once = array[tuple([slice(None) if stride else slice(1) for stride in array.strides])]
    # Pickles of non-contiguous arrays lose the byte order.
    return np.broadcast_to, (once if once.flags.forc else once.copy(order="K"), array.shape)


def _reduce_array(array: np.ndarray[Any, Any], thaw: Callable[[Any], Any] | None) -> Any:
    if 0 in array.strides and _is_broadcast(array):
        return _reduce_broadcast(array)
    if thaw is not None:
        array = thaw(array)
    if _travels_raw(array.dtype):
        return _with_dtype, (array.view(f"V{array.itemsize}"), array.dtype)
    return array.__reduce_ex__(5)


def _reduce_plain(array: np.ndarray[Any, Any]) -> Any:
    return _reduce_broadcast(array) if _is_broadcast(array) else array.__reduce_ex__(5)


def _reduce_masked(array: np.ma.MaskedArray[Any, Any]) -> tuple[Any, ...]:
    """Reduce a masked array to its parts."""
    # NumPy's own way copies data and mask, creates a missing mask, and freezes a fill value that should follow the
    # dtype.
    kept = ("_mask", "_fill_value", "_hardmask", "_sharedmask", "_optinfo", "_basedict")
    return _mask_again, (array.view(np.ndarray), {name: getattr(array, name) for name in kept})


def _mask_again(data: np.ndarray[Any, Any], attributes: dict[str, Any]) -> np.ma.MaskedArray[Any, Any]:
    array = data.view(np.ma.MaskedArray)
    if attributes["_fill_value"] is not None:
        # NumPy passes this very object on to derived arrays, copies included.
        attributes["_fill_value"] = attributes["_fill_value"].copy()
    array.__dict__.update(attributes)
    return array


def frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a read-only alias of an array of the user's, for tasks elsewhere, which have only a copy."""
    # A task that tries to write runs again in the user's process, and writes to the user's own array, as under
    # threads. An empty array needs no protection.
    if not array.flags.writeable or array.dtype.hasobject or not array.size:
        return array
    # Pickles of non-contiguous arrays lose the read-only flag.
    alias = array.view() if array.flags.forc else array.copy(order="K")
    alias.flags.writeable = False
    return alias
