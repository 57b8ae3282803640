"""New interpreters: scripts as people write them, and what is left when they are done."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask
import pytest
from click.testing import CliRunner

from dask_mars.__main__ import main

pytestmark = pytest.mark.timeout(300)

WITHOUT_GUARD = """
import sys
import dask, dask.array as da, dask.bag as db
import dask_mars

print("once")

class Point:
    def __init__(self, x):
        self.x = x
    def __eq__(self, other):
        return self.x == other.x

def shift(point, by=1):
    return Point(point.x + by)

LIMIT = 3

points = db.from_sequence([Point(n) for n in range(10)], npartitions=3).map(shift)
kept = points.filter(lambda point: point.x > LIMIT).compute(scheduler=dask_mars.get)
print([point.x for point in kept], type(kept[0]) is Point)
with dask.config.set(scheduler="mars"):
    print(int(da.ones((200, 200), chunks=50).sum().compute()))
    print((dask.delayed(shift)(Point(3)) == Point(4)).compute())
print(*sys.argv[1:])
"""
EXPECTED = ["once", "[4, 5, 6, 7, 8, 9, 10] True", "40000", "True"]

#: Functions that run at exit are called in reverse order.
FIRST = """
import atexit, psutil
atexit.register(lambda: print(psutil.Process().children(), flush=True))
"""
LAST = """
def inner(x):
    return 1 / x
def outer(x):
    return inner(x)
dask_mars.Runtime(1).start()
dask.delayed(outer)(0).compute(scheduler=dask_mars.get)
"""


def checked(done: Any, *lines: str) -> None:
    """Check that a script printed some lines, nothing else, and ended well."""
    assert done.stderr == ""
    assert done.stdout.splitlines() == list(lines)
    assert done.returncode == 0


def test_a_script_without_a_guard_that_an_exception_ends(scripts: Any) -> None:
    script = scripts.write("plain.py", FIRST + WITHOUT_GUARD + LAST)
    done = scripts.run(str(script), "one", "two")
    # No processes are left to functions that run at exit.
    assert done.stdout.splitlines() == [*EXPECTED, "one two", "[]"]
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert "in outer" in done.stderr
    assert "return 1 / x" in done.stderr
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert "dask_mars: raised by task 'outer-" in done.stderr
    assert "dask_mars/worker" not in done.stderr
    assert not scripts.left()


OPTIONS = """
def options():
    return sys.flags.no_user_site, sys.flags.utf8_mode, sys.warnoptions

print(options() == dask.delayed(options)().compute(scheduler=dask_mars.get))
"""


@pytest.mark.slow
def test_a_program_on_the_command_line(scripts: Any) -> None:
    options = ["-s", "-X", "utf8", "-W", "error::ImportWarning"]
    checked(scripts.run(*options, "-c", WITHOUT_GUARD + OPTIONS, "one"), *EXPECTED, "one", "True")
    assert not scripts.left()


UNIMPORTED = """
import os, sys
import dask

try:
    dask.delayed(int)().compute(scheduler="venus")
except ValueError as error:
    # Unknown names are still refused.
    print("Expected one of [distributed, mars, " in str(error))
print("dask_mars" in sys.modules, [finder for finder in sys.meta_path if type(finder).__name__ == "_Waiting"])
print(dask.delayed(os.getpid)().compute({keyword}) != os.getpid())
import dask.array as da
kept = da.random.default_rng(0).random((300, 300), chunks=100).persist({keyword})
print(hasattr(kept.dask[(kept.name, 0, 0)], "result"), "dask_mars" in sys.modules)
import dask_mars
print(dask.base.get_scheduler(scheduler="mars") is dask_mars.get)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["environment", pytest.param("keyword", marks=pytest.mark.nightly)])
def test_a_script_that_does_not_import_it(scripts: Any, way: str) -> None:
    """It is installed, and Dask knows its name."""
    keyword = "scheduler='mars'" if way == "keyword" else ""
    env = {"environment": {"DASK_SCHEDULER": "mars"}}
    done = scripts.run("-c", UNIMPORTED.format(keyword=keyword), env=env.get(way))
    checked(done, "True", "False []", "True", "True True", "True")
    assert not scripts.left()


SCRIPT = """
import sys, os
import dask
import neighbour

def pid(value):
    return os.getpid()

pids = {dask.delayed(pid)(n).compute() for n in range(3)}
print(os.getpid() in pids, __name__, sys.argv[1:], neighbour.double(21))
print(dask.delayed(neighbour.double)(4).compute())

def fail():
    raise LookupError("as asked for")
fail()
"""


