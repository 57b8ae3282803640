"""``GET computations/{id}/result``, in the requested format, whole or in part."""

from __future__ import annotations

import base64
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from dask_mars.web import api, wire
from dask_mars.web.api import Problem
from dask_mars.web.handling import Handler, Site
from dask_mars.web.monitor import Json
from dask_mars.web.service.monitor import PIECE_BYTES, ServiceContext

#: Media type of files of `numpy.save`.
NPY = "application/x-npy"
#: For links, which cannot say what they accept.
_FORMATS = {"pickle": wire.MEDIA_TYPE, "npy": NPY, "json": api.JSON}
_SUFFIXES = {wire.MEDIA_TYPE: ".mars", NPY: ".npy", api.JSON: ".json"}

#: A part of an answer: bytes, or position and size in a file.
_Part = bytes | tuple[int, int]


class ResultHandler(Handler):
    """``computations/{id}/result``, in the requested format, whole or in part."""

    def initialize(self, site: Site, service: ServiceContext) -> None:  # type: ignore[override]
        """Set the shared objects."""
        super().initialize(site)
        self._service = service

    async def get(self, id: str) -> None:
        """Send the result."""
        chosen = self.query("format").get("format")
        if chosen is not None and chosen not in _FORMATS:
            raise Problem(400, f"'format' is one of {', '.join(_FORMATS)}")
        store = self._service.store
        row = await self.answer(self._service.run(store.row, api.computation_id(id)))
        if row["state"] != "finished":
            await self._say_why_not(row)
            return
        if row["evicted"]:
            raise _evicted()
        path = store.result(row["number"])
        try:
            header, offsets, size_bytes = await self._service.run(_read_header, path)
        except FileNotFoundError:
            raise _evicted() from None
        media_type = self._media_type(header, chosen)
        self.set_header("Content-Type", media_type)
        self.set_header("Content-Disposition", f'attachment; filename="{row["id"]}{_SUFFIXES[media_type]}"')
        self.set_header("ETag", f'"{row["digest"][:32]}-{row["number"]}"')
        self.set_header("Vary", "Accept")
        await self._send(path, _parts(media_type, header, offsets, size_bytes))

    async def _say_why_not(self, row: Any) -> None:
        if row["state"] not in ("failed", "cancelled"):
            raise Problem(409, f"the computation is {row['state']}: there is no result yet")
        told = await self._service.run(self._service.monitor.failure, row)
        text = f": {told['type']}: {told['message']}" if told else ""
        body = api.problem(409, f"the computation was not finished: {row['state']}{text}")
        self.set_status(409)
        self.send_json({**body, "error": {"state": row["state"], **told}}, "application/problem+json")

    def _media_type(self, header: Json, chosen: str | None) -> str:
        there = {NPY: header["npy"], api.JSON: header["json"]}
        offered = [wire.MEDIA_TYPE, *[name for name, found in there.items() if found]]
        accept = self.request.headers.get("Accept") if chosen is None else _FORMATS[chosen]
        media_type = wire.accepted(accept, offered)
        if media_type is None:
            raise Problem(406, f"this result can be had as {', '.join(offered)}")
        return media_type

    async def _send(self, path: Path, parts: list[_Part]) -> None:
        total = sum(len(part) if isinstance(part, bytes) else part[1] for part in parts)
        start, stop = 0, total
        self.set_header("Accept-Ranges", "bytes")
        asked = self.request.headers.get("Range")
        if self.request.headers.get("If-Range", self._headers["ETag"]) != self._headers["ETag"]:
            # The earlier part belongs to another result.
            asked = None
        wanted = wire.parse_range(asked, total)
        if wanted is not None:
            start, stop = wanted
            self.set_status(206)
            self.set_header("Content-Range", f"bytes {start}-{stop - 1}/{total}")
        self.set_header("Content-Length", str(stop - start))
        if self.request.method == "HEAD":
            self.finish()
            return
        try:
            # An open file can be read to its end, even if it is removed meanwhile.
            descriptor = await self._service.run(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _evicted() from None
        try:
            await self.flush()
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
        """Send a part of a file, as fast as the client reads."""
        sent: Awaitable[None] | None = None
        for at in range(start, stop, PIECE_BYTES):
            # One piece is read while another is sent: a slow reader holds two in memory.
            piece = await self._service.run(os.pread, descriptor, min(PIECE_BYTES, stop - at), at)
            if sent is not None:
                await sent
            self.write(piece)
            sent = self.flush()
        if sent is not None:
            await sent


def _evicted() -> Problem:
    return Problem(410, "the result is not kept any more: dask-mars.web.history says for how long, and how much")


def _read_header(path: Path) -> tuple[Json, list[int], int]:
    """Return the header of a result's file, the positions of its frames, and its size."""
    with path.open("rb") as file:
        length = wire.header_bytes(file.read(wire.PREFIX_BYTES))
        header = wire.decode_header(file.read(length))
        return header, wire.offsets(length, header["frames"]), os.fstat(file.fileno()).st_size


def _parts(media_type: str, header: Json, offsets: list[int], size_bytes: int) -> list[_Part]:
    if media_type == api.JSON:
        return [header["json"].encode()]
    if media_type == NPY:
        parts: list[_Part] = [base64.b64decode(header["npy"]["text"])]
        frame = header["npy"].get("frame")
        return parts if frame is None else [*parts, (offsets[frame], header["frames"][frame])]
    return [(0, size_bytes)]
