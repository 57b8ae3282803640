"""The data of a report: all computations of a recording together, with times from the start of the first one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dask_mars import units
from dask_mars.labels import label_of
from dask_mars.observe.recording import Happening, LayerCosts, MemoryPoint, Recording, SpillTimes, Track
from dask_mars.observe.timeline import Row, merged
from dask_mars.scheduler.events import CLIENT

#: Maximum number of rows of the timeline on a page.
_DRAWN_ROWS = 4_000


class ComputationTimes(NamedTuple):
    """One computation: start, end, outcome, and number of chunks."""

    graph: int
    began_s: float
    chunks: int
    done: int
    ended_s: float | None
    outcome: str


@dataclass(slots=True)
class Recorded:
    """All data of a page. Times are in seconds since the start."""

    #: From the start of the first computation to the end of the last one.
    length_s: float = 0.0
    #: Chunks run by each worker, with time and layer.
    rows: list[Row] = field(default_factory=list)
    #: Label of each row's worker.
    labels: Mapping[int, str] = field(default_factory=dict)
    #: Costs by the layer's name, in the order of `rows`.
    layers: dict[str, LayerCosts] = field(default_factory=dict)
    #: Sorted by time.
    computations: list[ComputationTimes] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)
    memory: list[MemoryPoint] = field(default_factory=list)
    spills: list[SpillTimes] = field(default_factory=list)
    #: Memory limit, peak memory, and bytes written to disk.
    limit_bytes: int = 0
    peak_bytes: int = 0
    spilled_bytes: int = 0
    #: Number of tasks that failed and were computed later.
    retried: int = 0
    #: Number of happenings before the listed ones.
    dropped: int = 0

    @property
    def workers(self) -> list[int]:
        """The workers that ran chunks; the user's process is `CLIENT`."""
        return sorted({row[0] for row in self.rows})

    @property
    def chunks(self) -> int:
        """Number of computed chunks."""
        return sum([costs.chunks for costs in self.layers.values()])

    @property
    def failures(self) -> int:
        """Number of failed attempts."""
        return sum([costs.failed for costs in self.layers.values()])

    @property
    def deaths(self) -> int:
        """Number of workers that died."""
        return sum([one.kind == "death" for one in self.happenings])

    def longest(self) -> list[tuple[str, LayerCosts]]:
        """Return the layers, the one that took longest first."""
        return sorted(self.layers.items(), key=lambda item: -item[1].total_s)

    def busy_share(self) -> float:
        """Return the busy fraction of the workers' time, from the first chunk to the last."""
        rows = [row for row in self.rows if row[0] != CLIENT]
        if not rows:
            return 0.0
        length_s = max([row[2] for row in rows]) - min([row[1] for row in rows])
        workers = len({row[0] for row in rows})
        return min(sum([row[2] - row[1] for row in rows]) / max(length_s * workers, 1e-9), 1.0)

    def remarks(self) -> list[str]:
        """Return remarks about the most noticeable facts."""
        found: list[str] = []
        layers = self.longest()
        total_s = sum([costs.total_s for _, costs in layers])
        if layers and total_s:
            name, costs = layers[0]
            share = units.percent(round(1000 * costs.total_s), round(1000 * total_s))
            found.append(f"{label_of(name)} took {share} of the workers' time, {units.duration(costs.total_s)}.")
            load_s = sum([costs.load_s for _, costs in layers])
            if load_s > 0.2 * total_s:
                share = units.percent(round(1000 * load_s), round(1000 * total_s))
                found.append(f"Inputs took {share} of the time to read, most of it from disk.")
            busy = self.busy_share()
            if busy < 0.7:
                share = f"{round(100 * busy)} %"
                found.append(f"Workers were busy for {share} of the time; else they waited for inputs or room.")
        if self.limit_bytes and self.peak_bytes > 0.9 * self.limit_bytes:
            found.append(f"Memory reached {units.percent(self.peak_bytes, self.limit_bytes)} of the limit.")
        if self.spilled_bytes:
            found.append(f"{units.size(self.spilled_bytes)} went to disk for want of memory.")
        if self.deaths:
            were = "was" if self.deaths == 1 else "were"
            found.append(f"{units.plural(self.deaths, 'worker')} died, and {were} replaced.")
        if self.failures:
            found.append(f"{units.plural(self.failures, 'attempt')} failed.")
        if self.retried:
            found.append(f"{units.plural(self.retried, 'task')} succeeded when tried again.")
        return found


def recorded_of(recording: Recording) -> Recorded:
    """Return the data of a recording that has ended."""
    with recording.lock:
        recording.digest()
        tracks = list(recording.tracks.values())
        layers = _costs_of(tracks)
        layer_ids = {name: layer_id for layer_id, name in enumerate(layers)}
        rows = [
            (worker, began_s, ended_s, layer_ids[track.names[layer]], count)
            for track in tracks
            for worker, began_s, ended_s, layer, count in track.rows
        ]
        rows = merged(_split_over(rows), _DRAWN_ROWS)
        zero_s = min([track.began_s for track in tracks], default=0.0)
        ends = [row[2] for row in rows] + [one.time_s for one in recording.happenings]
        ends += [track.ended_s or track.began_s for track in tracks]
        return Recorded(
            length_s=max(ends, default=zero_s) - zero_s,
            rows=[(row[0], row[1] - zero_s, row[2] - zero_s, row[3], row[4]) for row in rows],
            labels=recording.labels,
            layers=layers,
            computations=[
                ComputationTimes(
                    track.graph,
                    track.began_s - zero_s,
                    track.total,
                    track.done,
                    None if track.ended_s is None else track.ended_s - zero_s,
                    track.outcome,
                )
                for track in tracks
            ],
            happenings=[one._replace(time_s=one.time_s - zero_s) for one in recording.happenings],
            memory=[point._replace(time_s=point.time_s - zero_s) for point in recording.memory],
            spills=[
                one._replace(began_s=one.began_s - zero_s, ended_s=one.ended_s - zero_s)
                for one in recording.spills
            ],
            limit_bytes=recording.limit_bytes,
            peak_bytes=recording.peak_bytes,
            spilled_bytes=recording.spilled_bytes,
            retried=recording.retried,
            dropped=recording.dropped,
        )


def _costs_of(tracks: Iterable[Track]) -> dict[str, LayerCosts]:
    """Return the costs of layers of all computations; the same layer may be in several."""
    found: dict[str, LayerCosts] = {}
    for track in tracks:
        for name, costs in track.costs().items():
            before = found.get(name, LayerCosts())
            found[name] = LayerCosts._make([sum(column) for column in zip(before, costs, strict=True)])
    return found


def _split_over(rows: list[Row]) -> list[Row]:
    """Return rows without overlaps of the user's process, whose threads run side by side."""
    own = sorted([row for row in rows if row[0] == CLIENT], key=lambda row: row[1])
    found = [row for row in rows if row[0] != CLIENT]
    last_s = float("-inf")
    for worker, began_s, ended_s, layer, count in own:
        if ended_s > last_s:
            found.append((worker, max(began_s, last_s), ended_s, layer, count))
            last_s = ended_s
    return found
