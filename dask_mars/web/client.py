"""The user's side of a service: submit, follow, cancel, fetch, from any process.

A computation belongs to the service, but its id is chosen here: a request whose answer was lost can be repeated
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
from typing import Any

from dask_mars.client.summaries import in_words
from dask_mars.errors import Cancelled, ComputationFailed, ServiceError
from dask_mars.web import wire
from dask_mars.web.address import find
from dask_mars.web.connection import Connection, Download
from dask_mars.web.monitor import OVER, Json
from dask_mars.web.pickles import pack, read_frames, unpack

#: Longest wait of one request for news, in seconds; the request is repeated.
_WAIT_S = 20
#: Time for which `connect` retries, in seconds: a service takes a while to start.
_FIRST_PATIENCE_S = 2.0
#: Time for which a cancellation waits for its unfinished submission, in seconds.
_CANCEL_S = 1.0


def connect(address: str | os.PathLike[str] | None = None, token: str | None = None) -> Service:
    """Connect to a service that `dask-mars-web` runs.

    Parameters
    ----------
    address : str or path, optional
        A URL such as ``"https://host:8899"``; the path of a unix socket, of a service's directory or of its
        connection file. Default: ``dask-mars.web.address``, else this user's service on this machine.
    token : str, optional
        Token for access. Default: ``dask-mars.web.token``, or that of the connection file.

    Raises
    ------
    ServiceUnreachable
        There is no service.
    ServiceError
        The service refuses access.

    Examples
    --------
    >>> service = dask_mars.connect()  # doctest: +SKIP
    >>> x.compute(scheduler=service.get)  # doctest: +SKIP
    """
    service = Service(Connection(find(address, token)))
    service._connection.ask("GET", "state", patience_s=_FIRST_PATIENCE_S)
    return service


class Service:
    """A connection to a service that computes; `connect` creates it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, dsk: Any, keys: Any, **options: Any) -> Any:
        """Compute keys of a Dask graph in the service: a scheduler, as in ``x.compute(scheduler=service.get)``.

        Ctrl-C cancels the computation. If this process is killed, the computation goes on, and its result can be
        fetched.

        Of the options of `dask_mars.get` it takes ``num_workers`` and ``retries``, and ``name`` besides.

        Raises
        ------
        Exception
            Any exception of a task.
        Cancelled
            Another user or process has cancelled it.
        ServiceError
            The service refused it.
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
        """Compute a Dask collection in the service, without waiting.

        It takes lists, dicts and tuples of collections, too, a name for lists and pages, and options of
        `dask_mars.get`. The ``id`` of what it returns finds it again in any process: ``service.computation(id)``.

        Raises
        ------
        ServiceError
            The service refused it.
        """
        computation = RemoteComputation(self._connection, str(uuid.uuid4()))
        options = {"name": name, "num_workers": num_workers, "retries": retries}
        self._put(computation.id, "collection", x, options)
        return computation

    def _put(self, id: str, kind: str, value: Any, options: dict[str, Any]) -> None:
        frames = pack(value)
        chosen = {name: int(options[name]) for name in ("num_workers", "retries") if options.get(name) is not None}
        header = wire.encode_header(
            {
                "kind": kind,
                "frames": [frame.nbytes for frame in frames],
                "versions": wire.versions(),
                "name": str(options.get("name") or ""),
                "options": chosen,
            }
        )
        self._connection.ask("PUT", f"computations/{id}", [header, *frames], {"Content-Type": wire.MEDIA_TYPE})

    def computation(self, id: str) -> RemoteComputation:
        """Return a computation by its id.

        Raises
        ------
        KeyError
            The service knows no such computation.
        """
        computation = RemoteComputation(self._connection, str(id))
        computation.summary()
        return computation

    def computations(self, state: str | None = None) -> Iterator[RemoteComputation]:
        """Yield the computations of the service, the newest first.

        Parameters
        ----------
        state : str, optional
            State to select: queued, preparing, running, finished, failed or cancelled.
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
        """Return workers, memory, and the number of computations in each state."""
        return self._connection.ask("GET", "state")

    def close(self) -> None:
        """Close the connections to the service; computations go on."""
        self._connection.close()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Service {self._connection.endpoint}>"


