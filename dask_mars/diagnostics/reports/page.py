"""The page of a report: one self-contained file, readable in light and dark, on screens and phones.

Shapes are SVG that stretches with the page; texts beside them are HTML, and keep their size.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dask_mars import units
from dask_mars.diagnostics.reports.recording import Happening, LayerSums, MemoryPoint, Recorded
from dask_mars.diagnostics.reports.style import COLOURS, STYLE
from dask_mars.labels import label_of, worker_label
from dask_mars.scheduler.events import CLIENT

#: Most layers with a colour of their own, and with a row in the table.
_COLOURED, _LISTED = len(COLOURS), 30
#: Most points of a line.
_MOST_POINTS = 1_000
_WIDTH = 1_000


class PageFacts(NamedTuple):
    """The content of the page besides the recorded data.

    Attributes
    ----------
    title, when : str
        Heading and time.
    outcome : str
        "finished", or the reason for another end.
    versions, settings : mapping
        Values by name.
    """

    title: str
    when: str
    outcome: str
    versions: Mapping[str, str]
    settings: Mapping[str, str]


def render(recorded: Recorded, facts: PageFacts) -> str:
    """Return the page."""
    colours = _layer_colours(recorded)
    kind = facts.outcome.split()[0]
    parts = [
        f'<header><h1>{_text(facts.title)}</h1><p>{_text(facts.when)} · <span class="{kind}">'
        f"{_text(facts.outcome)}</span></p></header>",
        _tiles(recorded),
        _list("What stands out", remarks(recorded)),
        _timeline(recorded, colours),
        _memory(recorded),
        _layers(recorded, colours),
        _happenings(recorded),
        _computations(recorded),
        _facts("Versions", facts.versions),
        _facts("Settings", facts.settings),
    ]
    return document(facts.title, "".join(parts))


def placeholder(title: str, when: str) -> str:
    """Return the page before the end of the recording."""
    return document(title, f"<header><h1>{_text(title)}</h1><p>{_text(when)} · not finished yet</p></header>")


def document(title: str, body: str) -> str:
    """Return a document of HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )


def remarks(recorded: Recorded) -> list[str]:
    """Return remarks about the most noticeable facts."""
    found: list[str] = []
    layers = sorted(recorded.layers.items(), key=lambda item: -item[1].total_s)
    total_s = sum([sums.total_s for _, sums in layers])
    if layers and total_s:
        name, sums = layers[0]
        share = units.percent(round(1000 * sums.total_s), round(1000 * total_s))
        found.append(f"{label_of(name)} took {share} of the workers' time, {units.duration(sums.total_s)}.")
        load_s = sum([sums.load_s for _, sums in layers])
        if load_s > 0.2 * total_s:
            share = units.percent(round(1000 * load_s), round(1000 * total_s))
            found.append(f"Inputs took {share} of the time to read, most of it from disk.")
        busy = recorded.busy_share()
        if busy < 0.7:
            found.append(
                f"Workers were busy for {round(100 * busy)} % of the time; else they waited for inputs or room."
            )
    if recorded.limit_bytes and recorded.peak_bytes > 0.9 * recorded.limit_bytes:
        share = units.percent(recorded.peak_bytes, recorded.limit_bytes)
        found.append(f"Memory reached {share} of the limit.")
    if recorded.spilled_bytes:
        found.append(f"{units.size(recorded.spilled_bytes)} went to disk for want of memory.")
    deaths = sum([one.kind == "worker died" for one in recorded.happenings])
    if deaths:
        found.append(f"{units.plural(deaths, 'worker')} died, and {'was' if deaths == 1 else 'were'} replaced.")
    failures = sum([sums.failed for sums in recorded.layers.values()])
    if failures:
        found.append(f"{units.plural(failures, 'attempt')} failed.")
    if recorded.retried:
        found.append(f"{units.plural(recorded.retried, 'task')} succeeded when tried again.")
    return found


# -- parts ----------------------------------------------------------------------------------------------------


def _tiles(recorded: Recorded) -> str:
    chunks = sum([sums.count for sums in recorded.layers.values()])
    failures = sum([sums.failed for sums in recorded.layers.values()])
    deaths = sum([one.kind == "worker died" for one in recorded.happenings])
    limit = f"of {units.size(recorded.limit_bytes)}" if recorded.limit_bytes else ""
    workers = [worker for worker in recorded.workers if worker != CLIENT]
    tiles = [
        ("time", units.duration(recorded.length_s), ""),
        ("chunks", f"{chunks:,}", f"of {units.plural(len(recorded.layers), 'layer')}"),
        ("workers busy", f"{round(100 * recorded.busy_share())} %", units.plural(len(workers), "worker")),
        ("most memory", units.size(recorded.peak_bytes), limit),
        ("to disk", units.size(recorded.spilled_bytes), ""),
        ("failures", f"{failures:,}", f"{recorded.retried:,} tried again"),
        ("deaths", f"{deaths:,}", "of workers"),
    ]
    cells = [
        f'<div class="tile"><div>{name}</div><b>{_text(value)}</b><div>{_text(remark)}</div></div>'
        for name, value, remark in tiles
    ]
    return f'<section class="tiles">{"".join(cells)}</section>'


