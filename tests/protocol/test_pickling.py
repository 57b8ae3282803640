"""What travels between processes: exceptions whatever they are made of, and locks that lock."""

from __future__ import annotations

import copyreg
import gc
import inspect
import io
import mmap
import multiprocessing
import os
import pickle
import selectors
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from copy import copy as shallow
from functools import partial
from typing import Any
from unittest import mock

import fsspec
import numpy as np
import pytest
from dask.utils import SerializableLock

from dask_mars import errors, exit_codes
from dask_mars.protocol.failures import FailureRecord, pack_error, unpack_error
from dask_mars.protocol.locks import InterprocessLock, interprocess
from dask_mars.protocol.pickling import dumps, frozen, loads, may_open_files, plain_bytes
from dask_mars.store.arena import create
from tests.background import in_background

# -- exceptions -------------------------------------------------------------------------------------------------


def raised(raiser: Callable[[], object]) -> BaseException:
    """Return the exception that a function raises, with its traceback."""
    try:
        raiser()
    except BaseException as error:
        return error
    raise AssertionError("it raises nothing")


def travelled(raiser: Callable[[], object]) -> BaseException:
    """Return an exception as it arrives in another process."""
    record = pack_error(raised(raiser))
    assert isinstance(record, FailureRecord)
    return unpack_error(pickle.loads(pickle.dumps(record, protocol=5)))


