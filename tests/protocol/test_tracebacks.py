"""Tracebacks that travel: the frames, lines and marks of where they were made."""

from __future__ import annotations

import copyreg
import gc
import traceback
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any

import dask
import dask.array as da
import pytest

from dask_mars import config
from dask_mars.protocol import tracebacks
from dask_mars.protocol.failures import pack_error, unpack_error


@pytest.fixture(autouse=True)
def reducers_as_before() -> Iterator[None]:
    before = dict(copyreg.dispatch_table)
    yield
    copyreg.dispatch_table.clear()
    copyreg.dispatch_table.update(before)


def fails(value: Any) -> Any:
    return value + (1 / 0 if value else 2) + sum([value, int("x")])


def caught(*arguments: Any) -> BaseException:
    try:
        fails(*arguments)
    except Exception as error:
        return error
    raise AssertionError


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def with_cause_and_context() -> BaseException:
    try:
        try:
            fails(1)
        except ZeroDivisionError as cause:
            raise LookupError("behind") from cause
    except LookupError as behind:
        try:
            fails(0)
        except ValueError:
            return behind
    raise AssertionError


def of_deep_recursion() -> BaseException:
    def deeper(depth: int) -> int:
        return deeper(depth + 1)

    with pytest.raises(RecursionError) as raised:
        deeper(0)
    return raised.value


MADE = {
    **{repr(argument): partial(caught, argument) for argument in (0, 1, None, ())},
    "cause and context": with_cause_and_context,
    "group": lambda: ExceptionGroup("several", [caught(0), caught(1)]),
    "deep recursion": of_deep_recursion,
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_a_traceback_reads_as_where_it_was_made(make: Callable[[], BaseException]) -> None:
    error = make()
    assert printed(unpack_error(pack_error(error))) == printed(error)


def test_a_frame_without_columns_has_no_marks() -> None:
    frame = tracebacks.Frame(__file__, "somewhere", 5, 5, None, None, {"__name__": "m"})
    made = tracebacks.traceback_of([tuple(frame)])
    assert made is not None
    assert (made.tb_lineno, made.tb_frame.f_code.co_name) == (5, "somewhere")
    assert "^" not in "".join(traceback.format_tb(made))
    assert tracebacks.frames_of(made) == [frame]
    assert tracebacks.traceback_of([]) is None


def test_sources_that_are_gone_and_lines_that_never_were() -> None:
    frames = [
        ("<nowhere>", "<lambda>", 7, 7, 1, 4, {}),
        ("", "f", 0, 0, 0, 0, {}),
        (__file__, "g", 10**6, None, None, None, {}),
    ]
    rebuilt = tracebacks.traceback_of(frames)
    assert isinstance(rebuilt, TracebackType)
    assert len(traceback.format_tb(rebuilt)) == 3


def inner(x: Any) -> None:
    if x.ndim:
        raise LookupError("as asked for") from KeyError("behind it")


def outer(block: Any) -> Any:
    return [1, inner(block)][0] + 1  # type: ignore[operator]


def test_a_computation_that_fails_reads_as_under_threads(get: Any) -> None:
    total = (da.ones((4, 4), chunks=2) + 1).map_blocks(outer, dtype=float).sum()
    read = []
    for scheduler in ("threads", get):
        with pytest.raises(LookupError) as raised:
            total.compute(scheduler=scheduler)
        lines = printed(raised.value).splitlines()
        read.append([line for line in lines if not line.startswith("dask_mars: ")])
        assert ["dask_mars: raised by" in line for line in lines].count(True) == (scheduler is get)
    assert read[0] == read[1]


def test_a_user_s_own_folder_of_our_name_is_not_left_out() -> None:
    from dask.utils import shorten_traceback

    frames = [
        (f"/home/u/dask_mars/{name}", "f", 1, 1, 0, 1, {})
        for name in ("a.py", "dask_mars/client/backend.py", "dask_mars/runtimes.py", "examples/relief.py", "b.py")
    ]
    with dask.config.set({"admin.traceback.shorten": [config._OUR_FRAMES]}):
        shortened = shorten_traceback.shorten(tracebacks.traceback_of(frames))
    left = [frame.file.removeprefix("/home/u/dask_mars/") for frame in tracebacks.frames_of(shortened)]
    assert left == ["a.py", "examples/relief.py", "b.py"]


def test_whoever_wants_whole_tracebacks_gets_them(scripts: Any) -> None:
    program = "import dask\nimport dask_mars\nprint(dask.config.get('admin.traceback.shorten'))"
    folder = scripts.directory / "config"
    folder.mkdir()
    (folder / "dask.yaml").write_text("admin:\n  traceback:\n    shorten: []\n")
    assert scripts.run("-c", program, env={"DASK_CONFIG": str(folder)}).stdout.split() == ["[]"]
    assert any("dask_mars" in text for text in dask.config.get("admin.traceback.shorten"))


def test_a_traceback_goes_without_the_collector() -> None:
    class Held:
        pass

    held = Held()
    gone = weakref.ref(held)
    error = unpack_error(pack_error(caught(1)))
    error.held = held  # type: ignore[attr-defined]
    del held
    gc.disable()
    try:
        del error
        assert gone() is None
    finally:
        gc.enable()