@pytest.mark.slow
def test_an_unchanged_script_that_fails(scripts: Any) -> None:
    (scripts.directory / "neighbour.py").write_text("def double(x):\n    return 2 * x\n")
    script = scripts.write("unchanged.py", SCRIPT)
    done = scripts.run("-m", "dask_mars", str(script), "--flag", "-x", "one")
    assert done.stdout.splitlines() == ["False __main__ ['--flag', '-x', 'one'] 42", "8"]
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert 'unchanged.py", line 14, in fail' in done.stderr
    assert done.stderr.endswith("LookupError: as asked for\n")
    assert not scripts.left()


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[list[str]], Any]]:
    """Call the command in this process, in a directory with programs."""
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(7)\n")
    for name, text in (("package", ""), ("broken_package", "import no_such_module\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    (tmp_path / "package" / "neighbour.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "package" / "program.py").write_text(
        "import sys\nimport dask\nfrom package.neighbour import double\n"
        "print(__name__, sys.argv[1:], double(21), dask.base.get_scheduler().__module__)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with dask.config.set({}):
        yield partial(CliRunner().invoke, main)
    for name in ("package", "package.neighbour"):
        sys.modules.pop(name, None)


def test_an_unchanged_module(called: Callable[[list[str]], Any]) -> None:
    done = called(["-m", "package.program", "--one", "-m"])
    assert (done.exit_code, done.output) == (0, "__main__ ['--one', '-m'] 42 dask_mars.runtimes\n")


def test_an_unchanged_script_that_exits(called: Callable[[list[str]], Any]) -> None:
    done = called(["exits.py"])
    assert (done.exit_code, done.output) == (7, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--no-such-option"], "No such option '--no-such-option'"),
        (["missing.py"], "there is no file missing.py"),
        (["-m", "no_such_module"], "there is no module no_such_module"),
        (["-m", "no_such_package.module"], "there is no module no_such_package.module"),
        (["-m", "json.no_such_module"], "there is no module json.no_such_module"),
        (["."], "the directory . has no __main__.py"),
        ([], "Missing argument 'SCRIPT'"),
    ],
)
def test_what_cannot_be_run_is_said_without_a_traceback(
    arguments: list[str], said: str, called: Callable[[list[str]], Any]
) -> None:
    done = called(arguments)
    assert done.exit_code == 2
    assert said in done.output


def test_a_module_that_lacks_another_says_so_with_its_traceback(called: Callable[[list[str]], Any]) -> None:
    done = called(["-m", "broken_package.program"])
    assert isinstance(done.exception, ModuleNotFoundError)
    assert done.exception.name == "no_such_module"


WITHOUT_TORNADO = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tornado":
            raise ModuleNotFoundError(f"No module named {name!r}", name="tornado")

sys.meta_path.insert(0, Missing())
"""


SAYING = """
for arguments in (["dask-mars-web"], ["dask-mars-web", "--port", "0"], ["dask-mars-web", "--help"]):
    sys.argv = arguments
    try:
        from dask_mars.commands import web
        web()
    except SystemExit as error:
        print(error.code, flush=True)

import dask_mars
with dask_mars.Runtime(1) as runtime:
    try:
        runtime.serve()
    except ModuleNotFoundError as error:
        print(error, flush=True)
for arguments in (["web", "--port", "0"], ["--help"]):
    sys.argv = ["dask", "mars", *arguments]
    from dask.cli import run_cli
    try:
        run_cli()
    except SystemExit as error:
        print(error.code, flush=True)
"""


@pytest.mark.slow
def test_without_tornado_it_says_what_to_install(scripts: Any) -> None:
    done = scripts.run("-c", WITHOUT_TORNADO + SAYING, env={"COLUMNS": "300"})
    said = done.stdout + done.stderr
    assert said.count("pip install 'dask-mars[web]'") == 6, said
    assert "Traceback" not in done.stderr
    assert [line for line in done.stdout.splitlines() if line.isdigit()] == ["1", "1", "1", "1", "0"], said


NAMED = """
import dask, dask_mars
print(dask.base.get_scheduler() is dask_mars.get, dask_mars.Runtime().settings.num_workers)
print(dask.config.get('dask-mars.retries'), dask.config.get('dask-mars.cancel-grace'))
"""


@pytest.mark.slow
def test_the_scheduler_named_in_a_configuration_file(scripts: Any) -> None:
    folder = scripts.directory / "config"
    folder.mkdir()
    (folder / "dask.yaml").write_text("scheduler: mars\ndask-mars:\n  retries: 3\n")
    checked(scripts.run("-c", NAMED, env={"DASK_CONFIG": str(folder)}), "True 1", "3 200 ms")


@pytest.mark.slow
def test_the_end_while_a_thread_still_computes(scripts: Any) -> None:
    program = textwrap.dedent(
        """
        import threading, time
        import dask, dask_mars
        def compute():
            try:
                dask.delayed(time.sleep)(1000).compute(scheduler=dask_mars.get)
            except dask_mars.errors.EngineStopped:
                pass
        dask.delayed(abs)(1).compute(scheduler=dask_mars.get)
        threading.Thread(target=compute, daemon=True).start()
        time.sleep(0.3)
        print("end", flush=True)
        """
    )
    with scripts.start("-c", program) as process:
        assert process.stdout.readline() == "end\n"
        assert process.wait(100) == 0
        assert process.stderr.read() == ""
    assert not scripts.left()


@pytest.mark.slow
def test_cells_of_a_notebook_that_redefine_what_they_use(scripts: Any) -> None:
    pytest.importorskip("IPython")
    program = textwrap.dedent(
        """
        import os
        from IPython.core.interactiveshell import InteractiveShell
        # IPython warns of another environment's.
        os.environ.pop("VIRTUAL_ENV", None)
        cells = [
            "import dask, dask_mars",
            "class Point:\\n    def __init__(self, x): self.x = x",
            "def double(point): return Point(point.x * 2)",
            "print(dask.delayed(double)(Point(4)).compute(scheduler=dask_mars.get).x)",
            "def double(point): return Point(point.x * 20)",
            "print(dask.delayed(double)(Point(4)).compute(scheduler=dask_mars.get).x)",
            "class P:\\n    n = 1",
            "print(dask.delayed(lambda: P.n)().compute(scheduler=dask_mars.get))",
            "P.n = 2",
            "print(dask.delayed(lambda: P.n)().compute(scheduler=dask_mars.get))",
        ]
        shell = InteractiveShell.instance()
        for cell in cells:
            shell.run_cell(cell)
        """
    )
    checked(scripts.run("-c", program), "8", "80", "1", "2")
