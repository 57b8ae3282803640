"""Places the nodes of a graph in rows by depth, each above the middle of its inputs."""

from __future__ import annotations

from collections.abc import Sequence


def place(count: int, edges: Sequence[tuple[int, int]]) -> list[tuple[float, int]]:
    """Place the nodes of a graph."""
    inputs: list[list[int]] = [[] for _ in range(count)]
    for source, node in edges:
        inputs[node].append(source)
    rows = _rows(inputs)
    columns = [0.0] * count
    initial = 0
    for node in range(count):
        if not inputs[node]:
            columns[node] = initial
            initial += 1
    members: dict[int, list[int]] = {}
    for node, row in enumerate(rows):
        members.setdefault(row, []).append(node)
    for row in sorted(members):
        for node in members[row]:
            if inputs[node]:
                columns[node] = sum(columns[source] for source in inputs[node]) / len(inputs[node])
        _spread(members[row], columns)
    left = min(columns, default=0.0)
    return [(column - left, row) for column, row in zip(columns, rows, strict=True)]


def _rows(inputs: list[list[int]]) -> list[int]:
    """Return each node's depth; for a node without inputs that of its first consumer less one."""
    depths: list[int] = []
    for sources in inputs:
        depths.append(1 + max([depths[source] for source in sources], default=-1))
    consumers: dict[int, int] = {}
    for node, sources in enumerate(inputs):
        for source in sources:
            consumers[source] = min(consumers.get(source, depths[node]), depths[node])
    return [depth if inputs[node] else consumers.get(node, 1) - 1 for node, depth in enumerate(depths)]


def _spread(nodes: list[int], columns: list[float]) -> None:
    """Move the nodes of a row apart, and the row as a whole back to its former centre."""
    nodes.sort(key=lambda node: (columns[node], node))
    placed: list[float] = []
    for node in nodes:
        placed.append(max(columns[node], placed[-1] + 1.0) if placed else columns[node])
    shift = sum(column - columns[node] for node, column in zip(nodes, placed, strict=True)) / len(nodes)
    for node, column in zip(nodes, placed, strict=True):
        columns[node] = column - shift
