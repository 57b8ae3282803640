"""What a server answers, with a monitor that there is not."""

from __future__ import annotations

import logging
import threading

import pytest

pytest.importorskip("tornado")

from dask_mars.web import pages
from dask_mars.web.pages import PageFile


@pytest.fixture
def page(monkeypatch):
    """A page of three files."""
    files = {
        "index.html": PageFile(b"<p>hello</p>", "text/html; charset=utf-8", '"1"'),
        "app.js": PageFile(b"export {}", "text/javascript; charset=utf-8", '"2"'),
        "vendor/a.css": PageFile(b"p {}", "text/css; charset=utf-8", '"3"'),
    }
    monkeypatch.setattr(pages, "files", lambda: files)
    return files


# -- who asks -------------------------------------------------------------------------------------------------


def test_requests_without_a_token_are_refused(without_token):
    paths = (
        "/",
        "/index.html",
        "/api/v1/state",
        "/api/v1/openapi.json",
        "/individual-plots.json",
        "/view/log",
        "/x",
    )
    for path in paths:
        for method in ("GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS"):
            answer = without_token(path, method)
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer"), (path, method)
            assert without_token(path, method, Authorization="Bearer wrong").status == 401
    # Everybody hears that the server answers, whatever it is called.
    assert without_token("/healthz", Host="10.0.0.1").json == {"status": "ok"}


def test_answers_say_which_methods_there_are(ask, monitor):
    cancel = f"/api/v1/computations/{monitor.add()}/cancel"
    for path, method, allowed in (
        ("/healthz", "TRACE", "GET, HEAD"),
        ("/api/v1/state", "POST", "GET, HEAD"),
        ("/api/v1/state", "PATCH", "GET, HEAD"),
        ("/api/v1/computations", "DELETE", "GET, HEAD"),
        ("/x", "PUT", "GET, HEAD"),
        (cancel, "HEAD", "POST"),
    ):
        answer = ask(path, method)
        assert (answer.status, answer.headers["allow"]) == (405, allowed)
    for path in ("/healthz", "/api/v1/state"):
        answer = ask(path, "HEAD")
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["content-type"] == "application/json"


def test_hosts_and_origins_that_are_not_ours(ask):
    assert "not called 'evil.example'" in ask.api("state", Host="evil.example").detail
    answer = ask.api("state", Origin="https://evil.example")
    assert answer.status == 403
    assert "access-control-allow-origin" not in answer.headers
    assert ask.api("state", Origin=ask.url.rstrip("/")).status == 200
    # What browsers ask before they let another page send more than a form.
    answer = ask.api("state", "OPTIONS", Access_Control_Request_Method="POST")
    assert answer.status == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_link_leaves_a_cookie_and_no_token_in_the_address(server, without_token, page, monitor):
    answer = without_token(f"/?token={server.token}&x=1%262")
    assert answer.status == 302
    assert answer.headers["location"] == ".?x=1%262"
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    # Without a path, so that it is that of the address which the browser sees.
    assert sorted(attributes) == ["HttpOnly", "SameSite=Strict"]
    assert without_token("/", Cookie=cookie).body == b"<p>hello</p>"
    assert without_token.api("state", Cookie=cookie).json["can"] == ["cancel"]
    cancel = f"computations/{monitor.add()}/cancel"
    assert "X-Dask-Mars: 1" in without_token.api(cancel, "POST", Cookie=cookie).detail
    assert without_token.api(cancel, "POST", Cookie=cookie, X_Dask_Mars="1").status == 202
    # One for looking.
    answer = without_token(f"/?token={server.view_token}")
    assert answer.headers["location"] == "."
    cookie = answer.headers["set-cookie"].partition(";")[0]
    assert without_token.api("state", Cookie=cookie).json["can"] == []
    cancelled = list(monitor.cancelled)
    cancel = f"computations/{monitor.add()}/cancel"
    assert without_token.api(cancel, "POST", Cookie=cookie, X_Dask_Mars="1").status == 403
    assert monitor.cancelled == cancelled


def test_links_that_are_old_or_lead_to_the_api(server, without_token):
    answer = without_token("/?token=old", Accept="text/html")
    assert answer.status == 401
    assert answer.headers["content-type"].startswith("text/html")
    assert b"started anew" in answer.body
    assert "set-cookie" not in answer.headers
    # Addresses end up in logs and in the hands of others.
    assert without_token.api(f"state?token={server.token}").status == 401


# -- what is asked --------------------------------------------------------------------------------------------


def test_what_there_is_not(ask, page):
    for path in ("/api", "/api/v1", "/api/v1/", "/api/v1/nothing", "/api/v2/state", "/nothing.js", "/healthz/x"):
        assert ask(path).status == 404, path
        assert ask(path).detail
    assert ask("/view/nothing").status == 404
    for before in ("", "/api/v1", "/api/v1/computations", "/vendor"):
        for path in ("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc/passwd", "//etc/passwd"):
            answer = ask(before + path)
            assert answer.status == 404
            assert b"root:" not in answer.body
    # Text that is none.
    assert ask.api("computations/%ff").status == 400
    assert ask.api("explain?key=%ff").status == 400