def frames(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def raise_deep_inside() -> None:
    def inner() -> None:
        raise ValueError("deep")

    inner()


def raising(error: BaseException, cause: bool = False) -> Callable[[], None]:
    """Return a function that raises an exception, perhaps because of another one."""

    def raiser() -> None:
        if not cause:
            raise error
        try:
            raise_deep_inside()
        except ValueError as deep:
            raise error from deep

    return raiser


@pytest.mark.parametrize(
    "error",
    [
        ValueError("text"),
        KeyError("key"),
        ZeroDivisionError(),
        FileNotFoundError(2, "No such file", "name"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        StopIteration(5),
        KeyboardInterrupt(),
        SystemExit(3),
        np.linalg.LinAlgError("singular"),
        errors.StoreFull(3, 2, 1),
        errors.QuotaExceeded(1 << 30, 5, 4, 3, 2, 1),
        errors.WorkerOverLimit("x", 1 << 30, 5, 4, 3, repeatable=False),
    ],
    ids=lambda error: type(error).__name__,
)
def test_ordinary_exception_arrives_as_it_is(error):
    arrived = travelled(raising(error))
    assert type(arrived) is type(error)
    assert (arrived.args, str(arrived)) == (error.args, str(error))
    assert frames(arrived)[-1] == "raiser"


class OwnExit(SystemExit):
    """Inherits a constructor that is not Python's."""


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), "object"),
        (UnicodeEncodeError("ascii", "\xff", 0, 1, "invalid"), "reason"),
        (SyntaxError("wrong", ("file", 3, 1, "text")), "lineno"),
        (StopIteration(5), "value"),
        (SystemExit(3), "code"),
        (OwnExit(3), "code"),
        (ImportError("no module", name="module"), "name"),
        (AttributeError("no such attribute", name="missing", obj=threading.Lock()), "name"),
        (NameError("no such name", name="missing"), "name"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_an_exception_keeps_outside_of_its_arguments_arrives(error, name):
    error.note = "kept"
    raiser = raising(error)

    def on_top() -> None:
        try:
            raiser()
        except BaseException as cause:
            raise RuntimeError("on top") from cause

    arrived = [travelled(raiser)]
    if not isinstance(error, OwnExit):
        arrived.append(travelled(on_top).__cause__)
    for copy in arrived:
        assert (type(copy), str(copy), copy.note) == (type(error), str(error), "kept")
        assert getattr(copy, name) == getattr(error, name)
        assert frames(copy)[-1] == "raiser"


def test_traceback_goes_on_where_the_exception_is_raised_again():
    arrived = travelled(raise_deep_inside)

    def again() -> None:
        raise arrived

    assert frames(raised(again)) == ["raised", "again", "raised", "raise_deep_inside", "inner"]


class TwoArguments(Exception):
    """Cannot be unpickled: its constructor wants more than `args` has."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code


class OtherArgument(Exception):
    """Would be unpickled wrongly: its constructor makes the message anew."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class KeywordOnly(ValueError):
    def __init__(self, *, code: int) -> None:
        super().__init__("by name")
        self.code = code


@pytest.mark.parametrize(
    "error", [TwoArguments(5, "no"), OtherArgument(5), KeywordOnly(code=5)], ids=lambda error: type(error).__name__
)
def test_exception_with_a_constructor_of_its_own_arrives(error):
    arrived = travelled(raising(error, cause=True))
    assert type(arrived) is type(error)
    assert (str(arrived), arrived.args, arrived.code) == (str(error), error.args, 5)
    assert frames(arrived)[-1] == "raiser"
    assert isinstance(arrived.__cause__, ValueError)


class BrokenReduce(Exception):
    def __reduce__(self):
        return BrokenReduce, (1, 2, 3, 4), None, None, None, None, "nonsense"


class RaisingReduce(Exception):
    def __reduce__(self):
        raise TypeError("not me")


class Trouble(RaisingReduce):
    def __str__(self) -> str:
        raise RuntimeError("no words either")


class NeverUnpickled(Exception):
    """Pickles well, but its pickle cannot be read."""

    def __reduce__(self):
        return int, ("not a number",)


@pytest.mark.parametrize("kind", [BrokenReduce, RaisingReduce, Trouble, NeverUnpickled])
def test_exception_with_a_broken_pickle_arrives_as_its_own_type(kind):
    arrived = travelled(raising(kind("text", 5)))
    assert (type(arrived), arrived.args) == (kind, ("text", 5))
    assert frames(arrived)[-1] == "raiser"


def test_attributes_that_cannot_be_pickled_stay_behind():
    error = ValueError("text")
    error.good, error.bad = 5, threading.Lock()
    arrived = travelled(raising(error, cause=True))
    assert (type(arrived), arrived.args, arrived.good) == (ValueError, ("text",), 5)
    assert isinstance(arrived.__cause__, ValueError)
    assert not hasattr(arrived, "bad")
    assert frames(arrived)[-1] == "raiser"


def test_arguments_that_cannot_be_pickled_arrive_as_text():
    error = ValueError("text", threading.Lock())
    arrived = travelled(raising(error))
    assert type(arrived) is ValueError
    assert arrived.args[0] == "text"
    assert "lock" in arrived.args[1]
    # Nor have a cause or a member of a group to be pickled.
    above = RuntimeError("above")
    above.__cause__ = error
    arrived = travelled(raising(above))
    assert (type(arrived), arrived.args) == (RuntimeError, ("above",))
    assert "several" in str(travelled(raising(ExceptionGroup("several", [error, KeyError("x")]))))


def test_exceptions_with_a_constructor_of_their_own_need_it_not():
    class Awkward(OSError):
        def __new__(cls, *args: object, secret: str = "") -> Awkward:
            if secret != "open":
                raise TypeError("no secret")
            return super().__new__(cls, *args)

        def __init__(self, *args: object, secret: str) -> None:
            super().__init__(*args)
            self.secret = secret

        @property
        def depth(self) -> int:
            return len(self.args)

    def raiser() -> None:
        try:
            raise Awkward(2, "inner", secret="open")
        except Awkward as inner:
            inner.add_note("noted")
            outer = Awkward(5, "text", secret="open")
            outer.__dict__["depth"] = 7
            raise ExceptionGroup("both", [outer, inner]) from inner

    group = travelled(raiser)
    assert type(group) is ExceptionGroup
    arrived, inner = group.exceptions
    assert [type(each).__name__ for each in (arrived, inner, group.__cause__)] == ["Awkward"] * 3
    assert (arrived.args, str(arrived), arrived.errno, arrived.secret) == (
        (5, "text"),
        "[Errno 5] text",
        5,
        "open",
    )
    assert (arrived.depth, vars(arrived)["depth"]) == (2, 7)
    assert (inner.errno, inner.__notes__) == (2, ["noted"])
    assert frames(group)[-1] == frames(inner)[-1] == "raiser"


def test_exceptions_that_cannot_be_rebuilt_are_described():
    class Local(Exception):
        lock = threading.Lock()

    arrived = travelled(raising(Local("text")))
    assert type(arrived) is RuntimeError
    assert str(arrived) == "Local: text"
    assert frames(arrived)[-1] == "raiser"


def test_a_long_chain_of_exceptions_with_their_own_constructors_arrives():
    class Wanting(Exception):
        def __init__(self, text: str, *, code: int) -> None:
            super().__init__(text)
            self.code = code

    def raiser(depth: int = 20) -> None:
        try:
            if depth:
                raiser(depth - 1)
        finally:
            raise Wanting("text", code=depth)

    error: BaseException | None = travelled(raiser)
    codes = []
    while error is not None:
        codes.append(error.code)
        error = error.__context__
    assert codes == list(range(20, -1, -1))


def test_record_that_cannot_be_read_gives_its_summary():
    for payload in (b"nonsense", dumps("no exception")):
        error = unpack_error(FailureRecord(payload, "ValueError: text"))
        assert (type(error), str(error)) == (RuntimeError, "ValueError: text")


def fact(kind: str, place: int) -> Any:
    """Return a fact of a type that errors declare, another one at each place."""
    known = {
        "Any": "503",
        "bool": True,
        "dict[str, Any]": {"status": 503},
        "dict[str, float]": {"GPU": float(place)},
        "float": 60.0,
        "int": place << 20,
        "int | None": None,
        "int | str": 7,
        "list[str]": ["node-1"],
        "object": ("x", 0),
        "str": f"reason {place}",
        "tuple[str, ...]": ("10.0.0.2",),
    }
    return known[kind]


def ours() -> Iterator[tuple[errors.MarsError, dict[str, Any]]]:
    """Yield all errors of ours, with their facts by name."""
    for _, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.MarsError) and kind is not errors.MarsError:
            parameters = inspect.signature(kind).parameters.items()
            facts = {name: fact(told.annotation, place) for place, (name, told) in enumerate(parameters, 1)}
            yield kind(*facts.values()), facts


