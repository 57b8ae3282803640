"""The picture of a chunk graph as plain data: nodes, edges, texts and colours."""

from __future__ import annotations

import colorsys
import itertools
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dask_mars import units
from dask_mars.graph.chunks import DATA, ChunkGraph, Key
from dask_mars.graph.composition import composed_of
from dask_mars.labels import worker_label
from dask_mars.scheduler.assigner import Traversal
from dask_mars.scheduler.events import CLIENT, GraphPlan
from dask_mars.scheduler.simulate import NO_WORKER, simulate

#: Kinds of nodes: a single chunk, a fused one, a known value.
SINGLE, FUSED, KNOWN = "single", "fused", "known"

_GREY, _WHITE = "#d0d0d0", "#ffffff"
_SINGLE_COLOUR, _FUSED_COLOUR = "#dce9f8", "#d5efdc"
# Maximum number of characters in a line of a layer's name.
_LAYER_WIDTH = 16
# Maximum number of parts of a chunk that are examined for their layers.
_MOST_EXAMINED = 100
# Prefix of names that our conversion creates; the numbers behind it mean nothing.
_OURS = "mars-"
# Maximum number of parts of a name; from longer names the middle is omitted.
_MOST_PARTS = 5


@dataclass(frozen=True, slots=True)
class Node:
    """One chunk."""

    kind: str
    #: Its number in the order of priority and, if it is fused, its number of chunks.
    heading: str
    name: str
    index: str
    worker: int
    colour: str
    wanted: bool

    @property
    def lines(self) -> list[str]:
        """The lines of its text."""
        return [line for line in (self.heading, *self.name.split("\n"), self.index) if line]


@dataclass(frozen=True, slots=True)
class Picture:
    """One graph."""

    title: str
    nodes: list[Node]
    #: Positions in `nodes`: an input, and its reader.
    edges: list[tuple[int, int]]


def make_legend(pictures: Iterable[Picture]) -> list[tuple[str, str]]:
    """Return name and colour of each worker with chunks in one of the pictures."""
    colours = {node.worker: node.colour for picture in pictures for node in picture.nodes}
    return [(worker_label(worker), colours[worker]) for worker in sorted(colours) if worker != NO_WORKER]


def make_picture(
    title: str,
    graph: ChunkGraph,
    before: ChunkGraph,
    num_workers: int,
    name_of: Callable[[str], str],
    policy: str = "mars",
    assignment: Traversal = "breadth-first",
) -> Picture:
    """Return the picture of a graph."""
    plan = GraphPlan(
        inputs=graph.inputs,
        outputs=graph.outputs,
        operand_of=graph.operand_of,
        in_client=frozenset(graph.chunks_for_client() | graph.in_client),
        priorities=graph.priorities,
    )
    # Assumes equal durations; priorities are the order in which a single worker would start the chunks.
    workers = simulate(plan, num_workers, policy, assignment).workers
    priorities = {chunk: position for position, chunk in enumerate(simulate(plan, 1, policy, assignment).order)}
    colours = worker_colours(num_workers)
    wanted = set(graph.outputs)
    nodes = []
    for chunk, (key, made_of) in enumerate(zip(graph.keys, composed_of(before, graph), strict=True)):
        layers = [before.layer_of(part) for part in made_of] or [graph.layer_of(chunk)]
        parts = [name_of(layer).removeprefix(_OURS) for layer in layers]
        known = graph.operand_of[chunk] == DATA
        heading = "" if known else f"#{priorities[chunk]}"
        if len(parts) > 1:
            heading += f" · FUSE of {len(parts)}"
        nodes.append(
            Node(
                kind=KNOWN if known else FUSED if len(parts) > 1 else SINGLE,
                heading=heading,
                name=_joined(parts),
                index=_index(key),
                worker=workers[chunk],
                colour=colours[workers[chunk]],
                wanted=chunk in wanted,
            )
        )
    edges = [(source, chunk) for chunk, sources in enumerate(graph.inputs) for source in dict.fromkeys(sources)]
    return Picture(title, nodes, edges)


def make_layers_picture(
    title: str, graph: ChunkGraph, before: ChunkGraph, name_of: Callable[[str], str], size_of: Callable[[int], str]
) -> Picture:
    """Return the picture of a graph's layers, for graphs with too many chunks."""
    wanted = {graph.layer_of(chunk) for chunk in graph.outputs}
    chunks: dict[str, list[int]] = {}
    for chunk in range(len(graph)):
        chunks.setdefault(graph.layer_of(chunk), []).append(chunk)
    positions = {layer: position for position, layer in enumerate(chunks)}
    composed = composed_of(before, graph, _MOST_EXAMINED)
    nodes = []
    for layer, members in chunks.items():
        made_of = composed[members[-1]]
        parts = list(dict.fromkeys([before.layer_of(part) for part in made_of] or [layer]))
        names = [name_of(part).removeprefix(_OURS) for part in parts]
        known = all(graph.operand_of[chunk] == DATA for chunk in members)
        fused = len(names) > 1
        sizes = [graph.declared_bytes(chunk) for chunk in members]
        size = size_of(sum([size or 0 for size in sizes])) if any(sizes) else ""
        nodes.append(
            Node(
                kind=KNOWN if known else FUSED if fused else SINGLE,
                heading=units.plural(len(members), "chunk"),
                name="\n".join(textwrap.wrap(_joined(names).replace("-", "- "), _LAYER_WIDTH)).replace("- ", "-"),
                index=size,
                worker=NO_WORKER,
                colour=_WHITE if known else _FUSED_COLOUR if fused else _SINGLE_COLOUR,
                wanted=layer in wanted,
            )
        )
    edges = dict.fromkeys(
        [
            (positions[graph.layer_of(source)], positions[graph.layer_of(chunk)])
            for chunk, sources in enumerate(graph.inputs)
            for source in sources
            if graph.layer_of(source) != graph.layer_of(chunk)
        ]
    )
    return Picture(title, nodes, list(edges))


# -- texts and colours ----------------------------------------------------------------------------------------


def worker_colours(num_workers: int) -> dict[int, str]:
    """Return the colour of each worker: light, for black text."""
    colours = {NO_WORKER: _WHITE, CLIENT: _GREY}
    for worker in range(num_workers):
        # Neighbours among many workers have similar hues, so their lightness differs.
        rgb = colorsys.hls_to_rgb((0.58 + worker / num_workers) % 1.0, 0.72 if worker % 2 else 0.82, 0.75)
        colours[worker] = "#" + "".join(f"{round(255 * part):02x}" for part in rgb)
    return colours


def _joined(parts: Iterable[str]) -> str:
    """Join the names of a chunk's parts, counting repeated ones."""
    counted = [(name, len(list(group))) for name, group in itertools.groupby(parts)]
    names = [f"{count} {name}" if count > 1 else name for name, count in counted]
    if len(names) > _MOST_PARTS:
        names[2:-2] = ["…"]
    return " · ".join(names)


def _index(key: Key) -> str:
    """Return a chunk's index in its collection."""
    if not isinstance(key, tuple) or len(key) < 2 or str(key[0]).startswith(_OURS):
        return ""
    return f"({', '.join(map(str, key[1:]))})"
