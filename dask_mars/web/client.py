"""A service as its users see it: submit, follow, cancel, fetch, from any process.

A computation belongs to the service, and its id is chosen here: a request whose answer was lost is made again
without a second computation.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np

from dask_mars import units
from dask_mars.errors import Cancelled, ComputationFailed, ServiceError
from dask_mars.web import wire
from dask_mars.web.address import find
from dask_mars.web.connection import Connection, Download
from dask_mars.web.monitor import OVER, Json
from dask_mars.web.pickles import pack, unpack
from dask_mars.web.versions import versions

#: How long the service is asked to wait for news; it is asked again.
_WAIT_S = 20
#: How long `connect` tries: a service that has just been started takes a while.
_FIRST_PATIENCE_S = 2.0
#: How long a computation may take to turn up that was to be cancelled while it was being submitted.
_CANCEL_S = 1.0
#: Characters of an error's message in a line.
_MESSAGE_CHARACTERS = 200


def connect(address: str | os.PathLike[str] | None = None, token: str | None = None) -> Service:
    """Connect to a service that `dask-mars-web` runs.

    Parameters
    ----------
    address : str or path, optional
        A URL such as ``"https://host:8899"``; the path of a unix socket, of a service's directory or of its
        connection file. Default: ``dask-mars.web.address``, else this user's service on this machine.
    token : str, optional
        What proves that you may. Default: ``dask-mars.web.token``, or what the connection file says.

    Raises
    ------
    ServiceUnreachable
        There is none.
    ServiceError
        It does not let you in.

    Examples
    --------
    >>> service = dask_mars.connect()  # doctest: +SKIP
    >>> x.compute(scheduler=service.get)  # doctest: +SKIP
    """
    service = Service(Connection(find(address, token)))
    service._connection.ask("GET", "state", patience_s=_FIRST_PATIENCE_S)
    return service


class Service:
    """A service that computes, wherever it is. `connect` makes these."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, dsk: Any, keys: Any, **options: Any) -> Any:
        """Compute keys of a Dask graph there: a Dask scheduler, as in ``x.compute(scheduler=service.get)``.

        Ctrl-C cancels the computation. One whose process is killed goes on, and can be fetched.

        Parameters
        ----------
        dsk : mapping or Dask expression
            The graph.
        keys : key or nested list of keys
            What to compute.
        **options
            ``num_workers`` and ``retries``, as `dask_mars.get` takes them, and ``name``. Others are ignored.

        Raises
        ------
        Exception
            Whatever a task raises.
        Cancelled
            Somebody has cancelled it.
        ServiceError
            The service refused.
        """
        computation = RemoteComputation(self._connection, str(uuid.uuid4()))
        try:
            self._put(computation.id, "graph", (dsk, keys), options)
            return computation.result()
        except KeyboardInterrupt:
            computation._abandon()
            raise

    def submit(
        self, x: Any, name: str = "", num_workers: int | None = None, retries: int | None = None
    ) -> RemoteComputation:
        """Have a Dask collection computed there, and do not wait.

        Parameters
        ----------
        x : Dask collection
            What to compute, or lists, dicts and tuples of such.
        name : str, optional
            For whoever looks.
        num_workers, retries : int, optional
            As `dask_mars.get` takes them.

        Returns
        -------
        RemoteComputation
            Its ``id`` finds it again from any process: ``service.computation(id)``.

        Raises
        ------
        ServiceError
            The service refused.
        """
        computation = RemoteComputation(self._connection, str(uuid.uuid4()))
        options = {"name": name, "num_workers": num_workers, "retries": retries}
        self._put(computation.id, "collection", x, options)
        return computation

    def _put(self, id: str, kind: str, value: Any, options: dict[str, Any]) -> None:
        frames = pack(value)
        chosen = {name: int(options[name]) for name in ("num_workers", "retries") if options.get(name) is not None}
        sizes = tuple(frame.nbytes for frame in frames)
        header = wire.Submission(kind, sizes, versions(), str(options.get("name") or ""), chosen)
        self._connection.ask(
            "PUT", f"computations/{id}", [header.encode(), *frames], {"Content-Type": wire.MEDIA_TYPE}
        )

    def computation(self, id: str) -> RemoteComputation:
        """Return a computation by its id.

        Raises
        ------
        KeyError
            The service knows of none.
        """
        computation = RemoteComputation(self._connection, str(id))
        computation.summary()
        return computation

    def computations(self, state: str | None = None) -> Iterator[RemoteComputation]:
        """Yield the computations that the service knows of, the newest first.

        Parameters
        ----------
        state : str, optional
            Only those that are queued, preparing, running, finished, failed or cancelled.
        """
        query = {} if state is None else {"state": state}
        while True:
            answer = self._connection.ask("GET", f"computations?{urllib.parse.urlencode(query)}")
            for summary in answer["computations"]:
                yield RemoteComputation(self._connection, summary["id"], summary["name"])
            if answer["next"] is None:
                return
            query["before"] = answer["next"]

    def state(self) -> Json:
        """Return workers, memory, and how many computations there are in each state."""
        return self._connection.ask("GET", "state")

    def close(self) -> None:
        """Close the lines to the service; what it computes goes on."""
        self._connection.close()

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Service {self._connection.endpoint}>"


