"""Who may ask for what, without a server."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from dask_mars.web.api import Problem
from dask_mars.web.security import Access, Security

FULL, VIEW = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
GUARDED = Security(FULL, VIEW)
HOST = {"Host": "localhost:8899"}


def refused(security: Security = GUARDED, method: str = "GET", headers: Any = HOST, **options: Any) -> int:
    with pytest.raises(Problem) as caught:
        security.check(method, headers, options.pop("cookies", {}), **options)
    assert caught.value.detail
    return caught.value.status


def test_tokens_open_what_they_are_for():
    for headers in (
        {"Authorization": f"Bearer {FULL}"},
        {"Authorization": f"bearer {FULL}"},
        {"X-Dask-Mars-Token": FULL},
        # What a proxy asks for itself is none of ours.
        {"Authorization": "Bearer of-the-hub", "X-Dask-Mars-Token": FULL},
        {"Authorization": f"Bearer {VIEW}", "X-Dask-Mars-Token": FULL},
    ):
        for method in ("GET", "POST", "PUT", "DELETE"):
            assert GUARDED.check(method, HOST | headers, {}) is Access.FULL
    headers = HOST | {"Authorization": f"Bearer {VIEW}"}
    assert GUARDED.check("GET", headers, {}) is Access.VIEW
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert refused(method=method, headers=headers | {"X-Dask-Mars": "1"}) == 403
    assert GUARDED.check("GET", HOST, {}, query_token=VIEW) is Access.VIEW
    assert refused(query_token="wrong") == 401
    assert FULL not in repr(GUARDED)
    assert VIEW not in repr(GUARDED)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Basic {FULL}"},
        {"Authorization": f"Bearer {FULL}x"},
        {"Authorization": f"Bearer {FULL[:-1]}"},
        {"Authorization": "Bearer \udcff"},
        {"X-Dask-Mars-Token": "wrong"},
    ],
)
def test_nothing_is_open_without_a_token(headers):
    assert refused(headers=HOST | headers) == 401


def test_a_cookie_needs_a_header_that_other_pages_cannot_add():
    cookies = {GUARDED.cookie: FULL}
    assert GUARDED.check("GET", HOST, cookies) is Access.FULL
    assert refused(method="POST", cookies=cookies) == 403
    assert refused(method="POST", headers=HOST | {"X-Dask-Mars": "0"}, cookies=cookies) == 403
    assert GUARDED.check("POST", HOST | {"X-Dask-Mars": "1"}, cookies) is Access.FULL
    # The token for looking in a header does not lend the cookie its force.
    assert refused(method="POST", headers=HOST | {"X-Dask-Mars-Token": VIEW}, cookies=cookies) == 403
    assert refused(cookies={GUARDED.cookie: "old"}) == 401
    assert refused(cookies={"dask-mars-another": FULL}) == 401
    # Servers on one host have cookies of their own.
    assert Security(FULL).cookie != Security(VIEW).cookie
    assert FULL not in Security(FULL).cookie


def test_hosts_and_origins():
    token = {"Authorization": f"Bearer {FULL}"}
    anywhere = Security(FULL, hosts=None, checks_origin=False)
    for host in (
        "",
        "evil.example",
        "localhost.evil.example:80",
        "169.254.0.1",
        "[",
        "localhost@e",
        "evil-localhost",
    ):
        assert refused(headers={"Host": host, **token}) == 403
        assert anywhere.check("POST", {"Host": host, **token}, {}) is Access.FULL
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8899", "[::1]:8899"):
        assert GUARDED.check("GET", {"Host": host, **token}, {}) is Access.FULL
    for origin in ("https://evil.example", "http://localhost:1", "null", "http://["):
        for method in ("GET", "POST"):
            assert refused(method=method, headers=HOST | token | {"Origin": origin}) == 403
        assert anywhere.check("POST", HOST | token | {"Origin": origin}, {}) is Access.FULL
    assert GUARDED.check("POST", HOST | token | {"Origin": "http://localhost:8899"}, {}) is Access.FULL


def test_who_needs_no_token():
    assert Security(hosts=None).check("DELETE", {}, {}, from_own_user=True) is Access.FULL
    # A server without a token is open to nobody else.
    assert refused(Security()) == 401
    security = Security(anyone=Access.VIEW, hosts=None)
    assert security.check("GET", {}, {}) is Access.VIEW
    assert refused(security, "POST", {"X-Dask-Mars": "1"}) == 403


@pytest.mark.parametrize("token", ["", "short", "x" * 31, "ä" * 40, "with space " * 4, "new\nline" * 8])
def test_tokens_that_are_none(token):
    for tokens in ((token,), (FULL, token)):
        with pytest.raises(ValueError, match="needs at least 32"):
            Security(*tokens)
    with pytest.raises(ValueError, match="must not be"):
        Security(FULL, FULL)