def test_what_is_too_large(ask, view, monitor):
    assert ask("/api/v1/state", X="x" * (20 << 10)).status == 431
    assert ask("/api/v1/explain?key=" + "k" * (20 << 10)).status == 414
    assert ask("/api/v1/explain?key=" + "k" * 5000).status == 400
    path = f"/api/v1/computations/{monitor.add()}/cancel"
    assert ask(path, "POST", b"x" * (65 << 10)).status == 413
    # Who may not send anything is told that first.
    assert view(path, "POST", b"x" * (65 << 10)).status == 403
    assert not monitor.cancelled
    assert ask(path, "POST", b"whatever").status == 202


def test_a_monitor_that_fails_is_a_bug(ask, monitor, nothing_left_behind, caplog):
    monitor.log = lambda id: 1 / 0
    with caplog.at_level(logging.ERROR, logger="dask_mars"):
        answer = ask.api(f"computations/{monitor.add()}/log")
    assert answer.status == 500
    assert "bug in dask_mars" in answer.detail
    assert "division" not in answer.detail
    assert "division by zero" in caplog.text
    nothing_left_behind.clear()
    assert ask.api("state").status == 200


# -- who waits ------------------------------------------------------------------------------------------------


def test_who_waits_hears_of_news(ask, monitor):
    id = monitor.add()
    known = ask.api(f"computations/{id}").json["revision"]
    found = []
    waiting = threading.Thread(
        target=lambda: found.append(ask.api(f"computations/{id}?after={known}&wait=20").json)
    )
    waiting.start()
    # Others may change meanwhile.
    monitor.add()
    monitor.change(id, state="finished")
    waiting.join(100)
    assert (found[0]["state"], found[0]["revision"]) == ("finished", known + 1)


def test_who_waits_in_vain_gets_what_there_is(ask, monitor):
    revision = ask.api("state").json["revision"]
    for query in ("&wait=0.05", ""):
        assert ask.api(f"state?after={revision}{query}").json["revision"] == revision
    # Who is of another time does not wait.
    assert ask.api("state?after=999&wait=30").json["revision"] == monitor.revision()


def test_one_question_serves_all_who_ask(ask, monitor):
    begun, go = threading.Event(), threading.Event()
    state = monitor.state

    def slow():
        begun.set()
        assert go.wait(100)
        return state()

    monitor.state = slow
    asking = [threading.Thread(target=ask.api, args=("state",)) for _ in range(5)]
    for thread in asking:
        thread.start()
    assert begun.wait(100)
    # Others are answered while the monitor takes its time.
    for _ in range(5):
        assert ask.api("computations").status == 200
    go.set()
    for thread in asking:
        thread.join(100)
    assert monitor.asked.count("state") <= 2


def test_who_cancels_sees_it_at_once(ask, monitor):
    id = monitor.add()
    assert ask.api(f"computations/{id}").json["state"] == "running"
    assert ask.api(f"computations/{id}/cancel", "POST").json == {"id": id}
    assert ask.api(f"computations/{id}").json["state"] == "cancelled"


# -- pages ----------------------------------------------------------------------------------------------------


def test_files_of_the_page(ask, page):
    for path in ("/", "/index.html", "/app.js", "/vendor/a.css"):
        answer, file = ask(path), page[path[1:] or "index.html"]
        assert (answer.body, answer.headers["content-type"]) == (file.content, file.kind)
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; ")
        assert "unsafe" not in policy
        again = ask(path, If_None_Match=answer.headers["etag"])
        assert (again.status, again.body) == (304, b"")
        assert ask(path, If_None_Match='"old"').status == 200
        head = ask(path, "HEAD")
        assert (head.status, head.body) == (200, b"")
    headers = ask.api("state").headers
    assert (headers["cache-control"], headers["referrer-policy"]) == ("no-store", "no-referrer")
    assert "server" not in headers


def test_the_real_page_is_there(ask):
    found = pages.files()
    for name, file in found.items():
        assert ask(f"/{name}").body == file.content
    kinds = {path.suffix for path in pages._PAGE.rglob("*") if path.is_file()}
    assert kinds <= set(pages._KINDS), "a file is of a type that is not served"


def test_what_labextension_asks_for(server, without_token, page):
    """It shows the token in the address, and puts it behind each path that it gets."""
    query = f"?token={server.token}"
    plots = without_token(f"/individual-plots.json{query}").json
    assert "Individual Timeline" in plots
    for route in plots.values():
        answer = without_token(route + query)
        assert answer.status == 302
        location = answer.headers["location"]
        assert location.startswith(f"../{query}#")
        # A browser keeps what is behind the `#` when it is led on.
        assert without_token(location[2:].partition("#")[0]).headers["location"] == "."
        assert without_token(route).status == 401


def test_errors_for_people_hold_no_html_of_others(ask):
    answer = ask("/<script>", Accept="text/html,*/*")
    assert answer.status == 404
    assert b"&lt;script&gt;" in answer.body
    assert b"<script>" not in answer.body