def _timeline(recorded: Recorded, colours: Mapping[str, str]) -> str:
    names = list(recorded.layers)
    length_s = max(recorded.length_s, 1e-9)
    rows = []
    for worker in recorded.workers:
        shapes = []
        for row_worker, start_s, end_s, layer, chunks in recorded.rows:
            if row_worker == worker:
                name = names[layer]
                tip = f"{label_of(name)}, {units.plural(chunks, 'chunk')}, {units.duration(end_s - start_s)}"
                shapes.append(
                    f'<rect x="{_WIDTH * start_s / length_s:.2f}" '
                    f'width="{max(_WIDTH * (end_s - start_s) / length_s, 0.3):.2f}" height="1" '
                    f'fill="{colours.get(name, "var(--other)")}"><title>{_text(tip)}</title></rect>'
                )
        for one in recorded.happenings:
            if one.worker == worker:
                shapes.append(
                    f'<rect class="bad" x="{_WIDTH * one.time_s / length_s:.2f}" width="3" height="1">'
                    f"<title>{_text(f'{one.kind}: {one.what}')}</title></rect>"
                )
        rows.append(_row(recorded.labels.get(worker, worker_label(worker)), "".join(shapes)))
    if not rows:
        return ""
    if recorded.spills:
        written = "".join(
            [
                f'<rect class="spill" x="{_WIDTH * began_s / length_s:.2f}" '
                f'width="{max(_WIDTH * (ended_s - began_s) / length_s, 0.5):.2f}" height="1">'
                f"<title>{_text(units.size(size))} to disk</title></rect>"
                for began_s, ended_s, size in recorded.spills
            ]
        )
        rows.append(_row("disk", written))
    legend = "".join(
        [
            f'<span><i style="background: {colour}"></i>{_text(name)}</span>'
            for name, colour in {label_of(name): colour for name, colour in colours.items()}.items()
        ]
    )
    if len(recorded.layers) > len(colours):
        legend += '<span><i style="background: var(--other)"></i>others</span>'
    if recorded.happenings:
        legend += '<span><i class="bad"></i>failed or died</span>'
    return (
        f"<section><h2>Timeline</h2>{''.join(rows)}{_axis(recorded.length_s)}"
        f'<div class="legend">{legend}</div></section>'
    )


def _row(name: str, shapes: str) -> str:
    return (
        f'<div class="row"><span>{name}</span><svg viewBox="0 0 {_WIDTH} 1" preserveAspectRatio="none" '
        f'role="img" aria-label="{name}">{shapes}</svg></div>'
    )


def _axis(length_s: float) -> str:
    ticks = "".join([f"<span>{units.duration(length_s * part / 4) if part else '0'}</span>" for part in range(5)])
    return f'<div class="row axis"><span></span><div>{ticks}</div></div>'


def _memory(recorded: Recorded) -> str:
    points = _thinned(recorded.memory)
    if not points:
        return ""
    top = 1.05 * max([recorded.limit_bytes, recorded.peak_bytes, 1])
    length_s = max(recorded.length_s, 1e-9)

    def area(values: Iterable[int], kind: str) -> str:
        places = [
            f"{_WIDTH * point.time_s / length_s:.1f},{100 - 100 * value / top:.2f}"
            for point, value in zip(points, values, strict=True)
        ]
        first, last = places[0].split(",")[0], places[-1].split(",")[0]
        return f'<polygon class="{kind}" points="{first},100 {" ".join(places)} {last},100"/>'

    limit = 100 - 100 * recorded.limit_bytes / top
    shapes = area([point.in_use_bytes for point in points], "use")
    shapes += area([point.stored_bytes for point in points], "stored")
    if recorded.limit_bytes:
        shapes += f'<line class="limit" x1="0" x2="{_WIDTH}" y1="{limit:.2f}" y2="{limit:.2f}"/>'
    spilled = ""
    if recorded.spilled_bytes:
        highest = max(recorded.spilled_bytes, 1)
        line = " ".join(
            [
                f"{_WIDTH * point.time_s / length_s:.1f},{100 - 100 * point.spilled_bytes / top:.2f}"
                for point in points
            ]
        )
        if highest <= top:
            spilled = f'<polyline class="disk" points="{line}"/>'
    legend = (
        '<span><i class="use"></i>in use</span><span><i class="stored"></i>results</span>'
        f'<span><i class="limit"></i>limit, {units.size(recorded.limit_bytes)}</span>'
    )
    if spilled:
        legend += '<span><i class="disk"></i>written to disk so far</span>'
    return (
        '<section><h2>Memory</h2><div class="row tall"><span class="scale">'
        f"<span>{units.size(recorded.limit_bytes or recorded.peak_bytes)}</span><span>0</span></span>"
        f'<svg viewBox="0 0 {_WIDTH} 100" preserveAspectRatio="none" role="img" aria-label="memory">{shapes}'
        f'{spilled}</svg></div>{_axis(recorded.length_s)}<div class="legend">{legend}</div></section>'
    )