def test_errors_of_ours_survive_pickling_with_their_facts():
    for error, _ in ours():
        for same in (pickle.loads(pickle.dumps(error)), unpack_error(pack_error(error)), shallow(error)):
            assert type(same) is type(error)
            assert (str(same), same.args, vars(same)) == (str(error), error.args, vars(error))


def test_errors_of_ours_take_their_facts_by_name():
    for error, facts in ours():
        kind = type(error)
        assert error.args == tuple(facts.values())
        if list(facts) == ["facts"]:
            continue
        assert facts == {name: getattr(error, name) for name in facts}
        same = kind(**facts)
        assert (str(same), same.args, vars(same)) == (str(error), error.args, vars(error))
        with pytest.raises(TypeError, match="argument"):
            kind(*facts.values(), "one more")
        with pytest.raises(TypeError, match="argument"):
            kind(**facts, other=1)


def test_death_by_kill_hints_at_memory_and_other_deaths_do_not():
    assert "memory" in str(errors.WorkerDied("'x'", -9, 4))
    assert "killed by signal 9 (SIGKILL)" in str(errors.WorkerDied("'x'", -9, 4))
    assert "memory" not in str(errors.WorkerDied("'x'", -11, 4))
    assert "faulthandler" in str(errors.WorkerDied("'x'", -11, 2))
    assert "faulthandler" not in str(errors.WorkerDied("'x'", -15, 2))
    assert "exit code 3" in str(errors.WorkerDied("'x'", 3, 4))
    assert exit_codes.describe_exit(-200) == "was killed by signal 200"


# -- values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["i8", ">M8[s]"])
def test_buffers_that_are_taken_stay_out_of_the_pickle(dtype):
    taken: list[pickle.PickleBuffer] = []
    value = np.arange(100_000).astype(dtype)
    data = dumps(value, lambda buffer: taken.append(buffer))
    assert len(data) < 1000
    np.testing.assert_array_equal(loads(data, buffers=taken), value)


# -- locks ------------------------------------------------------------------------------------------------------


@pytest.fixture
def lock_file(monkeypatch) -> Iterator[int]:
    """Pretend to be in an engine, whose processes all have inherited a file to lock."""
    descriptor = create("test-locks", 4096)
    monkeypatch.setattr(InterprocessLock, "descriptor", descriptor)
    yield descriptor
    os.close(descriptor)


