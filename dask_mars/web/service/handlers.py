"""Routes that a service adds to the API: submit, delete, fetch the result."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import secrets
import shutil
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tornado.web import stream_request_body

from dask_mars.web import api, wire
from dask_mars.web.api import Problem
from dask_mars.web.handlers import ComputationHandler, OneHandler, Rule, Site
from dask_mars.web.monitor import Json
from dask_mars.web.service.monitor import ServiceMonitor
from dask_mars.web.service.store import Store
from dask_mars.web.service.supervisor import Supervisor

#: Bytes of bodies and results that are in memory at once, for each request.
_PIECE_BYTES = 1 << 20
#: How long an answer waits for the runner to take, or to refuse, what was submitted.
_TAKE_S = 2.0
#: How long the runner may take to write a result once more.
_ARROW_S = 60.0
#: More computations than this do not wait.
_MOST_QUEUED = 10_000
#: Free bytes that the disk keeps beside what is submitted.
_SPARE_BYTES = 64 << 20
_NPY, _JSON, _ARROW = "application/x-npy", "application/json", "application/vnd.apache.arrow.file"
#: For links, which cannot say what they accept.
_FORMATS = {"pickle": wire.MEDIA_TYPE, "npy": _NPY, "json": _JSON, "arrow": _ARROW}
_SUFFIXES = {wire.MEDIA_TYPE: ".mars", _NPY: ".npy", _JSON: ".json", _ARROW: ".arrow"}


@dataclass(frozen=True)
class Service:
    """What the handlers here share.

    Attributes
    ----------
    store : Store
        The records.
    supervisor : Supervisor
        Who has the runner.
    monitor : ServiceMonitor
        What is shown.
    executor : Executor
        Where files are read and written, so that a slow disk is waited for there.
    versions : dict
        Those that submissions must have been made with.
    body_limit_bytes : int
        Of a submission.
    """

    store: Store
    supervisor: Supervisor
    monitor: ServiceMonitor
    executor: Executor
    versions: dict[str, str]
    body_limit_bytes: int

    async def run(self, function: Any, *arguments: Any) -> Any:
        """Call what waits for the disk."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, function, *arguments)


