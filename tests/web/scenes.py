"""Computations that there are not, for looking at the page: each scene is a state that a service can be in."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from dask_mars.web.monitor import STATES, Json

MIB = 1 << 20
GIB = 1 << 30
LABELS = ("from_zarr", "clip", "mean_chunk", "mean_combine", "subtract", "square", "sum", "store")
SIZES = (256, 256, 256, 64, 256, 256, 256, 1)
EDGES = ((0, 1), (1, 2), (2, 3), (1, 4), (3, 4), (4, 5), (5, 6), (6, 7))
WORKERS = 8
TRACEBACK = """Traceback (most recent call last):
  File "/home/ada/climate/anomalies.py", line 41, in clip
    return np.clip(block, *limits[place])
                           ~~~~~~^^^^^^^
KeyError: (3, 11)

the chunk was ('clip-9f1c04', 3, 11), attempt 1, on worker 5
"""


def identifier(number: int) -> str:
    """Return an id that is the same each time, so that pictures are."""
    return f"{number:08x}-93a2-4d1c-8f0e-6b7a5c4d3e2f"


def shares_of(state: str) -> tuple[float, ...]:
    """Return how much of each layer is finished: the first ones first."""
    shares = {
        "finished": (1.0,) * 8,
        "running": (1, 1, 0.92, 0.6, 0.55, 0.4, 0.25, 0),
        "failed": (0.8, 0.65, 0.1, 0, 0, 0, 0, 0),
        "cancelled": (0.9, 0.8, 0.6, 0.2, 0, 0, 0, 0),
    }
    return shares.get(state, (0.0,) * 8)


#: What computations wait for that do not run yet.
_WHY = {
    "queued": "it waits for its turn: 1 computation is queued",
    "preparing": "the graph is being prepared, for 4.0 s",
}


class Scene:
    """What a service tells, at one moment or with a chunk more each time it is asked.

    Parameters
    ----------
    name : str
        ``empty``, ``busy``, ``failed``, ``finished`` or ``large``.
    can : tuple of str, optional
        What the page may offer.
    """

    def __init__(self, name: str, can: tuple[str, ...] = ("cancel", "submit")) -> None:
        self.name = name
        self.can = can
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.moves = False
        self._revision = 7
        self._begun = time.time() - 74
        self._summaries = {one["id"]: one for one in self._make()}

    # -- what there is ----------------------------------------------------------------------------------------

    def _make(self) -> list[Json]:
        if self.name == "empty":
            return []
        found = []
        first = {"busy": "running", "failed": "failed", "finished": "finished", "large": "running"}[self.name]
        found.append(self._summary(1, first, "climatology", 0))
        if self.name == "busy":
            found.append(self._summary(2, "preparing", "wind speed, 1979 to 2024", 4))
            found.append(self._summary(3, "queued", "regrid to 0.25°", 2))
        past = 9_990 if self.name == "large" else 9
        states = ("finished", "finished", "failed", "finished", "cancelled", "finished")
        names = ("daily means", "", "satellite index", "overlap filter", "", "quantiles of runoff by basin")
        found += [
            self._summary(10 + n, states[n % 6], names[n % 6], -600 - 540 * n if n < 20 else -90_000 - n)
            for n in range(past)
        ]
        return found

    def _summary(self, number: int, state: str, name: str, after: float) -> Json:
        total = sum(SIZES)
        finished = sum(int(size * share) for size, share in zip(SIZES, shares_of(state), strict=True))
        running = 9 if state == "running" else 0
        failed = int(state == "failed")
        begun = self._begun + after
        return {
            "id": identifier(number),
            "name": name,
            "state": state,
            "created": begun - 2,
            "started": None if state in ("queued", "preparing") else begun,
            "ended": begun + 41.7 + number % 7 if state in ("finished", "failed", "cancelled") else None,
            "attempt": 2 if number == 2 else 1,
            "revision": 5,
            "chunks": {
                "total": 0 if state in ("queued", "preparing") else total,
                "waiting": 0 if state in ("queued", "preparing") else total - finished - running - failed,
                "running": running,
                "finished": finished,
                "failed": failed,
            },
            "remaining": 34.2 if state == "running" else None,
            "error": {"type": "KeyError", "message": "(3, 11)"} if state == "failed" else None,
            "result": {
                "kind": "array",
                "dtype": "float64",
                "shape": [12, 721, 1440],
                "bytes": 12 * 721 * 1440 * 8,
                "evicted": number % 5 == 0,
            }
            if state == "finished"
            else None,
        }

    def _layers(self, summary: Json) -> list[Json]:
        """Spread what is finished over the layers, the first ones first."""
        state = summary["state"]
        if not summary["chunks"]["total"]:
            return []
        found = []
        columns = zip(LABELS, SIZES, shares_of(state), strict=True)
        for number, (label, total, share) in enumerate(columns):
            finished = int(total * share)
            running = min(total - finished, (0, 0, 3, 1, 2, 2, 1, 0)[number]) if state == "running" else 0
            failed = int(state == "failed" and label == "clip")
            found.append(
                {
                    "name": f"{label}-{number}f1c04",
                    "label": label,
                    "total": total,
                    "waiting": total - finished - running - failed,
                    "finished": finished,
                    "running": running,
                    "failed": failed,
                    "seconds": finished * (0.31, 0.06, 0.12, 0.02, 0.11, 0.08, 0.05, 1.2)[number],
                    "bytes": finished
                    * (8.2 * MIB, 8.2 * MIB, 0.4 * MIB, 0.4 * MIB, 8.2 * MIB, 8.2 * MIB, 1024, 0)[number],
                }
            )
        return found

    # -- the protocol -----------------------------------------------------------------------------------------

    def revision(self) -> int:
        if self.moves:
            self._revision += 1
        return self._revision

    def state(self) -> Json:
        self.asked.append("state")
        found = list(self._summaries.values())
        busy = any(one["state"] == "running" for one in found)
        chunks = ("mean_chunk", "subtract", "square", "mean_combine", "subtract", "mean_chunk", "sum", "square")
        workers = [
            {
                "worker": worker,
                "label": f"worker {worker} (process {41_200 + worker})",
                "pid": 41_200 + worker,
                "running": f"('{label}-9f1c04', {worker % 4}, {(worker * 5) % 16})"
                if busy and worker != 6
                else None,
                "step": ("compute", "compute", "read operands", "seal")[worker % 4]
                if busy and worker != 6
                else None,
                "in_hand": 2 + worker % 3 if busy and worker != 6 else 0,
            }
            for worker, label in enumerate(chunks)
        ]
        wave = math.sin(self._revision / 9)
        return {
            "revision": self._revision,
            "version": "0.9",
            "can": list(self.can),
            "workers": [] if self.name == "empty" else workers,
            "memory": {
                "limit_bytes": 16 * GIB,
                "in_use_bytes": int((11.2 + wave) * GIB) if busy else 900 * MIB,
                "peak_bytes": int(13.9 * GIB) if found else 900 * MIB,
                "store_bytes": int((6.4 + wave) * GIB) if busy else 0,
                "store_limit_bytes": 8 * GIB,
                "promised_bytes": 640 * MIB if busy else 0,
                "on_disk_bytes": int(2.1 * GIB) if busy else 0,
                "spilled_bytes": int(4.7 * GIB) if found else 0,
            },
            "counts": {state: sum(one["state"] == state for one in found) for state in STATES},
        }

    def computations(self, state: str | None, before: str | None, limit: int) -> Json:
        self.asked.append("computations")
        found = [one for one in self._summaries.values() if state in (None, one["state"])]
        start = int(before or 0)
        following = start + limit
        return {
            "computations": found[start:following],
            "next": str(following) if following < len(found) else None,
        }

    def computation(self, id: str) -> Json:
        summary = self._summaries[id]
        if self.moves and summary["state"] == "running":
            summary["revision"] = self._revision
            summary["chunks"]["finished"] = 600 + self._revision % 900
        drop = ("waiting",)
        layers = [{k: v for k, v in one.items() if k not in drop} for one in self._layers(summary)]
        return {**summary, "layers": layers}

    def cancel(self, id: str) -> bool:
        summary = self._summaries[id]
        self.cancelled.append(id)
        if summary["ended"] is not None:
            return False
        self._revision += 1
        summary |= {
            "state": "cancelled",
            "ended": time.time(),
            "revision": summary["revision"] + 1,
            "remaining": None,
        }
        summary["chunks"] |= {"running": 0}
        return True

    def error(self, id: str) -> Json:
        error = self._summaries[id]["error"] or {"type": "", "message": ""}
        return {**error, "traceback": TRACEBACK if error["type"] else ""}

    def log(self, id: str) -> Json:
        summary = self._summaries[id]
        if summary["started"] is None or summary["state"] == "cancelled":
            return {"lines": [], "truncated": False}
        texts = (
            ("engine", "8 workers; 16 GiB, of which the store has 8 GiB"),
            ("stdout", "reading era5/t2m.zarr, 256 chunks of 8.2 MiB"),
            ("warning", "RuntimeWarning: Mean of empty slice (anomalies.py:33)"),
            ("stdout", "month 1: 31 days"),
            ("stderr", "libtiff: tile 118 is shorter than it says, padded with zeros"),
            ("stdout", "month 2: 28 days"),
            ("engine", "128 MiB written to disk, as the store is full"),
            ("engine", "worker 3 (process 41203) was killed by signal 9; what it had in hand is tried again"),
            ("stdout", "month 3: 31 days"),
        )
        start = summary["started"]
        lines = [
            {"time": start + 3.1 * n, "stream": stream, "text": text} for n, (stream, text) in enumerate(texts)
        ]
        return {"lines": lines, "truncated": False}

    def timeline(self, id: str) -> Json:
        summary = self._summaries[id]
        start = summary["started"]
        if start is None:
            return {
                "start": summary["created"],
                "workers": [],
                "labels": [],
                "layers": [],
                "tasks": [],
                "memory": [],
                "events": [],
            }
        random = np.random.default_rng(3)
        end = 73.0 if summary["state"] == "running" else 41.0
        tasks: list[list[Any]] = []
        for worker in range(WORKERS):
            at = random.uniform(0, 0.6)
            while at < end:
                if worker == 3 and 30 < at < 34:
                    at = 34.2
                # Later layers come later, with readers in between.
                reach = at / end * 7.5
                layer = int(np.clip(random.normal(reach * 0.75, 1.1), 0, 6))
                taken = random.gamma(3, (0.12, 0.03, 0.06, 0.02, 0.06, 0.05, 0.04)[layer] * 2)
                tasks.append(
                    [worker, round(at, 4), round(min(at + taken, end), 4), layer, 1 + int(layer == 3) * 6]
                )
                at += taken + random.exponential(0.03 if not 55 < at < 58 else 0.5)
        memory = []
        for at in np.arange(0, end, 0.25):
            in_use = min(13.9, 2 + at / 5 + math.sin(at / 3)) * GIB
            store = min(8.0, at / 7 + 0.4 * math.sin(at / 2) + 0.4) * GIB
            on_disk = max(0.0, (at - 48) / 12) * GIB
            memory.append([start + float(at), int(in_use), int(store), int(on_disk)])
        events = [
            [start + at, "spill", "128 MiB of 16 chunks written to disk"]
            for at in (49, 51.5, 54, 60, 66)
            if at < end
        ]
        events.append([start + 30.2, "death", "worker 3 was killed by signal 9"])
        events.append([start + 34.2, "retry", "('subtract-4f1c04', 2, 7) is tried again, attempt 2"])
        return {
            "start": start,
            "workers": list(range(WORKERS)),
            "labels": [f"worker {worker} (process {41_200 + worker})" for worker in range(WORKERS)],
            "layers": list(LABELS),
            "tasks": tasks,
            "memory": memory,
            "events": sorted(events),
        }

    def graph(self, id: str, layer: str | None) -> Json:
        layers = self._layers(self._summaries[id])
        if layer is None:
            drop = ("seconds", "bytes")
            shown = [{k: v for k, v in one.items() if k not in drop} for one in layers]
            return {"layers": shown, "edges": [list(edge) for edge in EDGES] if layers else []}
        one = {one["name"]: one for one in layers}[layer]
        numblocks = {256: [4, 8, 8], 64: [64], 1: [1]}[one["total"]]
        states = "f" * one["finished"] + "x" * one["failed"] + "r" * one["running"]
        return {
            "name": layer,
            "label": one["label"],
            "numblocks": numblocks,
            "states": states.ljust(one["total"], "w"),
            "truncated": False,
        }

    def explain(self, id: str | None, key: str | None) -> Json:
        if key is not None:
            if "-" not in key:
                raise KeyError(key)
            return {
                "rows": [
                    f"{key} waits for 1 of its 2 inputs",
                    "('mean_combine-3f1c04', 3) [1027] waits for 1 of its 4 inputs",
                    "('mean_chunk-2f1c04', 3, 1, 7) [799] is ready and waits for 8.2 MiB of memory",
                ]
            }
        if id is not None and self._summaries[id]["state"] != "running":
            state = self._summaries[id]["state"]
            return {"rows": [_WHY.get(state, f"it is over: {state}")]}
        held = [
            f"worker {n} (process {41200 + n}) has {2 + n % 3} chunks in hand, and computes "
            f"('{LABELS[2 + n % 5]}-{2 + n % 5}f1c04', {n % 4}, {n}) [{512 + 61 * n}]"
            for n in range(6)
        ]
        return {
            "rows": [
                "8 workers; the store holds 6.4 GiB of 8 GiB, 640 MiB are reserved for what is in hand, "
                "128 MiB are being written to disk",
                "graph 4: 501 waiting, 9 running, 1,091 finished",
                *held,
                "('subtract-4f1c04', 2, 5, 1) [1121] is next and waits for 8.2 MiB of memory: its result 8.2 MiB, "
                "and its inputs on disk 8.2 MiB",
            ]
        }