class RemoteComputation:
    """A computation of a service.

    Attributes
    ----------
    id : str
        By which any process finds it.
    """

    def __init__(self, connection: Connection, id: str, name: str | None = None) -> None:
        self._connection = connection
        self.id = id
        self._name = name

    def _ask(self, method: str, path: str = "", patience_s: float | None = None) -> Json:
        path = f"computations/{urllib.parse.quote(self.id, '')}{path}"
        try:
            return self._connection.ask(method, path, patience_s=patience_s)
        except ServiceError as error:
            if error.status == 404:
                raise KeyError(self.id) from None
            raise

    def summary(self) -> Json:
        """Return what the service says of it: state, chunks, layers, times, error, what its result is."""
        return self._ask("GET")

    @property
    def name(self) -> str:
        """What the user has called it."""
        if self._name is None:
            self._name = str(self.summary()["name"])
        return self._name

    @property
    def state(self) -> str:
        """``"queued"``, ``"preparing"``, ``"running"``, ``"finished"``, ``"failed"`` or ``"cancelled"``."""
        return str(self.summary()["state"])

    @property
    def progress(self) -> float:
        """How much of it is done, from 0 to 1."""
        summary = self.summary()
        if summary["state"] == "finished":
            return 1.0
        chunks = summary["chunks"]
        return float(chunks["finished"] / chunks["total"]) if chunks["total"] else 0.0

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is over, however it ends.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most. Default: as long as it takes, and the service is there.

        Returns
        -------
        bool
            Whether it is over.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        summary = self.summary()
        while summary["state"] not in OVER:
            left_s = _WAIT_S if deadline is None else min(deadline - time.monotonic(), _WAIT_S)
            if left_s <= 0:
                return False
            summary = self._ask("GET", f"?after={summary['revision']}&wait={left_s:.3f}")
        return True

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result, and fetch it.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most.

        Raises
        ------
        TimeoutError
            It is not over yet.
        Cancelled
            It was cancelled.
        ServiceError
            Its status is 410 if the service has not kept the result.
        Exception
            Whatever a task raised.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"computation {self.id} is not over after {timeout} s")
        try:
            with self._connection.download(f"computations/{self.id}/result", wire.MEDIA_TYPE) as download:
                return unpack(_frames(download))
        except ServiceError as error:
            reason = _reason(self.id, error)
        # Out here it keeps its own causes.
        raise reason

    def cancel(self) -> bool:
        """Cancel it; return whether it was not over."""
        try:
            self._ask("POST", "/cancel")
        except ServiceError as error:
            if error.status == 409:
                return False
            raise
        return True

    def delete(self) -> None:
        """Have the service forget it and its result; it is cancelled if it is not over."""
        self._ask("DELETE")

    def log(self) -> list[Json]:
        """Return the lines that its tasks have written: each one's ``time``, ``stream`` and ``text``."""
        return list(self._ask("GET", "/log")["lines"])

    def explain(self, key: str | None = None) -> str:
        """Say in words what it waits for."""
        query = "" if key is None else f"?{urllib.parse.urlencode({'key': key})}"
        return "\n".join(self._ask("GET", f"/explain{query}")["rows"])

    def profile(self) -> list[Json]:
        """Return what its layers took."""
        return list(self._ask("GET", "/profile")["layers"])

    def _abandon(self) -> None:
        """Cancel it, if it has got to the service."""
        deadline = time.monotonic() + _CANCEL_S
        # The request that submits it may still be on its way through the service.
        while time.monotonic() < deadline:
            try:
                self.cancel()
                return
            except KeyError:
                time.sleep(0.05)
            except Exception:
                return

    def __repr__(self) -> str:
        name, words = self.id, "unreachable"
        # Whoever shows it in a list is not to be stopped, nor to wait.
        with contextlib.suppress(Exception):
            try:
                summary = self._ask("GET", patience_s=0.0)
                name, words = repr(summary["name"]) if summary["name"] else self.id, _in_words(summary)
            except KeyError:
                words = "deleted"
        return f"<RemoteComputation {name} {words}, at {self._connection.endpoint}>"


def _in_words(summary: Json) -> str:
    """Say how a computation is, and how far."""
    chunks, failure = summary["chunks"], summary["error"]
    words = str(summary["state"])
    if chunks["total"]:
        words += f": {chunks['finished']:,} of {units.plural(chunks['total'], 'chunk')}"
    return words if failure is None else f"{words}; {failure['type']}: {failure['message'][:_MESSAGE_CHARACTERS]}"


def _frames(download: Download) -> list[Any]:
    """Read the frames of a result, each into memory of its own."""
    prefix = bytearray(wire.PREFIX_BYTES)
    download.readinto(prefix)
    text = bytearray(wire.header_bytes(bytes(prefix)))
    download.readinto(text)
    frames = []
    for size in wire.decode_header(bytes(text))["frames"]:
        # Unlike a bytearray it is not filled with zeros first.
        frame = np.empty(size, np.uint8)
        download.readinto(frame.data)
        frames.append(frame.data)
    return frames


def _reason(id: str, refusal: ServiceError) -> BaseException:
    """Return what to raise where there is no result."""
    told = refusal.problem.get("error")
    if refusal.status != 409 or not isinstance(told, dict):
        return refusal
    if told.get("state") == "cancelled":
        return Cancelled(id)
    with contextlib.suppress(Exception):
        error = pickle.loads(base64.b64decode(told["pickle"]))
        if isinstance(error, BaseException):
            return error
    facts = [told.get(name) or "" for name in ("type", "message", "traceback")]
    return ComputationFailed(id, *map(str, facts))


__all__ = ["RemoteComputation", "Service", "connect"]
