"""Libraries that the program has imported: workers have them from their start, whatever an import does."""

from __future__ import annotations

from pathlib import Path

import pytest

from dask_mars.protocol.forking import is_supported
from dask_mars.protocol.libraries import is_library
from tests.conftest import Scripts, eventually

pytestmark = pytest.mark.skipif(not is_supported(), reason="there are no templates here")

#: A program that imports libraries before and after dask_mars, and calls a function in a worker.
_PROGRAM = """
import contextlib, io, os, sys, time

os.sched_getaffinity = lambda pid: {0, 1}
PARENT = os.getpid()
import %s
import dask_mars
with contextlib.suppress(BaseException), contextlib.redirect_stdout(io.StringIO()):
    import %s
from dask_mars.engine import early

def here():
    return "bottleneck" in sys.modules, "cftime" in sys.modules, os.getppid() == PARENT

libraries = early._early[0].libraries
while libraries.pending():
    time.sleep(0.01)
print(libraries.is_up())
with dask_mars.Runtime(1) as runtime:
    print(*runtime.get({"x": (here,)}, "x"))
"""


def run(scripts: Scripts, tmp_path: Path, second: str = "", names: str = "bottleneck, cftime") -> list[str]:
    """Return what the program prints, with libraries of which the second one is given."""
    folder = tmp_path / "site-packages"
    folder.mkdir(exist_ok=True)
    (folder / "bottleneck.py").write_text("")
    # The import of a further module tells the template of this one.
    (folder / "cftime.py").write_text("import os, sys, colorsys\n" + second)
    first, _, after = names.partition(", ")
    # With buffers, which forks would print again.
    env = {"DASK_DASK_MARS__START_AT_IMPORT": "true", "PYTHONUNBUFFERED": ""}
    env["PYTHONPATH"] = f"{folder}:{Path.cwd()}"
    done = scripts.run("-c", _PROGRAM % (first, after), env=env)
    assert (done.stderr, done.returncode) == ("", 0)
    assert eventually(lambda: not scripts.left())
    return done.stdout.split()


#: Only in the template's fork: the program has it already, and workers are in groups of their own.
_IN_FORK = "if os.getpgid(0) != os.getpid(): "
HARMFUL = {
    "a thread": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "a file": "file = open(__file__)",
    "a semaphore": "import multiprocessing; lock = multiprocessing.get_context('fork').Lock()",
    "the end": "os._exit(3)",
}


def test_a_library_that_cannot_be_imported_is_left_out(scripts: Scripts, tmp_path: Path) -> None:
    # In the program as well.
    assert run(scripts, tmp_path, "sys.exit(3)") == ["True", "True", "False", "True"]


def test_workers_have_what_was_imported_before_and_after_dask_mars_without_its_output(
    scripts: Scripts, tmp_path: Path
) -> None:
    noise = _IN_FORK + "print('out'); print('err', file=sys.stderr); os.write(1, b'out'); os.write(2, b'err')"
    assert run(scripts, tmp_path, noise) == ["True", "True", "True", "True"]


@pytest.mark.parametrize("what", HARMFUL.values(), ids=HARMFUL)
def test_forks_come_from_the_first_template_where_a_library_would_harm_them(
    scripts: Scripts, tmp_path: Path, what: str
) -> None:
    assert run(scripts, tmp_path, _IN_FORK + what) == ["False", "False", "False", "True"]


def test_many_workers_wait_for_libraries_that_their_graph_names(scripts: Scripts, tmp_path: Path) -> None:
    program = """
import bottleneck, dask_mars, sys
from dask_mars.engine import templates
templates.FEWEST_WAITING, templates._LIBRARIES_S = 1, 600
with dask_mars.Runtime(1) as runtime:
    print(runtime.get({"x": (lambda: "bottleneck" in sys.modules,)}, "x"))
"""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "bottleneck.py").write_text("import time; time.sleep(1)")
    done = scripts.run("-c", program, env={"PYTHONPATH": f"{folder}:{Path.cwd()}"})
    assert (done.stderr, done.stdout) == ("", "True\n")


def test_libraries_do_not_count_once_modules_are_found_elsewhere(scripts: Scripts, tmp_path: Path) -> None:
    insert = "if os.getpgid(0) == os.getpid(): sys.path.insert(0, '/elsewhere')"
    assert run(scripts, tmp_path, insert) == ["False", "False", "False", "True"]
    append = "if os.getpgid(0) == os.getpid(): sys.path.append('/elsewhere')"
    assert run(scripts, tmp_path, append) == ["True", "True", "True", "True"]


def test_one_that_hangs_is_not_awaited_for_long(scripts: Scripts, tmp_path: Path) -> None:
    program = """
import os
os.sched_getaffinity = lambda pid: {0, 1}
import cftime, dask_mars, time
from dask_mars.engine import templates
templates.FEWEST_WAITING = 1
with dask_mars.Runtime(1) as runtime:
    # It needs none.
    runtime.get({"x": (abs, -1)}, "x")
templates._LIBRARIES_S = 0
with dask_mars.Runtime(1) as runtime:
    print(runtime.get({"x": (lambda: cftime.__name__,)}, "x"))
from dask_mars.engine import early
early.begin_at_import()
while early._early[0].libraries.pid() is None:
    time.sleep(0.01)
# The program ends while it hangs.
"""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "cftime.py").write_text(f"import os, time\n{_IN_FORK}time.sleep(1000)")
    env = {"DASK_DASK_MARS__START_AT_IMPORT": "true", "PYTHONPATH": f"{folder}:{Path.cwd()}"}
    done = scripts.run("-c", program, env=env)
    assert (done.stderr, done.stdout) == ("", "cftime\n")


_ENDED = """
import os, time
os.sched_getaffinity = lambda pid: {0, 1}
import bottleneck, dask_mars, psutil
from dask_mars.engine import early

def begun():
    libraries = early._early[0].libraries
    while libraries.pending():
        time.sleep(0.01)
    return len(psutil.Process().children())

print(begun(), flush=True)
if not os.fork():
    os._exit(len(psutil.Process().children()))
codes = []
while True:
    # All children that there are.
    try:
        codes.append(os.wait()[1])
    except ChildProcessError:
        break
early.begin_at_import()
print(codes, begun(), flush=True)
os.kill(os.getpid(), 9)
"""


def test_nothing_is_left_of_a_program_that_forks_and_is_killed(scripts: Scripts, tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "bottleneck.py").write_text("")
    env = {"DASK_DASK_MARS__START_AT_IMPORT": "true", "PYTHONPATH": f"{folder}:{Path.cwd()}"}
    done = scripts.run("-c", _ENDED, env=env)
    assert (done.stderr, done.stdout) == ("", "2\n[0] 2\n")
    assert eventually(lambda: not scripts.left())


def test_only_installed_libraries_are_imported(scripts: Scripts, tmp_path: Path) -> None:
    names = ["pandas", "scipy", "scipy.stats", "dask.dataframe", "sklearn.linear_model", "pyarrow.parquet"]
    assert all(map(is_library, names))
    others = ["scipy.tests", "scipy._lib", "scipy.stats.distributions", "torch", "dask.distributed", "numba.cuda"]
    assert not any(map(is_library, [*others, "__main__", "tests", "pandas_tools", "pandas.core"]))
