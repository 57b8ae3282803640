"""Access control: tokens, cookies, names of hosts, origins. Handlers call it; it does no I/O."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from urllib.parse import urlsplit

from dask_mars.web.api import Problem

#: Size of a generated token, in bytes: 256 bits.
TOKEN_BYTES = 32
#: Smallest length of a token from the settings, in characters.
LEAST_TOKEN_LENGTH = 32
#: Methods without side effects.
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
#: Header for clients behind proxies that do not forward ``Authorization``, such as JupyterHub's.
TOKEN_HEADER = "X-Dask-Mars-Token"
#: Header that only scripts of our own page can add to a request that a cookie authenticates.
CUSTOM_HEADER = "X-Dask-Mars"

#: Names by which a browser reaches its own machine.
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

#: Allows only our own resources. Notebooks on this machine may show the page in a frame.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; object-src 'none'; "
    "frame-ancestors 'self' http://localhost:* http://127.0.0.1:*"
)


class Access(IntEnum):
    """Levels of access; each includes those before it."""

    NONE = 0
    VIEW = 1
    FULL = 2


@dataclass(frozen=True)
class Security:
    """The access rules of a server."""

    token: str | None = field(default=None, repr=False)
    view_token: str | None = field(default=None, repr=False)
    anyone: Access = Access.NONE
    #: Accepted names of the server: another one may be an attacker's that resolves to this machine. None for any.
    hosts: frozenset[str] | None = LOCAL_NAMES
    #: Whether to refuse pages of other origins. Behind a proxy our own page may look like one.
    checks_origin: bool = True

    def __post_init__(self) -> None:
        for token in (self.token, self.view_token):
            if token is not None and (len(token) < LEAST_TOKEN_LENGTH or not _is_plain(token)):
                raise ValueError(
                    f"a token needs at least {LEAST_TOKEN_LENGTH} letters, digits or any of -._~+/=; "
                    "secrets.token_urlsafe(32) makes one"
                )
        if self.token is not None and self.token == self.view_token:
            raise ValueError("the token for looking must not be the one for everything")

    @property
    def cookie(self) -> str:
        """Name of the cookie, unique for the token: browsers send cookies of one host to all its ports."""
        return "dask-mars-" + hashlib.sha256((self.token or self.view_token or "").encode()).hexdigest()[:16]

    def access_by(self, token: str | None) -> Access:
        """Return the access of a token."""
        if token is None:
            return Access.NONE
        found = Access.NONE
        # Both are always compared, so that the time reveals nothing.
        for ours, access in ((self.view_token, Access.VIEW), (self.token, Access.FULL)):
            if ours is not None and hmac.compare_digest(ours.encode(), token.encode("utf-8", "replace")):
                found = access
        return found

    def check(
        self,
        method: str,
        headers: Mapping[str, str],
        cookies: Mapping[str, str],
        *,
        query_token: str | None = None,
        from_own_user: bool = False,
    ) -> Access:
        """Return the access of a request."""
        if from_own_user:
            return Access.FULL
        name = host_name(headers.get("Host", ""))
        if self.hosts is not None and name not in self.hosts:
            raise Problem(403, f"this server is not called {name!r}; start it for a proxy")
        origin = headers.get("Origin")
        if origin is not None and self.checks_origin and origin.partition("://")[2] != headers.get("Host"):
            raise Problem(403, f"requests of pages from {origin!r} are not answered")
        shown = [bearer(headers.get("Authorization")), headers.get(TOKEN_HEADER), query_token]
        by_token = max([self.access_by(token) for token in shown])
        by_cookie = self.access_by(cookies.get(self.cookie))
        access = max(by_token, by_cookie, self.anyone)
        if access is Access.NONE:
            text = "show a token: 'Authorization: Bearer ...', or ?token=... in a browser"
            if any(shown) or self.cookie in cookies:
                text = "this token is not the server's; it may have been started anew since"
            raise Problem(401, text, {"WWW-Authenticate": "Bearer"})
        if method not in SAFE_METHODS:
            if access is not Access.FULL:
                raise Problem(403, "this token is for looking only")
            if by_token is not Access.FULL and headers.get(CUSTOM_HEADER) != "1":
                raise Problem(403, f"with a cookie this needs the header '{CUSTOM_HEADER}: 1'")
        return access


def bearer(authorization: str | None) -> str | None:
    """Return the token in a header ``Authorization``, if there is one."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def host_name(host: str) -> str:
    """Return the name in a header ``Host``, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_plain(token: str) -> bool:
    """Return whether a token needs no quoting in a header and in a cookie."""
    return all(letter.isascii() and (letter.isalnum() or letter in "-._~+/=") for letter in token)
