"""A service at a port: who may ask for what, with and without encryption and proxies; and how it is started."""

from __future__ import annotations

import json
import os
import signal
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import pytest
from click.testing import CliRunner

from dask_mars.errors import ServiceError
from dask_mars.web.client import connect
from tests.web.conftest import Asker
from tests.web.services import COMMAND, RunningService, listening, submission

pytest.importorskip("tornado")

BODY = submission(da.arange(4, chunks=2))
ID = "6f1ed002-ab5c-4c57-a0e2-6e1f0b6f5c11"


def connection_file(service: RunningService) -> Any:
    return json.loads((service.directory / "connection.json").read_text())


def asker(served: RunningService, token: str | None = "token", **headers: str) -> Asker:
    known = connection_file(served)
    given = {} if token is None else {"Authorization": f"Bearer {known.get(token, token)}"}
    return Asker(known["url"], {**given, **headers})


ROUTES = [
    ("GET", "/"),
    ("GET", "/app.js"),
    ("GET", "/..%2f..%2fetc/passwd"),
    ("GET", "/api/v1/state"),
    ("PUT", f"/api/v1/computations/{ID}"),
    ("DELETE", f"/api/v1/computations/{ID}"),
    ("POST", f"/api/v1/computations/{ID}/cancel"),
    ("GET", f"/api/v1/computations/{ID}/result"),
    ("HEAD", f"/api/v1/computations/{ID}/result"),
]


def test_nothing_is_said_without_a_token(served) -> None:
    for token in (None, "", "x" * 43, "-" * 20_000):
        for method, path in ROUTES:
            answer = asker(served, token)(path, method, BODY if method == "PUT" else None)
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer"), (method, path)
            assert method == "HEAD" or "token" in answer.detail
    for headers in ({"Host": "evil.example.org"}, {"Origin": "https://evil.example.org"}):
        assert asker(served, **headers)(f"/api/v1/computations/{ID}", "PUT", BODY).status == 403
    known = connection_file(served)
    assert (served.directory / "connection.json").stat().st_mode & 0o777 == 0o600
    assert known["token"] not in served.where
    # A cookie alone changes nothing: another site's page could have a browser send it, but not a header of ours.
    cookie = asker(served, None)(f"/?token={known['token']}").headers["set-cookie"].partition(";")[0]
    for method in ("PUT", "DELETE"):
        answer = asker(served, None, Cookie=cookie)(f"/api/v1/computations/{ID}", method, BODY)
        assert answer.status == 403
    # But that it is there.
    answer = asker(served, None)("/healthz")
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    with pytest.raises(ServiceError, match="this token is not the server's") as caught:
        connect(connection_file(served)["url"], "x" * 43)
    assert caught.value.status == 401


def test_who_may_only_look_changes_nothing(served) -> None:
    view = asker(served, "view_token")
    assert view.api("state").json["can"] == []
    assert asker(served).api("state").json["can"] == ["cancel", "submit"]
    id = str(uuid.uuid4())
    for method, path in [("PUT", id), ("DELETE", id), ("POST", f"{id}/cancel")]:
        answer = view(f"/api/v1/computations/{path}", method, BODY if method == "PUT" else None)
        assert answer.status == 403
        assert "looking only" in answer.detail
    assert view.api(f"computations/{id}").status == 404
    # Results are looked at.
    assert asker(served)(f"/api/v1/computations/{id}", "PUT", BODY).status == 201
    with connect(served.directory / "connection.json") as service:
        assert service.computation(id).result(100).tolist() == [0, 1, 2, 3]
    assert view.api(f"computations/{id}/result?format=json").json["value"] == [0, 1, 2, 3]
    known = connection_file(served)
    with connect(known["url"], known["view_token"]) as service, pytest.raises(ServiceError, match="looking only"):
        service.submit(da.ones(3))


