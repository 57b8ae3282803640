"""Programs without standard streams, as under cron or `nohup`, and with few descriptors (``ulimit -n``)."""

from __future__ import annotations

import errno
import os
import resource

import dask
import dask.array as da
import pytest

from dask_mars import Runtime
from dask_mars.descriptors import hold_streams
from dask_mars.engine import resources, workforce
from dask_mars.errors import DescriptorsTooFew
from dask_mars.limits import descriptors
from tests.conftest import Scripts

CLOSED_LATER = """
import os
import dask, dask_mars
dask.config.set(scheduler=dask_mars.get)
dask.delayed(lambda: 1)().compute()
stdout = os.dup(1)
os.close(1)
dask.delayed(lambda: print("printed"))().compute()
os.dup2(stdout, 1)
"""


@pytest.mark.slow
def test_a_stream_that_the_program_closes_itself(scripts: Scripts) -> None:
    script = scripts.write("later.py", CLOSED_LATER)
    done = scripts.run(str(script), env={"PYTHONUNBUFFERED": ""}, timeout_s=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "printed\n", "")


def test_streams_that_are_closed_are_held() -> None:
    child = os.fork()
    if not child:
        code = 1
        try:
            os.closerange(0, 3)
            hold_streams()
            null = os.stat(os.devnull).st_rdev
            code = int([os.fstat(number).st_rdev for number in range(3)] != [null] * 3)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_nothing_is_opened_where_all_streams_are_open() -> None:
    before = os.listdir("/dev/fd")
    hold_streams()
    assert os.listdir("/dev/fd") == before


# -- few descriptors ----------------------------------------------------------------------------------------------


def test_too_few_are_an_error_with_numbers() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = os.listdir("/dev/fd")
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with pytest.raises(DescriptorsTooFew, match=r"num_workers=128 takes at least 400, .* `ulimit -n` is 256"):
            Runtime(num_workers=128).start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert os.listdir("/dev/fd") == before


def test_threads_do_not_take_those_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = resources.too_few_descriptors(2).needed
    monkeypatch.setattr(resources, "descriptors", lambda: (10, 10 + needed))
    with Runtime(num_workers=2) as runtime:
        assert not runtime.engine().wants_threads
        assert da.ones(10, chunks=5).sum().compute(scheduler=runtime.get) == 10
    monkeypatch.setattr(resources, "descriptors", lambda: (10, 10 + 2 * needed))
    with Runtime(num_workers=2) as runtime:
        assert runtime.engine().wants_threads


def test_the_program_may_have_opened_the_last_ones_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(workforce, "ProcessHandle", refuse)
    with (
        dask.config.set({"dask-mars.start-in-threads": False}),
        Runtime(num_workers=2) as runtime,
        pytest.raises(DescriptorsTooFew, match="num_workers=2"),
    ):
        dask.delayed(sum)([1, 2]).compute(scheduler=runtime.get)


def test_they_are_counted() -> None:
    opened, limit = descriptors()
    first, second = os.pipe()
    try:
        assert descriptors() == (opened + 2, limit)
    finally:
        os.close(first)
        os.close(second)
    assert limit == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
