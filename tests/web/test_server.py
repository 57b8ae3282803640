"""A server in this process: where it listens, whom it puts up with, and that it leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import stat
from pathlib import Path

import pytest

pytest.importorskip("tornado")

from dask_mars.web import connections, snapshots
from dask_mars.web.security import Security
from dask_mars.web.server import serve
from dask_mars.web.sockets import bind_unix, private_directory, write_connection_file
from tests.conftest import eventually
from tests.web.conftest import Asker


def connect(server):
    """Return a connection to a server, with nothing said."""
    found = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2].strip("/"))), timeout=20)
    found.settimeout(20)
    return found


def request(server, path="/api/v1/state", head=""):
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n{head}\r\n".encode()


def is_hung_up(connection):
    """Say whether the other end has closed a connection."""
    readable, _, _ = select.select([connection], [], [], 20)
    if not readable:
        return False
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


# -- where it listens -----------------------------------------------------------------------------------------


def test_it_says_where_it_is(server):
    assert server.url.startswith("http://127.0.0.1:")
    assert len(server.token) >= 43
    assert len({server.token, server.view_token}) == 2
    for secret in (server.token, server.view_token):
        assert secret not in repr(server)
    assert f'href="{server.url}?token={server.token}"' in server._repr_html_()
    server.close()
    server.close()
    assert "closed" in repr(server)
    assert server.token not in server._repr_html_()
    with pytest.raises(ConnectionRefusedError):
        connect(server)


def test_what_it_cannot_have(monitor, server):
    with pytest.raises(OSError, match=r"in use: port \d+ of 127.0.0.1"):
        serve(monitor, port=int(server.url.rpartition(":")[2].strip("/")))
    with pytest.raises(ValueError, match="needs at least 32"):
        serve(monitor, token="short")
    # Every server has tokens of its own.
    with serve(monitor) as other:
        assert Asker(other.url, {"Authorization": f"Bearer {server.token}"}).api("state").status == 401


def test_behind_a_proxy(monitor):
    with serve(monitor, behind_proxy=True) as server:
        ask = Asker(server.url, {"X-Dask-Mars-Token": server.token, "Authorization": "token of the hub"})
        assert ask.api("state", Host="hub.example.org", Origin="https://hub.example.org").status == 200
        assert ask.api("state", Host="127.0.0.1:8899", Origin="https://hub.example.org").status == 200
        assert ask.api("state", X_Dask_Mars_Token="").status == 401
        answer = ask(f"/?token={server.token}", X_Forwarded_Proto="https")
        assert "Secure" in answer.headers["set-cookie"]


def test_a_connection_file_is_for_nobody_else(monitor, tmp_path):
    path = tmp_path / "connection.json"
    umask = os.umask(0)
    try:
        with serve(monitor, connection_file=path) as server:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            told = json.loads(path.read_text())
            assert told == {
                "url": server.url,
                "token": server.token,
                "view_token": server.view_token,
                "pid": os.getpid(),
            }
    finally:
        os.umask(umask)
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError):
        serve(monitor, connection_file=tmp_path / "nowhere" / "c.json")
    with pytest.raises(IsADirectoryError):
        write_connection_file(tmp_path, "", Security())
    assert not list(tmp_path.iterdir())


# -- unix sockets ---------------------------------------------------------------------------------------------


def over(path, text):
    """Say something over a unix socket and return what comes until it is closed."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(path))
        found = b""
        # It may be hung up on at any moment, also before it has said anything.
        with contextlib.suppress(ConnectionError):
            connection.sendall(text)
            while part := connection.recv(1 << 16):
                found += part
        return found


GET = b"GET /api/v1/state HTTP/1.1\r\nHost: whatever\r\nConnection: close\r\n\r\n"


@pytest.fixture
def short(tmp_path_factory):
    """A directory whose path is short enough for sockets."""
    return Path(tmp_path_factory.mktemp("s"))


def test_its_own_user_needs_no_token_by_a_unix_socket(monitor, short):
    path = short / "private" / "web"
    with serve(monitor, socket_path=path) as server:
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert server.token is None
        assert server.link == server.url == f"http+unix://{path}"
        assert "href" not in server._repr_html_()
        head, _, body = over(path, GET).partition(b"\r\n\r\n")
        assert b" 200 OK" in head
        assert json.loads(body)["can"] == ["cancel"]
        with pytest.raises(OSError, match="another server"):
            serve(monitor, socket_path=path)
        assert over(path, GET)
    assert not path.exists()


def test_others_are_hung_up_on_and_what_a_killed_server_has_left_goes(monitor, short, monkeypatch):
    path = short / "web"
    short.chmod(0o700)
    bind_unix(path).close()
    assert path.is_socket()
    with serve(monitor, socket_path=path):
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        monkeypatch.setattr(connections, "_ROOT", 54321)
        assert over(path, GET) == b""
        monkeypatch.undo()
        assert over(path, GET)