def test_it_says_where_its_tokens_are_and_shows_one_in_a_terminal_alone(tmp_path: Path, monkeypatch) -> None:
    cli = pytest.importorskip("dask_mars.web.service.cli")
    file = tmp_path / "connection.json"
    file.write_text('{"token": "secret"}')
    monkeypatch.setattr(cli.front, "serve", lambda directory, listening, runner, ready: ready("http://there/"))
    arguments = ["--directory", str(tmp_path), "--port", "0"]
    lines = ["dask_mars listens at http://there/", f"its tokens are in {file}"]
    assert CliRunner().invoke(cli.main, arguments).output.splitlines() == lines
    monkeypatch.setattr(cli, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    shown = CliRunner().invoke(cli.main, arguments).output.splitlines()
    assert shown == [*lines, "open http://there/?token=secret"]
    # Without a port there is none.
    assert CliRunner().invoke(cli.main, arguments[:2]).output.splitlines() == lines[:1]


@pytest.mark.slow
def test_a_proxy_may_have_any_name_and_ctrl_c_ends_it_all(tmp_path: Path, served, scripts) -> None:
    assert [at.ip for at in listening(served)] == ["127.0.0.1"]
    directory = tmp_path / "d"
    arguments = ["--directory", str(directory), "--port", "0", "--behind-proxy"]
    # Modules are not found where it was started, which may be a directory that others write to.
    scripts.write("cloudpickle.py", "raise SystemExit('trapped')\n")
    script = f"import sys; sys.path.remove(''); {COMMAND[1]}"
    with scripts.start("-c", script, *arguments, "--num-workers", "1") as front:
        assert front.stdout.readline().startswith("dask_mars listens at http://127.0.0.1:")
        known = json.loads((directory / "connection.json").read_text())
        url = known["url"]
        assert Asker(url, {}).api("state").status == 401
        # A proxy may keep Authorization to itself.
        asks = Asker(url, {"X-Dask-Mars-Token": known["token"], "Host": "mars.example.org"})
        assert asks.api("state", Origin="https://mars.example.org").status == 200
        https = {"X_Forwarded_Proto": "https", "Authorization": ""}
        assert "Secure" in asks(f"/?token={known['token']}", **https).headers["set-cookie"]
        with connect(url, known["token"]) as service:
            assert da.ones(3).sum().compute(scheduler=service.get) == 3
        front.send_signal(signal.SIGINT)
        assert front.wait(100) == 0
        assert front.stderr.read() == ""
    assert not {"socket", "connection.json"} & set(os.listdir(directory))


def refused(directory: Path, *arguments: str) -> str:
    """Return what the command prints that cannot start."""
    cli = pytest.importorskip("dask_mars.web.service.cli")
    done = CliRunner().invoke(cli.main, ["--directory", str(directory), *arguments])
    assert done.exit_code in (1, 2), done.output
    assert "Traceback" not in done.output
    return str(done.output)


def test_what_cannot_be_is_said_at_once(tmp_path: Path, monkeypatch, served) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, said in (
        (["--directory", "/proc/nothing/here"], "cannot be made: No such file"),
        (["--directory", __file__], "cannot be made: File exists"),
        (["--directory", "x" * 120], "choose a shorter path"),
        (["--port", "70000"], "70000"),
        (["--behind-proxy"], "give --port"),
        (["--scheduler", "localhost"], "Invalid value for --scheduler: missing port number"),
        (["--socket", "/proc/socket"], "has to be a directory of your own"),
        (["--memory-limit", "much"], "memory_limit must be"),
        (["--directory", str(served.directory)], "another service uses"),
    ):
        assert said in refused(tmp_path / "d", *arguments)
    for name, value, said in (
        ("history.age", "soon", "history.age must be a duration"),
        ("history.bytes", "much", "history.bytes"),
        ("body-limit", "much", "body-limit"),
        ("token", "short", "web.token must be text of at least 32 characters"),
    ):
        with dask.config.set({f"dask-mars.web.{name}": value}):
            assert said in refused(tmp_path / "d", "--port", "0")
    assert not list(tmp_path.glob("d/socket"))
    assert not list(tmp_path.glob("d/connection.json"))
    # The one that is there is not disturbed.
    assert asker(served).api("state").status == 200
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    (other / "history.sqlite3").write_text("these are no records, and more than a hundred bytes of it " * 10)
    assert "not a database" in refused(other)


FRONT = """
import sys
import dask_mars.web.service.cli, dask_mars.web.service.front
print(sorted({"numpy", "pandas", "dask.array", "distributed"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_the_front_loads_nothing_that_computes(scripts) -> None:
    done = scripts.run("-c", FRONT)
    assert (done.stdout, done.stderr) == ("[]\n", "")
