"""Who may ask for what, without a server."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from dask_mars.web.security import Access, Refused, Security

FULL, VIEW = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
GUARDED = Security(FULL, VIEW)
HOST = {"Host": "localhost:8899"}


def refused(security: Security = GUARDED, method: str = "GET", headers: Any = HOST, **options: Any) -> int:
    with pytest.raises(Refused) as caught:
        security.check(method, headers, options.pop("cookies", {}), **options)
    assert caught.value.detail
    return caught.value.status


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {FULL}"},
        {"Authorization": f"bearer {FULL}"},
        {"X-Dask-Mars-Token": FULL},
        # What a proxy asks for itself is none of ours.
        {"Authorization": "Bearer of-the-hub", "X-Dask-Mars-Token": FULL},
        {"Authorization": f"Bearer {VIEW}", "X-Dask-Mars-Token": FULL},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_the_token_opens_everything(headers, method):
    assert GUARDED.check(method, HOST | headers, {}) is Access.FULL


def test_the_token_for_looking_opens_looking():
    headers = HOST | {"Authorization": f"Bearer {VIEW}"}
    assert GUARDED.check("GET", headers, {}) is Access.VIEW
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert refused(method=method, headers=headers | {"X-Dask-Mars": "1"}) == 403


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


def test_cookies_of_servers_on_one_host_are_kept_apart():
    assert Security(FULL).cookie != Security(VIEW).cookie
    assert FULL not in Security(FULL).cookie


def test_tokens_in_addresses():
    assert GUARDED.check("GET", HOST, {}, query_token=VIEW) is Access.VIEW
    assert refused(query_token="wrong") == 401


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example:80", "169.254.0.1", "[", "localhost@e"]
)
def test_hosts_that_are_not_ours(host):
    headers = {"Host": host, "Authorization": f"Bearer {FULL}"}
    assert refused(headers=headers) == 403
    assert Security(FULL, hosts=None, checks_origin=False).check("POST", headers, {}) is Access.FULL


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8899", "[::1]:8899"])
def test_hosts_that_are_ours(host):
    assert GUARDED.check("GET", {"Host": host, "X-Dask-Mars-Token": VIEW}, {}) is Access.VIEW


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:1", "null", "http://["])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_origins_that_are_not_ours(origin, method):
    headers = HOST | {"Origin": origin, "Authorization": f"Bearer {FULL}"}
    assert refused(method=method, headers=headers) == 403


def test_our_own_page_is_an_origin_of_ours():
    headers = HOST | {"Origin": "http://localhost:8899", "X-Dask-Mars-Token": FULL}
    assert GUARDED.check("POST", headers, {}) is Access.FULL
    assert Security(FULL, checks_origin=False).check("POST", headers | {"Origin": "http://hub"}, {}) is Access.FULL


def test_who_comes_by_the_socket_needs_nothing():
    assert Security(hosts=None).check("DELETE", {}, {}, from_own_user=True) is Access.FULL
    # A server without a token is open to nobody else.
    assert refused(Security()) == 401


def test_where_anyone_may_look():
    security = Security(anyone=Access.VIEW, hosts=None)
    assert security.check("GET", {}, {}) is Access.VIEW
    assert refused(security, "POST", {"X-Dask-Mars": "1"}) == 403


@pytest.mark.parametrize("token", ["", "short", "x" * 31, "ä" * 40, "with space " * 4, "new\nline" * 8])
def test_tokens_that_are_none(token):
    with pytest.raises(ValueError, match="needs at least 32"):
        Security(token)
    with pytest.raises(ValueError, match="needs at least 32"):
        Security(FULL, token)


def test_one_token_for_both():
    with pytest.raises(ValueError, match="must not be"):
        Security(FULL, FULL)


def test_tokens_are_not_shown():
    assert FULL not in repr(GUARDED)
    assert VIEW not in repr(GUARDED)