def test_directories_that_others_enter(tmp_path, monkeypatch):
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    with pytest.raises(PermissionError, match="0700"):
        bind_unix(open_to_all / "web")
    link = tmp_path / "link"
    link.symlink_to(private_directory(tmp_path / "mine"))
    with pytest.raises(PermissionError, match="0700"):
        private_directory(link)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError, match="0700"):
        private_directory(tmp_path / "mine")
    monkeypatch.undo()
    with pytest.raises(OSError, match="longer than"):
        bind_unix(tmp_path / "mine" / ("x" * 120))


# -- who does not behave --------------------------------------------------------------------------------------


def test_more_connections_than_it_takes(server, ask):
    """The one unused for the longest time goes; whoever asks is answered."""
    server._server.most_connections = 20
    idle = [connect(server) for _ in range(60)]
    assert ask.api("state").status == 200
    gone = 0
    assert eventually(lambda: len(server._server.descriptors()) <= 21)
    for connection in idle[:40]:
        gone += is_hung_up(connection)
    assert gone == 40
    for connection in idle:
        connection.close()


def test_who_says_nothing_is_hung_up_on(monitor, monkeypatch):
    monkeypatch.setattr(connections, "_SWEEP_S", 0.05)
    with serve(monitor) as server, connect(server) as silent, connect(server) as slow:
        slow.sendall(b"GET /api/v1/st")
        assert eventually(lambda: len(server._server._used) == 2)
        server._server.idle_s = 0.0
        assert is_hung_up(silent)
        assert is_hung_up(slow)


def test_who_reads_a_byte_at_a_time_does_not_keep_others(server, ask, monitor):
    id = monitor.add()
    lines = [{"time": 1.0, "stream": "stdout", "text": "x" * 1000}] * 5000
    monitor.log = lambda id: {"lines": lines, "truncated": False}
    with connect(server) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(request(server, f"/api/v1/computations/{id}/log"))
        for _ in range(10):
            assert slow.recv(1)
            assert ask.api("state").status == 200


def test_more_who_wait_than_it_takes(server, ask, monkeypatch):
    monkeypatch.setattr(snapshots, "MOST_WAITING", 1)
    with connect(server) as one, connect(server) as other:
        for connection in (one, other):
            connection.sendall(request(server, "/api/v1/state?after=0&wait=30"))
        # Whichever of them comes first waits.
        (refused,), _, _ = select.select([one, other], [], [], 20)
        head, _, _ = refused.recv(4096).partition(b"\r\n\r\n")
        assert b" 503 " in head.partition(b"\r\n")[0]
        assert b"retry-after: 1" in head.lower()
        assert ask.api("state").status == 200
    # Who has left makes room.
    assert eventually(lambda: ask.api("state?after=0&wait=0.01").status == 200, 20)


def test_what_is_no_http(server, ask):
    for said in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000,
    ):
        found = b""
        with connect(server) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                found += part
        assert b" 200 " not in found
        assert ask.api("state").status == 200


def test_a_body_that_never_ends(server, ask, monitor):
    path = f"/api/v1/computations/{monitor.add()}/cancel"
    head = request(server, path, "Transfer-Encoding: chunked\r\n").replace(b"GET", b"POST")
    with connect(server) as connection:
        connection.sendall(head)
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                connection.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        assert eventually(lambda: ask.api("state").status == 200)
    assert not monitor.cancelled


# -- its end --------------------------------------------------------------------------------------------------


def test_who_waits_when_it_is_closed_is_hung_up_on(monitor):
    with serve(monitor) as server:
        waiting = connect(server)
        waiting.sendall(request(server, "/api/v1/state?after=0&wait=30"))
    assert is_hung_up(waiting)
    waiting.close()


def test_a_forked_process_does_not_share_it(server, ask):
    with connect(server) as held:
        held.sendall(request(server))
        assert held.recv(1 << 16)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            try:
                left = []
                for name in os.listdir("/proc/self/fd"):
                    with contextlib.suppress(OSError):
                        left.append(os.readlink(f"/proc/self/fd/{name}"))
                os.write(write, json.dumps([one for one in left if one.startswith("socket:")]).encode())
            finally:
                os._exit(0)
        os.close(write)
        told = b""
        while part := os.read(read, 1 << 16):
            told += part
        os.close(read)
        os.waitpid(child, 0)
        served = {os.stat(number).st_ino for number in server._server.descriptors()}
        assert not served & {int(one[len("socket:[") : -1]) for one in json.loads(told)}
        # The parent's goes on.
        held.sendall(request(server))
        assert held.recv(1 << 16)
    assert ask.api("state").status == 200


SCRIPT = """
import sys
from tests.web.fakes import FakeMonitor
from dask_mars.web.server import serve

server = serve(FakeMonitor(), connection_file=sys.argv[1])
print("there", flush=True)
{end}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("end", "code"), [("", 0), ("1 / 0", 1)])
def test_it_ends_with_the_interpreter(scripts, tmp_path, end, code):
    root = str(Path(__file__).resolve().parents[2])
    done = scripts.run("-c", SCRIPT.format(end=end), str(tmp_path / "c.json"), env={"PYTHONPATH": root})
    assert (done.returncode, done.stdout) == (code, "there\n")
    assert "Error" not in done.stderr.replace("ZeroDivisionError", "")
    assert not (tmp_path / "c.json").exists()