class _Incoming:
    """A body on its way into a file; its methods wait for the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = hashlib.sha256()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, chunks: list[bytes]) -> None:
        for chunk in chunks:
            self._digest.update(chunk)
            view = memoryview(chunk)
            while view:
                view = view[os.write(self._descriptor, view) :]

    def finish(self, chunks: list[bytes]) -> str:
        """Write the rest, make it last and return its digest."""
        self.write(chunks)
        os.fsync(self._descriptor)
        self.close()
        return self._digest.hexdigest()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def drop(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


@stream_request_body
class SubmissionHandler(OneHandler):
    """``PUT`` and ``DELETE computations/{id}``."""

    def initialize(self, site: Site, service: Service) -> None:  # type: ignore[override]
        """Take what the handlers share."""
        super().initialize(site)
        self._service = service
        self._incoming: _Incoming | None = None
        self._chunks: list[bytes] = []
        self._held_bytes = 0
        self._submission: wire.Submission | None = None
        self._writing = asyncio.Lock()
        if self.request.method == "PUT":
            self.largest_body = service.body_limit_bytes  # type: ignore[misc]

    def prepare(self) -> None:
        """Refuse what will not be taken, before its body is read.

        Raises
        ------
        Problem
            As `Handler.prepare`; 411 for bodies of unknown length, 503 while there is no room.
        """
        super().prepare()
        if self.request.method != "PUT":
            return
        self.query()
        api.computation_id(self.path_args[0])
        length = self.request.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise Problem(411, "a submission says by Content-Length how long it is")
        if self._service.supervisor.waiting() >= _MOST_QUEUED:
            raise Problem(503, "too many computations wait already", {"Retry-After": "10"})
        directory = self._service.store.directory
        if shutil.disk_usage(directory).free < int(length) + _SPARE_BYTES:
            raise Problem(503, "the service's disk has no room for the submission", {"Retry-After": "60"})
        self._length = int(length)
        self._incoming = _Incoming(self._service.store.incoming(secrets.token_hex(16)))

    async def data_received(self, chunk: bytes) -> None:  # type: ignore[override]
        """Take a part of the body; the next is read when this one is written."""
        if self._incoming is None:
            return
        self._chunks.append(chunk)
        self._held_bytes += len(chunk)
        if self._submission is None:
            try:
                self._read_header()
            except wire.BadBody as error:
                self._refuse(error)
                return
        if self._held_bytes >= _PIECE_BYTES and self._submission is not None:
            chunks, self._chunks, self._held_bytes = self._chunks, [], 0
            try:
                async with self._writing:
                    await self._service.run(self._incoming.write, chunks)
            except OSError as error:
                self._refuse(wire.BadBody(503, f"the service cannot write the submission: {error}"))

    def _read_header(self) -> None:
        """Look at the beginning as soon as all of it is there."""
        if self._held_bytes < wire.PREFIX_BYTES:
            return
        begun = b"".join(self._chunks)
        self._chunks = [begun]
        end = wire.PREFIX_BYTES + wire.header_bytes(begun)
        if self._held_bytes >= end:
            self._submission = wire.decode_submission(
                begun[wire.PREFIX_BYTES : end], self._service.versions, self._length
            )

    def _refuse(self, error: wire.BadBody) -> None:
        """Answer now; what else comes of the body is passed over."""
        self._forget()
        headers = {"Retry-After": "60"} if error.status == 503 else {}
        problem = Problem(error.status, error.message, headers)
        self.send_error(error.status, exc_info=(Problem, problem, None))

    def _forget(self) -> None:
        incoming, self._incoming = self._incoming, None
        self._chunks = []
        if incoming is not None:
            incoming.drop()

    def on_connection_close(self) -> None:
        """Nobody sends the rest."""
        super().on_connection_close()
        # Once it is whole it counts, whether or not anybody hears so.
        if not self._is_whole:
            self._forget()

    def on_finish(self) -> None:
        """Leave nothing of what was refused."""
        if not self._is_whole:
            self._forget()

    _is_whole = False

    async def put(self, id: str) -> None:
        """Record what was submitted, and have it computed."""
        if self._finished:
            return
        id = api.computation_id(id)
        if self._incoming is None or self._submission is None:
            raise Problem(400, "the body ends before its header")
        self._is_whole = True
        service, submission, incoming = self._service, self._submission, self._incoming
        try:
            digest = await service.run(incoming.finish, self._chunks)
            row, is_new = await service.run(
                service.store.add, id, digest, submission.name, submission.options, incoming.path
            )
        except OSError as error:
            raise Problem(
                503, f"the service cannot write the submission: {error}", {"Retry-After": "60"}
            ) from None
        finally:
            await service.run(incoming.drop)
        if not is_new:
            if row["digest"] != digest:
                raise Problem(409, "there is a computation with this id and another body")
        else:
            await self._taken(row["number"])
            row = await service.run(service.store.row, id)
        if row["refused"]:
            raise Problem(422, json.loads(row["error"])["message"])
        self.site.snapshots.forget()
        self.set_status(201 if is_new else 200)
        self.send_json(await self.call(service.monitor.computation, id))

    async def _taken(self, number: int) -> None:
        """Have it computed; wait a little for whether it is refused."""
        loop = asyncio.get_running_loop()
        taken: asyncio.Future[None] = loop.create_future()

        def on_taken(error: Json | None) -> None:
            loop.call_soon_threadsafe(taken.cancel)

        if await self._service.run(self._service.supervisor.submit, number, on_taken):
            await asyncio.wait([taken], timeout=_TAKE_S)

    async def delete(self, id: str) -> None:
        """Forget a computation; one that is not over is cancelled."""
        self.query()
        service = self._service
        try:
            number = await service.run(service.store.remove, api.computation_id(id))
        except KeyError:
            raise Problem(404, f"there is no {id[:200]!r}") from None
        await service.run(service.supervisor.forget, number)
        self.site.snapshots.forget()
        self.set_status(204)
        self.finish()


#: A part of an answer: bytes, or where they are in a file.
_Part = bytes | tuple[int, int]


class ResultHandler(ComputationHandler):
    """``computations/{id}/result``: in the form that is asked for, whole or in part."""

    def initialize(self, site: Site, service: Service) -> None:  # type: ignore[override]
        """Take what the handlers share."""
        super().initialize(site)
        self._service = service

    async def get(self, id: str) -> None:
        """Send it."""
        chosen = self.query("format").get("format")
        if chosen is not None and chosen not in _FORMATS:
            raise Problem(400, f"'format' is one of {', '.join(_FORMATS)}")
        store = self._service.store
        try:
            row = await self._service.run(store.row, api.computation_id(id))
        except KeyError:
            raise Problem(404, f"there is no {id[:200]!r}") from None
        if row["state"] != "finished":
            self._say_why_not(row)
            return
        if row["evicted"]:
            raise _evicted()
        path = store.result(row["number"])
        try:
            header, offsets, size_bytes = await self._service.run(_read_header, path)
        except FileNotFoundError:
            raise _evicted() from None
        media_type = self._media_type(header, chosen)
        if media_type == _ARROW:
            path, parts = await self._arrow(row, path)
        else:
            parts = _parts(media_type, header, offsets, size_bytes)
        self.set_header("Content-Type", media_type)
        self.set_header("Content-Disposition", f'attachment; filename="{row["id"]}{_SUFFIXES[media_type]}"')
        self.set_header("ETag", f'"{row["digest"][:32]}-{row["number"]}"')
        self.set_header("Vary", "Accept")
        await self._send(path, parts)

    head = get

    def _say_why_not(self, row: Any) -> None:
        if row["state"] not in ("failed", "cancelled"):
            raise Problem(409, f"the computation is {row['state']}: there is no result yet")
        told = json.loads(row["error"] or "{}")
        text = f": {told['type']}: {told['message']}" if told else ""
        body = api.problem(409, f"the computation was not finished: {row['state']}{text}")
        self.set_status(409)
        self.send_json({**body, "error": {"state": row["state"], **told}}, "application/problem+json")

    def _media_type(self, header: Json, chosen: str | None) -> str:
        there = {_NPY: header["npy"], _JSON: header["json"], _ARROW: header["arrow"]}
        offered = [wire.MEDIA_TYPE, *[name for name, found in there.items() if found]]
        accept = self.request.headers.get("Accept") if chosen is None else _FORMATS[chosen]
        media_type = wire.accepted(accept, offered)
        if media_type is None:
            raise Problem(406, f"this result can be had as {', '.join(offered)}")
        return media_type

    async def _arrow(self, row: Any, source: Path) -> tuple[Path, list[_Part]]:
        """Have the runner write the result once more: here nobody reads pickles."""
        target = source.with_name(f"{source.name}.arrow")
        if not target.exists():
            try:
                await self._service.run(self._ask_for_arrow, row["number"])
            except (KeyError, TimeoutError):
                raise Problem(
                    406, "the service cannot send this result as Arrow; is pyarrow installed there?"
                ) from None
        return target, [(0, target.stat().st_size)]

    def _ask_for_arrow(self, number: int) -> None:
        self._service.supervisor.ask("arrow", number, timeout_s=_ARROW_S)

    async def _send(self, path: Path, parts: list[_Part]) -> None:
        total = sum(len(part) if isinstance(part, bytes) else part[1] for part in parts)
        start, stop = 0, total
        self.set_header("Accept-Ranges", "bytes")
        try:
            wanted = wire.parse_range(self.request.headers.get("Range"), total)
        except wire.BadBody as error:
            raise Problem(416, error.message, {"Content-Range": f"bytes */{total}"}) from None
        if wanted is not None:
            start, stop = wanted.start, wanted.stop
            self.set_status(206)
            self.set_header("Content-Range", f"bytes {start}-{stop - 1}/{total}")
        self.set_header("Content-Length", str(stop - start))
        if self.request.method == "HEAD":
            self.finish()
            return
        await self.flush()
        descriptor = await self._service.run(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            at = 0
            for part in parts:
                size = len(part) if isinstance(part, bytes) else part[1]
                first, last = max(start - at, 0), min(stop - at, size)
                at += size
                if first >= last:
                    continue
                if isinstance(part, bytes):
                    self.write(part[first:last])
                    continue
                await self._send_file(descriptor, part[0] + first, part[0] + last)
        finally:
            os.close(descriptor)
        await self.finish()

    async def _send_file(self, descriptor: int, start: int, stop: int) -> None:
        """Send a part of a file, as fast as it is taken."""
        for at in range(start, stop, _PIECE_BYTES):
            piece = await self._service.run(os.pread, descriptor, min(_PIECE_BYTES, stop - at), at)
            self.write(piece)
            # Waits until it has gone: a slow reader holds one piece in memory.
            await self.flush()


def _evicted() -> Problem:
    return Problem(410, "the result is not kept any more: dask-mars.web.history says for how long, and how much")


def _read_header(path: Path) -> tuple[Json, list[int], int]:
    """Return the header of a result's file, where its frames are, and its size."""
    with path.open("rb") as file:
        length = wire.header_bytes(file.read(wire.PREFIX_BYTES))
        header = wire.decode_header(file.read(length))
        return header, wire.offsets(length, header["frames"]), os.fstat(file.fileno()).st_size


def _parts(media_type: str, header: Json, offsets: list[int], size_bytes: int) -> list[_Part]:
    if media_type == _JSON:
        return [header["json"].encode()]
    if media_type == _NPY:
        parts: list[_Part] = [base64.b64decode(header["npy"]["text"])]
        frame = header["npy"].get("frame")
        return parts if frame is None else [*parts, (offsets[frame], header["frames"][frame])]
    return [(0, size_bytes)]


def rules(site: Site, service: Service) -> list[Rule]:
    """Return the handlers of what a service can besides being looked at."""
    shared = {"site": site, "service": service}
    return [
        (rf"/{api.ROOT}/computations/([^/]+)", SubmissionHandler, shared),
        (rf"/{api.ROOT}/computations/([^/]+)/result", ResultHandler, shared),
    ]


__all__ = ["Service", "rules"]