class RemoteComputation:
    """A computation of a service.

    Attributes
    ----------
    id : str
        UUID, valid in any process.
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
        """Return its state, chunks, layers, times, error and description of the result."""
        return self._ask("GET")

    @property
    def name(self) -> str:
        """The user's name for it."""
        if self._name is None:
            self._name = str(self.summary()["name"])
        return self._name

    @property
    def state(self) -> str:
        """``"queued"``, ``"preparing"``, ``"running"``, ``"finished"``, ``"failed"`` or ``"cancelled"``."""
        return str(self.summary()["state"])

    @property
    def progress(self) -> float:
        """Fraction of the computed chunks."""
        summary = self.summary()
        if summary["state"] == "finished":
            return 1.0
        chunks = summary["chunks"]
        return float(chunks["finished"] / chunks["total"]) if chunks["total"] else 0.0

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is over, for at most a number of seconds; return whether it is."""
        deadline = None if timeout is None else time.monotonic() + timeout
        summary = self.summary()
        while summary["state"] not in OVER:
            left_s = _WAIT_S if deadline is None else min(deadline - time.monotonic(), _WAIT_S)
            if left_s <= 0:
                return False
            summary = self._ask("GET", f"?after={summary['revision']}&wait={left_s:.3f}")
        return True

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result, and fetch it, as `Computation.result` does.

        Raises
        ------
        ServiceError
            Its status is 410 if the service has not kept the result.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"computation {self.id} is not over after {timeout} s")
        try:
            with Download(self._connection, f"computations/{self.id}/result", wire.MEDIA_TYPE) as download:
                return unpack(read_frames(download.readinto)[1])
        except ServiceError as error:
            reason = _reason(self.id, error)
        # Outside the except block, so that the exception keeps its own causes.
        raise reason

    def cancel(self) -> bool:
        """Cancel it; return False if it was over."""
        try:
            self._ask("POST", "/cancel")
        except ServiceError as error:
            if error.status == 409:
                return False
            raise
        return True

    def delete(self) -> None:
        """Remove it and its result from the service; cancel it if it is not over."""
        self._ask("DELETE")

    def log(self) -> list[Json]:
        """Return the output lines of its tasks, each with ``time``, ``stream`` and ``text``."""
        return list(self._ask("GET", "/log")["lines"])

    def explain(self, key: str | None = None) -> str:
        """Explain what it waits for."""
        query = "" if key is None else f"?{urllib.parse.urlencode({'key': key})}"
        return "\n".join(self._ask("GET", f"/explain{query}")["rows"])

    def profile(self) -> list[Json]:
        """Return the cost of each layer."""
        return [
            {
                "name": layer["name"],
                "label": layer["label"],
                "count": layer["finished"],
                "total_s": layer["seconds"],
                "mean_s": layer["seconds"] / layer["finished"],
                "stored_bytes": layer["bytes"],
            }
            for layer in self.summary()["layers"]
            if layer["finished"]
        ]

    def _abandon(self) -> None:
        """Cancel it, once its submission has arrived."""
        deadline = time.monotonic() + _CANCEL_S
        # The submitting request may still be in progress.
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
        # A list that shows it must not fail or wait.
        with contextlib.suppress(Exception):
            try:
                summary = self._ask("GET", patience_s=0.0)
                name, words = repr(summary["name"]) if summary["name"] else self.id, in_words(summary)
            except KeyError:
                words = "deleted"
        return f"<RemoteComputation {name} {words}, at {self._connection.endpoint}>"


def _reason(id: str, refusal: ServiceError) -> BaseException:
    """Return the exception for a missing result."""
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