def _layers(recorded: Recorded, colours: Mapping[str, str]) -> str:
    ordered = sorted(recorded.layers.items(), key=lambda item: -item[1].total_s)
    if not ordered:
        return ""
    longest_s = max(ordered[0][1].total_s, 1e-9)
    most_bytes = max([sums.stored_bytes for _, sums in ordered])
    rows = []
    for name, sums in ordered[:_LISTED]:
        colour = colours.get(name, "var(--other)")
        rows.append(
            f'<tr><td title="{_text(name)}"><i style="background: {colour}"></i>{_text(label_of(name))}</td>'
            f"<td>{sums.count:,}</td><td>{units.duration(sums.total_s)}{_steps(sums, longest_s)}</td>"
            f"<td>{units.duration(sums.total_s / max(sums.count, 1))}</td>"
            f"<td>{units.size(sums.stored_bytes) if sums.stored_bytes else ''}"
            f"{_bar(sums.stored_bytes, most_bytes)}</td>"
            f'<td class="{"failed" if sums.failed else ""}">{sums.failed or ""}</td></tr>'
        )
    rest = len(ordered) - _LISTED
    more = f"<p>and {units.plural(rest, 'smaller layer')}</p>" if rest > 0 else ""
    return (
        '<section><h2>Layers</h2><div class="wide"><table><thead><tr><th>layer</th><th>chunks</th><th>time</th>'
        f"<th>each</th><th>stored</th><th>failed</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>{more}"
        '<div class="legend"><span><i class="load"></i>reading inputs</span><span><i class="compute"></i>computing'
        '</span><span><i class="seal"></i>storing the result</span></div></section>'
    )


def _steps(sums: LayerSums, longest_s: float) -> str:
    parts = [("load", sums.load_s), ("compute", sums.compute_s), ("seal", sums.seal_s)]
    drawn = [f'<i class="{kind}" style="width: {100 * time_s / longest_s:.2f}%"></i>' for kind, time_s in parts]
    return f'<div class="bar">{"".join(drawn)}</div>'


def _bar(part: int, most: int) -> str:
    share = 100 * part / most if most else 0.0
    return f'<div class="bar"><i class="stored" style="width: {share:.2f}%"></i></div>' if part else ""


def _happenings(recorded: Recorded) -> str:
    if not recorded.happenings:
        return ""
    rows = "".join([_happening(one) for one in recorded.happenings[:100]])
    rest = len(recorded.happenings) - 100
    more = f"<p>and {rest:,}{' and more' if recorded.is_truncated else ''} others</p>" if rest > 0 else ""
    table = f'<div class="wide"><table><tbody>{rows}</tbody></table></div>'
    return f"<section><h2>What went wrong</h2>{table}{more}</section>"


def _happening(one: Happening) -> str:
    what = f'<td class="failed">{_text(one.kind)}</td><td class="text">{_text(one.what)}</td>'
    return f"<tr><td>{units.duration(one.time_s)}</td>{what}</tr>"


def _computations(recorded: Recorded) -> str:
    rows = []
    for one in recorded.computations[:100]:
        took = "" if one.ended_s is None else units.duration(one.ended_s - one.began_s)
        rows.append(
            f"<tr><td>{one.number}</td><td>{units.duration(one.began_s)}</td><td>{took}</td>"
            f'<td>{one.done:,} of {one.chunks:,}</td><td class="{one.outcome}">{one.outcome}</td></tr>'
        )
    if not rows:
        return "<section><p>Nothing was computed.</p></section>"
    return (
        '<section><h2>Computations</h2><div class="wide"><table><thead><tr><th>number</th><th>began after</th>'
        f"<th>took</th><th>chunks</th><th>state</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _facts(title: str, facts: Mapping[str, str]) -> str:
    rows = "".join(
        [f'<tr><td>{_text(name)}</td><td class="text">{_text(value)}</td></tr>' for name, value in facts.items()]
    )
    table = f'<div class="wide"><table><tbody>{rows}</tbody></table></div>'
    return f"<section><details><summary>{title}</summary>{table}</details></section>"


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join([f"<li>{_text(line)}</li>" for line in lines])
    return f"<section><h2>{title}</h2><ul>{items}</ul></section>"


# -- small things ---------------------------------------------------------------------------------------------


def _layer_colours(recorded: Recorded) -> dict[str, str]:
    """Return colours of the layers that took longest; layers with the same label share one."""
    longest = sorted(recorded.layers, key=lambda name: -recorded.layers[name].total_s)
    labels = list(dict.fromkeys(map(label_of, longest)))[:_COLOURED]
    return {name: f"var(--layer-{labels.index(label_of(name))})" for name in longest if label_of(name) in labels}


def _thinned(points: Sequence[MemoryPoint]) -> list[MemoryPoint]:
    """Return few enough points to draw, of each group the one with the most memory in use."""
    size = max(-(-len(points) // _MOST_POINTS), 1)
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [max(group, key=lambda point: point.in_use_bytes) for group in groups]


def _text(value: object) -> str:
    return html.escape(str(value))


__all__ = ["PageFacts", "placeholder", "remarks", "render"]