def forked(function: Callable[[], object]) -> int:
    """Run a function in a child process and return its pid; the child's exit code is 0 if it returns truth."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = 0 if function() else 2
    finally:
        os._exit(code)


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


forks = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@forks
def test_processes_exclude_each_other(lock_file, tmp_path):
    path = tmp_path / "counter"
    path.write_text("0")

    def count() -> bool:
        lock = InterprocessLock("counter")
        for _ in range(50):
            with lock:
                value = int(path.read_text())
                time.sleep(0.0001)
                path.write_text(str(value + 1))
        return True

    children = [forked(count) for _ in range(2)]
    assert [exit_code(pid) for pid in children] == [0, 0]
    assert path.read_text() == "100"


@forks
def test_lock_held_elsewhere_is_not_had_without_waiting(lock_file):
    with InterprocessLock("name"):
        assert exit_code(forked(try_in_vain)) == 0
    assert exit_code(forked(lambda: fresh_lock("name").acquire(blocking=False))) == 0


def try_in_vain() -> bool:
    lock = fresh_lock("name")
    return not lock.acquire(blocking=False) and not lock.acquire(timeout=0.01) and not lock.locked()


def fresh_lock(token: object) -> InterprocessLock:
    """Make a lock as a process would that was not forked from one with threads and locks."""
    InterprocessLock._threads.clear()
    return InterprocessLock(token)


@forks
def test_lock_is_had_once_the_other_process_lets_go(lock_file):
    lock = InterprocessLock("name")
    lock.acquire()
    child = forked(lambda: fresh_lock("name").acquire(timeout=20.0))
    time.sleep(0.05)
    lock.release()
    assert exit_code(child) == 0


@forks
def test_lock_of_a_process_that_died_is_free(lock_file):
    assert exit_code(forked(lambda: fresh_lock("name").acquire())) == 0
    assert InterprocessLock("name").acquire(timeout=5.0)
    InterprocessLock("name").release()


@pytest.fixture(params=[True, False], ids=["in an engine", "outside"])
def anywhere(request, monkeypatch) -> None:
    if request.param:
        request.getfixturevalue("lock_file")
    else:
        monkeypatch.setattr(InterprocessLock, "descriptor", None)


@pytest.mark.usefixtures("anywhere")
def test_threads_exclude_each_other():
    lock = InterprocessLock("threads")
    with lock:
        assert lock.locked()
        assert in_background(lock.acquire, blocking=False).result(20) is False
        assert in_background(lock.acquire, timeout=0.02).result(20) is False
    assert not lock.locked()
    assert in_background(lambda: lock.acquire(blocking=False) and lock.release() is None).result(20) is True


@pytest.mark.usefixtures("anywhere")
def test_lock_survives_pickling_as_the_same_lock():
    lock = InterprocessLock("name")
    copy = loads(dumps(lock))
    assert (type(copy), copy.token, repr(copy)) == (InterprocessLock, "name", "<InterprocessLock 'name'>")
    with lock:
        for same in (copy, InterprocessLock("name")):
            assert same.locked()
            assert not same.acquire(blocking=False)
        assert not InterprocessLock("other").locked()
    with copy:
        assert lock.locked()


@pytest.mark.usefixtures("anywhere")
def test_arguments_that_a_thread_lock_refuses_are_refused():
    with pytest.raises(ValueError, match="timeout"):
        InterprocessLock("name").acquire(blocking=False, timeout=1.0)
    with pytest.raises(RuntimeError):
        InterprocessLock("name").release()


def test_lock_that_cannot_be_had_because_of_an_error_is_not_left_locked(monkeypatch):
    descriptor = create("test-locks", 4096)
    os.close(descriptor)
    monkeypatch.setattr(InterprocessLock, "descriptor", descriptor)
    lock = InterprocessLock("name")
    with pytest.raises(OSError, match="descriptor"):
        lock.acquire()
    assert not lock.locked()


def test_lock_of_dask_becomes_one_that_locks_between_processes():
    ours = interprocess(SerializableLock("token"))
    assert (type(ours), ours.token) == (InterprocessLock, "token")
    assert interprocess("anything else") == "anything else"
    lock = SerializableLock("token")
    arrived = loads(dumps({"lock": lock, "again": [lock]}))
    assert (type(arrived["lock"]), arrived["lock"].token) == (InterprocessLock, "token")
    assert arrived["again"][0] is arrived["lock"]


def test_subclass_of_dask_s_lock_stays_where_it_is():
    class CountingLock(SerializableLock):
        """Does more than to lock."""

    with pytest.raises(pickle.PicklingError, match="CountingLock"):
        dumps(CountingLock("token"))


# -- exceptions with slots ----------------------------------------------------------------------------------------


class Slotted(Exception):
    """It forbids to set what it has in slots."""

    __slots__ = ("__hidden", "empty", "number")

    def __init__(self, number: int, holds: object = None) -> None:
        super().__init__(str(number))
        object.__setattr__(self, "number", number)
        self.__hidden = holds

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("number", "empty"):
            raise AttributeError(name)
        super().__setattr__(name, value)

    def __str__(self) -> str:
        return f"number {self.number}, {self.__hidden}"


def test_axis_errors_can_be_printed():
    arrived = travelled(lambda: np.sum(np.ones(3), axis=3))
    assert type(arrived) is np.exceptions.AxisError
    assert str(arrived) == "axis 3 is out of bounds for array of dimension 1"
    assert (arrived.axis, arrived.ndim) == (3, 1)
    assert arrived.__traceback__ is not None


def test_what_exceptions_have_in_slots_arrives():
    arrived = travelled(raising(Slotted(3)))
    assert (type(arrived), str(arrived), arrived.args) == (Slotted, "number 3, None", ("3",))
    assert not hasattr(arrived, "empty")
    # What cannot be pickled stays behind.
    arrived = travelled(raising(Slotted(3, threading.Lock())))
    assert (type(arrived), arrived.number) == (Slotted, 3)


# -- masked arrays ----------------------------------------------------------------------------------------------


def masked_arrays() -> dict[str, np.ma.MaskedArray]:
    data = np.arange(2000.0).reshape(40, 50)
    structured = np.zeros(600, dtype=[("a", "f8"), ("b", "i4")])
    return {
        "plain": np.ma.masked_greater(data, 900),
        "no mask": np.ma.masked_array(data),
        "scalar": np.ma.masked_array(3.5, True),
        "hard": np.ma.masked_array(data, data % 2 == 0, hard_mask=True),
        "filled": np.ma.masked_array(data, data % 2 == 0, fill_value=-1),
        "transposed": np.ma.masked_greater(data, 900).T,
        "strided": np.ma.masked_greater(data, 900)[::2, ::-3],
        "structured": np.ma.masked_array(structured, [(True, False)] * 600),
        "objects": np.ma.masked_array(np.array([1, "a", None], dtype=object), [True, False, False]),
        "times": np.ma.masked_array(np.arange(9).astype("M8[s]"), np.arange(9) > 4),
        "empty": np.ma.masked_array(np.zeros((0, 3)), np.zeros((0, 3), bool)),
        "strings": np.ma.masked_array(np.array(["a", "bc"]), [True, False]),
    }


@pytest.mark.parametrize("name", masked_arrays())
def test_masked_arrays_arrive_as_they_were(name):
    sent = masked_arrays()[name]
    buffers: list[pickle.PickleBuffer] = []
    arrived = loads(dumps(sent, buffers.append), buffers=buffers)
    assert type(arrived) is np.ma.MaskedArray
    assert (arrived.dtype, arrived.shape) == (sent.dtype, sent.shape)
    assert (arrived.mask is np.ma.nomask) == (sent.mask is np.ma.nomask)
    np.testing.assert_array_equal(np.ma.getmaskarray(arrived), np.ma.getmaskarray(sent))
    np.testing.assert_array_equal(arrived.data, sent.data)
    assert (arrived._fill_value is None) == (sent._fill_value is None)
    np.testing.assert_array_equal(arrived.fill_value, sent.fill_value)
    assert arrived.hardmask == sent.hardmask
    assert repr(arrived) == repr(sent)


def test_data_of_masked_arrays_need_not_be_copied():
    buffers: list[pickle.PickleBuffer] = []
    sent = np.ma.masked_greater(np.arange(100_000), 5)
    dumps(sent, buffers.append)
    assert sum(buffer.raw().nbytes for buffer in buffers) == sent.data.nbytes + sent.mask.nbytes


def test_what_is_masked_stays_the_one_object():
    assert loads(dumps([np.ma.masked]))[0] is np.ma.masked


# -- arrays -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        np.broadcast_to(7, (1000, 100)),
        np.broadcast_to(np.arange(100.0), (1000, 100)),
        np.broadcast_to(np.arange(200, dtype=">i4")[::2, None], (100, 1000)),
        np.broadcast_to(np.arange(100.0).reshape(4, 1, 25), (4, 300, 25))[::-1, :, ::-3],
        np.broadcast_to(np.datetime64("2001-01-01"), (1, 2000)),
        np.broadcast_to(np.array([(1, 2.0)], dtype="i4,f8"), (3000,)),
    ],
)
def test_arrays_that_were_broadcast_travel_as_what_is_repeated_in_them(array):
    pickled = dumps({"n": array, "same": array})
    assert len(pickled) < array.nbytes / 4
    value = loads(pickled)
    assert value["n"] is value["same"]
    np.testing.assert_array_equal(value["n"], array)
    assert (value["n"].dtype, value["n"].flags.writeable) == (array.dtype, False)


def test_arrays_with_nothing_repeated_in_them_travel_as_they_are():
    once = np.lib.stride_tricks.as_strided(np.arange(1000.0), (1, 1000), (0, 8), writeable=False)
    written = np.lib.stride_tricks.as_strided(np.arange(1.0), (1000,), (0,))
    objects = np.broadcast_to(np.array([None, 3], dtype=object), (1000, 2))
    for array in (once, written, objects):
        value = loads(dumps([array]))[0]
        np.testing.assert_array_equal(value, array)
        assert value.dtype == array.dtype


def test_functions_that_travel_by_value_keep_the_file_they_are_from() -> None:
    """Tracebacks show the lines of that file, those of inner functions too."""
    names: dict[str, object] = {"__name__": "__main__"}
    source = "def outer(x):\n    return (lambda: x.no_such)()\n"
    exec(compile(source, "/a/user's/script.py", "exec"), names)
    travelled = loads(dumps(names["outer"]))
    with pytest.raises(AttributeError) as caught:
        travelled(1)
    assert [(str(entry.path), entry.lineno + 1) for entry in caught.traceback[1:]] == [
        ("/a/user's/script.py", 2),
        ("/a/user's/script.py", 2),
    ]


# -- dtypes -----------------------------------------------------------------------------------------------------


def test_a_dtype_is_the_same_object_again_where_numpy_has_one() -> None:
    """A dtype that NumPy has one object of arrives as that object, alone and with its array."""
    for dtype in map(np.dtype, set(np.typecodes["All"]) - set("SUV")):
        alone, array = loads(dumps((dtype, np.empty(2, dtype))))
        assert alone == array.dtype == dtype
        assert (alone is dtype) == (array.dtype is dtype) == (np.dtype(dtype.str) is dtype), dtype


def test_dtypes_with_more_to_them_keep_it() -> None:
    """A dtype with metadata, fields or another byte order keeps them."""
    for dtype in (np.dtype("f8", metadata={"unit": "m"}), np.dtype([("a", "O"), ("b", ">i2")]), np.dtype(">f8")):
        found = loads(dumps(np.zeros(2, dtype))).dtype
        assert found == dtype
        assert found.metadata == dtype.metadata


# -- plain values -------------------------------------------------------------------------------------------------

PLAIN: dict[str, Any] = {
    "a range": [range(3, 1 << 70, 5)],
    "literals of random numbers": (
        np.random.PCG64,
        "random",
        np.random.SeedSequence(3, spawn_key=(7,)),
        (10, 20),
        [],
        {"dtype": np.float64, "out": None},
    ),
    "sums": (
        {"n": np.broadcast_to(np.int64(7), (1, 1000)), "total": np.arange(1000.0)[np.newaxis]},
        [True, 1j, ...],
    ),
    "orders": [np.ones((3, 4), order="F"), np.arange(12).reshape(3, 4)[:, ::2], np.zeros((0, 2)), np.array(3.0)],
    "small types": [np.ones(3, code) for code in "?bBhHiIlLqQefdgFDG"],
    "numbers": [np.float32(1.5), np.int64(3), np.True_, np.complex64(1j), -0.0, float("nan"), 1 << 80, b"x", None],
}
NOT_PLAIN: dict[str, Any] = {
    "objects": np.array([1, None], dtype=object),
    "another order of bytes": np.ones(3, ">f8"),
    "times": np.array(["2000-01-01"], dtype="M8[s]"),
    "a subclass": np.ma.ones(3),
    "read-only": np.frombuffer(b"12345678", "f8"),
    "a function": len,
    "a class of the user's": type("Labelled", (str,), {}),
    "text of the user's": type("Labelled", (str,), {})("x"),
    "many": [0] * 100,
    "deep": [[[[[[[0]]]]]]],
    "a set": {1, 2},
    "a lock": SerializableLock("x"),
}


def alike(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            alike(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        for one, other in zip(found, expected, strict=True):
            alike(one, other)
    elif isinstance(expected, np.ndarray):
        assert found.dtype is np.dtype(expected.dtype.str) or found.dtype == expected.dtype
        assert (found.shape, found.flags.fnc) == (expected.shape, expected.flags.fnc)
        assert found.flags.writeable == expected.flags.writeable
        np.testing.assert_array_equal(found, expected)
    elif isinstance(expected, np.random.SeedSequence):
        assert found.state == expected.state
    else:
        assert repr(found) == repr(expected)


@pytest.mark.parametrize("value", PLAIN.values(), ids=PLAIN)
def test_plain_values_are_the_same_again(value, monkeypatch):
    assert plain_bytes(value) is not None
    fast = dumps(value)
    alike(loads(fast), value)
    buffers: list[pickle.PickleBuffer] = []
    header = dumps(value, lambda buffer: buffers.append(buffer))
    alike(pickle.loads(header, buffers=buffers), value)
    monkeypatch.setattr("dask_mars.protocol.pickling.plain_bytes", lambda value, arrays: None)
    alike(loads(dumps(value)), loads(fast))


@pytest.mark.parametrize("value", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_needs_a_look_is_not_plain(value):
    assert plain_bytes(value) is None
    assert plain_bytes((1, {"x": [value]})) is None


def test_arrays_of_the_users_are_not_plain():
    assert plain_bytes(np.ones(3), arrays=False) is None
    assert not loads(dumps([np.ones(3)], thaw=frozen))[0].flags.writeable


# -- what holds descriptors -------------------------------------------------------------------------------------


class Device:
    """Keeps the number of a descriptor, and no object that could not be pickled."""

    def __init__(self) -> None:
        self.descriptor = 0

    def fileno(self) -> int:
        return self.descriptor


class Reopened(Device):
    """Would be opened anew where it arrives."""

    def __reduce__(self) -> Any:
        return Reopened, ()


class InMemory(io.RawIOBase):
    """Has a `fileno` that raises."""


@pytest.mark.parametrize(
    "make",
    [
        Device,
        lambda: multiprocessing.Pipe()[0],
        socket.socket,
        partial(open, os.devnull, "rb"),
        partial(open, os.devnull, "rb", buffering=0),
        partial(open, os.devnull),
        tempfile.SpooledTemporaryFile,
        tempfile.NamedTemporaryFile,
        lambda: mmap.mmap(-1, 1),
        selectors.DefaultSelector,
    ],
)
def test_what_holds_a_descriptor_is_refused(make):
    held = make()
    with pytest.raises((pickle.PicklingError, TypeError)):
        dumps([held])
    with pytest.raises((pickle.PicklingError, TypeError)):
        dumps(lambda: held)
    if hasattr(held, "close"):
        held.close()


@pytest.mark.parametrize("make", [Reopened, InMemory, io.BytesIO, io.StringIO])
def test_what_holds_no_descriptor_or_is_opened_again_travels(make):
    assert type(loads(dumps([make()]))[0]) is type(make())


def test_a_file_that_pickles_by_its_path_travels(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"some text")
    with fsspec.filesystem("file").open(str(path)) as file:
        with loads(dumps(file)) as arrived:
            assert arrived.read() == b"some text"
        assert not file.closed


# -- arrays -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", [">M8[s]", ">m8[ns]", ">i4", ">c16", ">U3", ">g", [("a", ">M8[s]"), ("b", ">i2")]]
)
@pytest.mark.parametrize("index", [(), (slice(None), slice(None, None, 2)), (0,)], ids=["whole", "steps", "row"])
def test_arrays_keep_their_byte_order(code, index):
    array = np.arange(24).reshape(3, 8).astype("i2").astype(np.dtype(code))[index]
    for value in (array, frozen(array), {"in": [array]}):
        arrived = loads(dumps(value))
        found = arrived["in"][0] if isinstance(value, dict) else arrived
        assert found.dtype.str == array.dtype.str
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
    assert not loads(dumps(frozen(array))).flags.writeable


class Measured(np.ndarray):
    """An array with attributes, one of them in a slot, and with no way to set what has no name of its own."""

    __slots__ = ("__dict__", "unit")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


def measured(values: Any) -> Any:
    array = np.asarray(values).view(Measured)
    vars(array).update(station="here", notes=[1])
    object.__setattr__(array, "unit", "m")
    return array


@pytest.mark.parametrize(
    "values",
    [
        np.arange(10.0),
        np.zeros((0, 3)),
        np.array([None, "a"]),
        np.arange(6).reshape(2, 3).T,
        np.arange(3).astype(">i4"),
    ],
    ids=["numbers", "empty", "objects", "transposed", "other byte order"],
)
def test_attributes_of_arrays_of_subclasses_arrive(values):
    arrived = loads(dumps(measured(values)))
    assert type(arrived) is Measured
    assert (arrived.unit, vars(arrived)) == ("m", {"station": "here", "notes": [1]})
    assert arrived.dtype.str == values.dtype.str
    np.testing.assert_array_equal(arrived.view(np.ndarray), values)


# -- odd objects ------------------------------------------------------------------------------------------------


def test_views_of_memory_stay_views():
    numbers = memoryview(np.arange(6.0).reshape(2, 3))
    for view in (memoryview(b"abc"), memoryview(bytearray(b"abc")), numbers, numbers[::-1]):
        arrived = loads(dumps(view))
        assert (type(arrived), arrived.format, arrived.readonly) == (memoryview, view.format, view.readonly)
        assert arrived.tolist() == view.tolist()


def test_mocks_stay_where_their_calls_are_counted():
    for value in (mock.Mock(), mock.MagicMock(spec=dict), mock.AsyncMock()):
        with pytest.raises(pickle.PicklingError):
            dumps([value])
    assert loads(dumps(mock.sentinel.thing)) is mock.sentinel.thing


# -- what may hold files open -----------------------------------------------------------------------------------


class Own:
    def __init__(self, value: int) -> None:
        self.value = value


def holding(value: Any) -> Callable[[], Any]:
    return lambda: value


@pytest.mark.parametrize(
    ("value", "may_hold_files"),
    [
        ((1, "a", {"b": np.arange(3)}, slice(0, 2)), False),
        ([np.datetime64("2000-01-01"), np.ma.masked_array([1, 2], [True, False])], False),
        (partial(np.add, 1), False),
        (lambda block: block + 1, False),
        (Own, False),
        (Own(3), True),
        ({"a": [Own(3)]}, True),
        (holding(Own(3)), True),
    ],
)
def test_what_may_hold_files_is_known_when_it_is_pickled(value: Any, may_hold_files: bool) -> None:
    kinds: dict[int, type] = {}
    payload = dumps(value, kinds=kinds)
    noted = may_open_files(kinds)
    assert noted is may_hold_files
    assert type(loads(payload)) is type(value)


def test_frames_are_pickled_alike_each_time(monkeypatch):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", None], "c": pandas.Categorical(["u", "v"])}).set_index("b")
    frame.attrs["unit"] = Own(3)
    for _ in range(2):
        kinds: dict[int, type] = {}
        found = loads(dumps(frame, kinds=kinds))
        pandas.testing.assert_frame_equal(found, frame)
        assert found.attrs["unit"].value == 3
        assert {Own, pandas.DataFrame, pandas.Categorical} <= set(kinds.values())
    monkeypatch.setitem(copyreg.dispatch_table, pandas.Categorical, lambda values: (list, (values.tolist(),)))
    assert loads(dumps(frame.c.array)) == ["u", "v"]


def test_files_of_a_shuffle_outlive_the_object_that_was_pickled():
    partd = pytest.importorskip("partd")
    files = partd.Python(partd.File())
    copy = loads(dumps(files))
    copy.append({"x": [1, 2]})
    # It would remove them.
    del files
    gc.collect()
    assert copy.get("x") == [1, 2]
    copy.drop()
