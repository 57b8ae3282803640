"""Who may ask for what: tokens, cookies, names of hosts, origins. It decides; the handlers ask."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from urllib.parse import urlsplit

#: Bytes of a token that we make: 256 bits.
TOKEN_BYTES = 32
#: What a token that somebody else has made needs at least.
LEAST_TOKEN_LENGTH = 32
#: Methods that change nothing.
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
#: For clients behind proxies that keep ``Authorization`` to themselves, as JupyterHub's does.
TOKEN_HEADER = "X-Dask-Mars-Token"
#: What only a script of our own page can add to a request that a cookie authenticates.
CUSTOM_HEADER = "X-Dask-Mars"

#: Names by which a browser reaches its own machine.
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

#: Nothing that is not ours is loaded or asked. Notebooks on this machine may show the page in a frame.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; object-src 'none'; "
    "frame-ancestors 'self' http://localhost:* http://127.0.0.1:*"
)


class Access(IntEnum):
    """What somebody may do; each includes those before it."""

    NONE = 0
    VIEW = 1
    FULL = 2


class Refused(Exception):
    """A request that is not answered.

    Attributes
    ----------
    status : int
        Of HTTP.
    detail : str
        What is wrong, and what to do about it.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail


@dataclass(frozen=True)
class Security:
    """What a server lets whom do.

    Attributes
    ----------
    token : str or None
        Who shows this may do everything.
    view_token : str or None
        Who shows this may look.
    anyone : Access
        What may be done without either.
    hosts : frozenset of str or None
        Names by which the server may be called, without ports. Others are the doing of somebody who has had their
        own name lead to this machine, so that a browser takes our answers for theirs. None for any name.
    checks_origin : bool
        Whether pages of other origins are refused whatever they show. A proxy that changes the name of the host
        makes our own page look like one.
    """

    token: str | None = field(default=None, repr=False)
    view_token: str | None = field(default=None, repr=False)
    anyone: Access = Access.NONE
    hosts: frozenset[str] | None = LOCAL_NAMES
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
        """Name of the cookie: browsers send cookies of one host to all its ports."""
        return "dask-mars-" + hashlib.sha256((self.token or self.view_token or "").encode()).hexdigest()[:16]

    def access_by(self, token: str | None) -> Access:
        """Return what a token opens."""
        if token is None:
            return Access.NONE
        found = Access.NONE
        # Both are compared whatever comes of the first, so that the time tells nothing.
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
        """Return what a request may do.

        Parameters
        ----------
        method : str
            Of the request, in capitals.
        headers : mapping
            Of the request. Names must be found in any case.
        cookies : mapping
            Of the request.
        query_token : str, optional
            A token in the address, where that is allowed.
        from_own_user : bool, optional
            It came by a socket that leads to nobody but the server's own user.

        Raises
        ------
        Refused
            401 without a token that opens anything, 403 for hosts and origins that are not ours and for methods
            that need more than was shown.
        """
        if from_own_user:
            return Access.FULL
        self._check_host(headers.get("Host", ""))
        self._check_origin(headers)
        shown = [bearer(headers.get("Authorization")), headers.get(TOKEN_HEADER), query_token]
        by_token = max([self.access_by(token) for token in shown])
        by_cookie = self.access_by(cookies.get(self.cookie))
        access = max(by_token, by_cookie, self.anyone)
        if access is Access.NONE:
            if any(shown) or self.cookie in cookies:
                raise Refused(401, "this token is not the server's; it may have been started anew since")
            raise Refused(401, "show a token: 'Authorization: Bearer ...', or ?token=... in a browser")
        if method not in SAFE_METHODS:
            if access is not Access.FULL:
                raise Refused(403, "this token is for looking only")
            if by_token is not Access.FULL and headers.get(CUSTOM_HEADER) != "1":
                raise Refused(403, f"with a cookie this needs the header '{CUSTOM_HEADER}: 1'")
        return access

    def _check_host(self, host: str) -> None:
        if self.hosts is None:
            return
        name = host_name(host)
        if name not in self.hosts:
            raise Refused(403, f"this server is not called {name!r}; name its hosts, or start it for a proxy")

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        origin = headers.get("Origin")
        if origin is not None and self.checks_origin and origin.partition("://")[2] != headers.get("Host"):
            raise Refused(403, f"requests of pages from {origin!r} are not answered")


def bearer(authorization: str | None) -> str | None:
    """Return the token in a header ``Authorization``, if there is one.

    >>> bearer("Bearer abc")
    'abc'
    >>> bearer("Basic abc")
    """
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def host_name(host: str) -> str:
    """Return the name in a header ``Host``, without the port.

    >>> host_name("LocalHost:8899"), host_name("[::1]:8899")
    ('localhost', '::1')
    """
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_local(address: str) -> bool:
    """Say whether nobody but this machine reaches an address.

    >>> is_local("127.0.0.1"), is_local("localhost"), is_local("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _is_plain(token: str) -> bool:
    """Say whether a token can stand in a header and in a cookie as it is."""
    return all(letter.isascii() and (letter.isalnum() or letter in "-._~+/=") for letter in token)
