"""``PUT`` and ``DELETE computations/{id}``: bodies are written to files as they arrive, and then recorded."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from tornado.web import stream_request_body

from dask_mars import units
from dask_mars.locking import Lock
from dask_mars.web import api, wire
from dask_mars.web.api import Problem
from dask_mars.web.handlers import OneHandler
from dask_mars.web.handling import Site
from dask_mars.web.service.monitor import PIECE_BYTES, ServiceContext
from dask_mars.web.service.store import SPARE_BYTES

#: Longest wait of an answer for the runner to take or refuse a submission, in seconds.
_TAKE_S = 2.0
#: Maximum number of queued computations.
_MOST_QUEUED = 10_000


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Say in errors of the disk what could not be written."""
    try:
        yield
    except OSError as error:
        raise OSError(f"the service cannot write the submission: {error}") from error


class _Incoming:
    """A file that a body is written to; its methods wait for the disk, and for each other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = hashlib.sha256()
        self._descriptor = -1
        self._is_dropped = False
        # The client may disconnect while a thread writes.
        self._lock = Lock()

    def write(self, chunks: list[bytes]) -> None:
        """Write a part, unless the file was dropped."""
        with self._lock, _named():
            if self._is_dropped:
                return
            if self._descriptor < 0:
                self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            for chunk in chunks:
                self._digest.update(chunk)
                view = memoryview(chunk)
                while view:
                    view = view[os.write(self._descriptor, view) :]

    def finish(self, chunks: list[bytes]) -> str:
        """Write the rest, flush it to disk, and return its digest."""
        self.write(chunks)
        with _named():
            os.fsync(self._descriptor)
        return self._digest.hexdigest()

    def drop(self) -> None:
        """Remove the file, if it still has this name."""
        with self._lock:
            self._is_dropped = True
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
            self.path.unlink(missing_ok=True)


@stream_request_body
class SubmissionHandler(OneHandler):
    """``PUT`` and ``DELETE computations/{id}``."""

    def initialize(self, site: Site, service: ServiceContext) -> None:  # type: ignore[override]
        """Set the shared objects."""
        super().initialize(site)
        self._service = service
        self._incoming: _Incoming | None = None
        self._chunks: list[bytes] = []
        self._held_bytes = 0
        #: The name in the header, once that is complete.
        self._name: str | None = None
        if self.request.method == "PUT":
            self.largest_body = service.body_limit_bytes  # type: ignore[misc]

    def prepare(self) -> None:
        """Refuse invalid requests before their body is read."""
        super().prepare()
        if self.request.method != "PUT":
            return
        self.query()
        api.computation_id(self.path_args[0])
        if self.request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Problem(415, "a submission is taken as it is, and not compressed")
        length = self.request.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise Problem(411, "a submission says by Content-Length how long it is")
        if self._service.supervisor.waiting() >= _MOST_QUEUED:
            raise Problem(503, "too many computations wait already", {"Retry-After": "10"})
        directory = self._service.store.directory
        free_bytes = shutil.disk_usage(directory).free
        if free_bytes < int(length) + SPARE_BYTES:
            sizes = [units.size(count) for count in (free_bytes, SPARE_BYTES, int(length))]
            text = "the disk of {} has {} free, of which {} are kept free, and the submission takes {}"
            raise Problem(503, text.format(directory, *sizes), {"Retry-After": "60"})
        self._length = int(length)
        self._incoming = _Incoming(self._service.store.incoming(secrets.token_hex(16)))

    async def data_received(self, chunk: bytes) -> None:  # type: ignore[override]
        """Write a part of the body; the next one is read after that."""
        if self._incoming is None:
            return
        self._chunks.append(chunk)
        self._held_bytes += len(chunk)
        if self._name is None:
            try:
                self._read_header()
            except Problem as error:
                self._refuse(error)
                return
        if self._held_bytes >= PIECE_BYTES and self._name is not None:
            chunks, self._chunks, self._held_bytes = self._chunks, [], 0
            try:
                await self.answer(self._service.run(self._incoming.write, chunks))
            except Problem as error:
                self._refuse(error)

    def _read_header(self) -> None:
        """Check the header as soon as it is complete."""
        if self._held_bytes < wire.PREFIX_BYTES:
            return
        begun = b"".join(self._chunks)
        self._chunks = [begun]
        end = wire.PREFIX_BYTES + wire.header_bytes(begun)
        if self._held_bytes >= end:
            self._name = wire.name_in(begun[wire.PREFIX_BYTES : end], self._service.versions, self._length)

    def _refuse(self, problem: Problem) -> None:
        """Answer now; the rest of the body is ignored."""
        self._forget()
        self.send_error(problem.status, exc_info=(Problem, problem, None))

    def _forget(self) -> None:
        incoming, self._incoming = self._incoming, None
        self._chunks = []
        if incoming is not None:
            # In a thread, as it may wait for the disk. The next service removes files that remain.
            with contextlib.suppress(RuntimeError):
                self._service.executor.submit(incoming.drop)

    def on_connection_close(self) -> None:
        """Drop an incomplete body."""
        super().on_connection_close()
        # A complete submission counts, even if the client does not read the answer.
        if not self._is_whole:
            self._forget()

    def on_finish(self) -> None:
        """Drop a refused body."""
        if not self._is_whole:
            self._forget()

    _is_whole = False

    async def put(self, id: str) -> None:
        """Record the submission, and queue it."""
        if self._finished:
            return
        id = api.computation_id(id)
        if self._incoming is None or self._name is None:
            raise Problem(400, "the body ends before its header")
        self._is_whole = True
        service, name, incoming = self._service, self._name, self._incoming
        try:
            digest = await self.answer(service.run(incoming.finish, self._chunks))
            row, is_new = await self.answer(service.run(service.store.add, id, digest, name, incoming.path))
        finally:
            await service.run(incoming.drop)
        if not is_new:
            if row["digest"] != digest:
                raise Problem(409, "there is a computation with this id and another body")
        else:
            await self._taken(row["number"])
            row = await service.run(service.store.row, id)
        if row["refused"]:
            raise Problem(422, (await service.run(service.monitor.failure, row))["message"])
        self.site.snapshots.forget()
        self.set_status(201 if is_new else 200)
        self.send_json(await self.call(service.monitor.computation, id))

    async def _taken(self, number: int) -> None:
        """Queue it; wait briefly for a refusal."""
        loop = asyncio.get_running_loop()
        taken: asyncio.Future[None] = loop.create_future()

        def on_taken() -> None:
            loop.call_soon_threadsafe(taken.cancel)

        if await self._service.run(self._service.supervisor.submit, number, on_taken):
            await asyncio.wait([taken], timeout=_TAKE_S)

    async def delete(self, id: str) -> None:
        """Remove a computation; cancel it if it is not over."""
        self.query()
        service = self._service
        number = await self.answer(service.run(service.store.remove, api.computation_id(id)))
        await service.run(service.supervisor.forget, number)
        self.site.snapshots.forget()
        self.set_status(204)
        self.finish()
