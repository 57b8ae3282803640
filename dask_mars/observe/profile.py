"""Seconds and bytes of a computation by layer, as dicts that show themselves as tables."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from dask_mars import units
from dask_mars.labels import label_of
from dask_mars.observe.counts import LayerCounts
from dask_mars.observe.layers import LayerIndex
from dask_mars.tables import Table, Tabular

if TYPE_CHECKING:
    from dask_mars.engine.graph_run import ChunkMeasurements

#: Maximum number of layers of a computation in a table; the others, which took less, share a row.
_MOST_ROWS = 30


class LayerProfile(dict[str, Any]):
    """Totals of the computed chunks of one layer, as a dict and by attributes.

    Attributes
    ----------
    count : int
        Number of chunks.
    total_s, mean_s : float
        Sum and mean of their durations.
    stored_bytes : int
        Bytes that their values took in the store.
    """

    __slots__ = ()

    count: int = property(itemgetter("count"))  # type: ignore[assignment]
    total_s: float = property(itemgetter("total_s"))  # type: ignore[assignment]
    mean_s: float = property(itemgetter("mean_s"))  # type: ignore[assignment]
    stored_bytes: int = property(itemgetter("stored_bytes"))  # type: ignore[assignment]

    def __init__(self, count: int = 0, total_s: float = 0.0, stored_bytes: int = 0) -> None:
        mean_s = total_s / count if count else 0.0
        super().__init__(count=count, total_s=total_s, mean_s=mean_s, stored_bytes=stored_bytes)

    def __repr__(self) -> str:
        each = f"{units.duration(self.mean_s)} each, {units.size(self.stored_bytes)} stored"
        return f"<{units.plural(self.count, 'chunk')} in {units.duration(self.total_s)}, {each}>"


class ComputationProfile(Tabular, dict[str, LayerProfile]):
    """Totals of each layer of one computation, by the layer's name; shown as a table."""

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain dicts with the same content."""
        return {layer: dict(profile) for layer, profile in self.items()}

    def records(self) -> list[dict[str, Any]]:
        """Return the layers with their names and labels."""
        return [{"layer": layer, "label": label_of(layer), **profile} for layer, profile in self.items()]

    def tables(self) -> list[Table]:
        """Return the table that shows it."""
        return [self.table("")]

    def table(self, title: str) -> Table:
        """Return its table under a title."""
        shown = set(sorted(self, key=lambda layer: -self[layer].total_s)[:_MOST_ROWS])
        rows = [_row(label_of(layer), profile) for layer, profile in self.items() if layer in shown]
        others = [profile for layer, profile in self.items() if layer not in shown]
        if others:
            rows.append(_row(f"{len(others)} other layers", _sum(others)))
        if len(self) > 1:
            rows.append(_row("all", _sum(self.values())))
        if not self:
            return Table((), (), title or "nothing has been computed")
        return Table(("layer", "chunks", "time", "each", "stored"), rows, title)


class Profile(Tabular, dict[Hashable, ComputationProfile]):
    """Totals of computations, by their ids; shown as a table for each."""

    def to_dict(self) -> dict[Any, dict[str, dict[str, Any]]]:
        """Return plain dicts with the same content."""
        return {computation: profile.to_dict() for computation, profile in self.items()}

    def records(self) -> list[dict[str, Any]]:
        """Return the layers of all computations."""
        return [
            {"computation": computation, **row} for computation, layers in self.items() for row in layers.records()
        ]

    def tables(self) -> list[Table]:
        """Return the tables that show it."""
        if not self:
            return [Table((), (), "nothing has been computed")]
        return [layers.table(f"computation {computation}") for computation, layers in self.items()]


def by_layer(measurements: ChunkMeasurements) -> ComputationProfile:
    """Add up the computed chunks by layer, in the order of the layers' first chunks."""
    index = LayerIndex(measurements.keys, bytes(len(measurements.keys)))
    return profile_of(index.count(measurements.durations_s, measurements.stored_bytes))


def profile_of(layers: Sequence[LayerCounts]) -> ComputationProfile:
    """Return the cost of each layer that has begun."""
    begun = [layer for layer in layers if layer.finished]
    return ComputationProfile(
        {layer.name: LayerProfile(layer.finished, layer.seconds, layer.bytes) for layer in begun}
    )


def _row(name: str, profile: LayerProfile) -> tuple[str, ...]:
    stored = units.size(profile.stored_bytes) if profile.stored_bytes else ""
    # Agents of clusters report no times.
    times = (units.duration(profile.total_s), units.duration(profile.mean_s)) if profile.total_s else ("", "")
    return name, f"{profile.count:,}", *times, stored


def _sum(profiles: Iterable[LayerProfile]) -> LayerProfile:
    columns = [(profile.count, profile.total_s, profile.stored_bytes) for profile in profiles]
    return LayerProfile(*[sum(column) for column in zip(*columns, strict=True)])
