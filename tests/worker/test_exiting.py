"""The end of a worker process: whatever the end of an interpreter does for the user's code is done."""

from __future__ import annotations

import sys
from pathlib import Path

import dask
import pytest

from dask_mars import Runtime

MODULE = """
import atexit, builtins, ctypes, threading, time

class Noting:
    def __init__(self, path):
        self.path = path

    def __del__(self):
        self.path.touch()

def leave(folder):
    global text, noting
    text = open(folder / "written", "w")
    text.write("in a buffer")
    noting = Noting(folder / "destroyed")
    atexit.register((folder / "ended").touch)
    atexit.register(lambda: 1 / 0)
    threading.Thread(target=lambda: (time.sleep(0.2), (folder / "joined").touch())).start()
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    file = libc.fopen(bytes(folder / "by C"), b"w")
    libc.fputs(b"in a buffer too", ctypes.c_void_p(file))
    # Something else refers to the module's names.
    builtins.found_by_others = leave
"""


@pytest.mark.parametrize("kind", ["forked", pytest.param("new_interpreters", marks=pytest.mark.slow)])
def test_it_is_as_that_of_an_interpreter(kind: str, tmp_path: Path, monkeypatch, request, capfd) -> None:
    if kind != "forked":
        request.getfixturevalue(kind)
    (tmp_path / "leaves_things.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import leaves_things

    try:
        with Runtime(num_workers=1) as runtime:
            dask.delayed(leaves_things.leave)(tmp_path).compute(scheduler=runtime.get)
    finally:
        del sys.modules["leaves_things"]
    assert (tmp_path / "written").read_text() == "in a buffer"
    assert (tmp_path / "by C").read_text() == "in a buffer too"
    assert {"destroyed", "ended", "joined"} <= {path.name for path in tmp_path.iterdir()}
    error = capfd.readouterr().err
    assert "ZeroDivisionError" in error
    assert error.count("Traceback") == 1


def test_what_the_users_main_module_holds_is_destroyed(tmp_path: Path) -> None:
    def keep() -> None:
        class Noting:
            def __del__(self) -> None:
                (tmp_path / "destroyed").touch()

        sys.modules["__main__"].kept_in_main = Noting()

    with Runtime(num_workers=1) as runtime:
        dask.delayed(keep)().compute(scheduler=runtime.get)
    assert (tmp_path / "destroyed").exists()
