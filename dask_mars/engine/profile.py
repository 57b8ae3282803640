"""Durations and stored bytes of computed chunks, added up by layer on request."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from dask_mars import units
from dask_mars.graph.chunks import Key, layer_of
from dask_mars.labels import label_of
from dask_mars.tables import Table, Tabular

#: Maximum number of layers of a computation in a table; the others, which took less, share a row.
_MOST_ROWS = 30


class ChunkMeasurements(NamedTuple):
    """Measurements of a computation's chunks.

    Attributes
    ----------
    graph : int
        The graph's number.
    keys : sequence of key
        Key of each chunk.
    durations_s : array
        Duration of each chunk, negative if it is not computed.
    stored_bytes : array
        Size of each chunk in the store when it was computed there, 0 for small values.
    """

    graph: int
    keys: Sequence[Key]
    durations_s: array[float]
    stored_bytes: array[int]


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

    def __init__(self, count: int = 0, total_s: float = 0.0, stored_bytes: int = 0) -> None:
        mean_s = total_s / count if count else 0.0
        super().__init__(count=count, total_s=total_s, mean_s=mean_s, stored_bytes=stored_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return LayerProfile, (self.count, self.total_s, self.stored_bytes)

    @property
    def count(self) -> int:
        """Return the number of computed chunks."""
        count: int = self["count"]
        return count

    @property
    def total_s(self) -> float:
        """Return the sum of their durations, in seconds."""
        total_s: float = self["total_s"]
        return total_s

    @property
    def mean_s(self) -> float:
        """Return the mean of their durations, in seconds."""
        mean_s: float = self["mean_s"]
        return mean_s

    @property
    def stored_bytes(self) -> int:
        """Return the bytes that their values took in the store."""
        stored_bytes: int = self["stored_bytes"]
        return stored_bytes

    def __repr__(self) -> str:
        return f"<{units.plural(self.count, 'chunk')} in {units.duration(self.total_s)}, {self._sizes()}>"

    def _sizes(self) -> str:
        return f"{units.duration(self.mean_s)} each, {units.size(self.stored_bytes)} stored"


class ComputationProfile(Tabular, dict[str, LayerProfile]):
    """Totals of each layer of one computation, by the layer's name; shown as a table."""

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain dicts with the same content."""
        return {layer: dict(profile) for layer, profile in self.items()}

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each layer.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        return _frame([{"layer": layer, "label": label_of(layer), **profile} for layer, profile in self.items()])

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
    """Totals of computations, by their numbers or ids; shown as a table for each."""

    def to_dict(self) -> dict[Any, dict[str, dict[str, Any]]]:
        """Return plain dicts with the same content."""
        return {computation: profile.to_dict() for computation, profile in self.items()}

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each layer of each computation.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        return _frame(
            [
                {"computation": computation, "layer": layer, "label": label_of(layer), **profile}
                for computation, layers in self.items()
                for layer, profile in layers.items()
            ]
        )

    def tables(self) -> list[Table]:
        """Return the tables that show it."""
        if not self:
            return [Table((), (), "nothing has been computed")]
        return [layers.table(f"computation {computation}") for computation, layers in self.items()]


def by_layer(measurements: ChunkMeasurements) -> ComputationProfile:
    """Add up the computed chunks by layer, in the order of the layers' first chunks."""
    layers: dict[str, list[Any]] = {}
    for key, duration_s, stored_bytes in zip(*measurements[1:], strict=True):
        if duration_s >= 0:
            layer = layers.setdefault(layer_of(key), [0, 0.0, 0])
            layer[0] += 1
            layer[1] += duration_s
            layer[2] += stored_bytes
    return ComputationProfile({name: LayerProfile(*sums) for name, sums in layers.items()})


def _row(name: str, profile: LayerProfile) -> tuple[str, ...]:
    stored = units.size(profile.stored_bytes) if profile.stored_bytes else ""
    # Agents of clusters report no times.
    times = (units.duration(profile.total_s), units.duration(profile.mean_s)) if profile.total_s else ("", "")
    return name, f"{profile.count:,}", *times, stored


def _sum(profiles: Any) -> LayerProfile:
    found: Mapping[str, Any]
    count, total_s, stored_bytes = 0, 0.0, 0
    for found in profiles:
        count += found["count"]
        total_s += found["total_s"]
        stored_bytes += found["stored_bytes"]
    return LayerProfile(count, total_s, stored_bytes)


def _frame(rows: list[dict[str, Any]]) -> Any:
    # Only `to_pandas` needs this import.
    from dask.utils import import_required

    return import_required("pandas", "to_pandas needs pandas: python -m pip install pandas").DataFrame(rows)


__all__ = ["ChunkMeasurements", "ComputationProfile", "LayerProfile", "Profile", "by_layer"]
