"""Find bright spots in a picture that comes in tiles.

It follows the application "image processing" of the Dask examples
(https://examples.dask.org/applications/image-processing.html): tiles in PNG files are read and put together, made
grey, smoothed with a margin from the neighbours, cut at a threshold, and the spots that are left are counted and
measured. No scheduler is named here. Dask takes it from its configuration or the environment::

    DASK_SCHEDULER=mars python examples/tutorials/images.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import dask
import dask.array as da
import matplotlib.image
import numpy as np
import numpy.typing as npt
from scipy import ndimage

SIDE, TILES = 256, 4
SIGMA = 3.0
#: The gaussian is cut off at four deviations, as scipy does by itself.
MARGIN = int(4 * SIGMA + 0.5)


def draw_spots() -> npt.NDArray[np.uint8]:
    """Return a picture of bright spots on a noisy ground."""
    rng = np.random.default_rng(8)
    side = SIDE * TILES
    picture = rng.uniform(0, 60, (side, side, 3))
    rows, columns = np.mgrid[-20:21, -20:21]
    spot = np.exp(-(rows**2 + columns**2) / 128)[:, :, np.newaxis]
    for row, column in rng.integers(20, side - 21, (60, 2)):
        picture[row - 20 : row + 21, column - 20 : column + 21] += spot * rng.uniform(100, 190, 3)
    return np.clip(picture, 0, 255).astype(np.uint8)


def read_tile(path: Path) -> npt.NDArray[np.float32]:
    """Read a PNG file as shares of white, without the opacity that comes last."""
    return matplotlib.image.imread(path)[:, :, :3]


def grey(rgb: da.Array | npt.NDArray[np.float32]) -> da.Array | npt.NDArray[np.float32]:
    return rgb[..., 0] * 0.2125 + rgb[..., 1] * 0.7154 + rgb[..., 2] * 0.0721


def sums_by_label(labels: npt.NDArray[np.int32], values: npt.NDArray[np.float32], count: int) -> npt.NDArray:
    """Return the number of pixels and their sum for each label in one tile."""
    flat = labels.ravel()
    pixels = np.bincount(flat, minlength=count + 1)
    light = np.bincount(flat, values.ravel().astype(np.float64), count + 1)
    return np.stack([pixels, light])[np.newaxis, np.newaxis]


def main() -> None:
    picture = draw_spots()
    with tempfile.TemporaryDirectory() as folder:
        grid = []
        for i in range(TILES):
            row = []
            for j in range(TILES):
                path = Path(folder) / f"tile-{i}{j}.png"
                tile = picture[i * SIDE : (i + 1) * SIDE, j * SIDE : (j + 1) * SIDE]
                matplotlib.image.imsave(path, tile)
                row.append(da.from_delayed(dask.delayed(read_tile)(path), (SIDE, SIDE, 3), np.float32))
            grid.append(row)
        image = grey(da.block([[[tile] for tile in row] for row in grid]).rechunk((SIDE, SIDE, 3)))
        print(f"{TILES * TILES} tiles make a picture of {image.shape[0]} x {image.shape[1]} pixels")

        # Tiles are read once and kept: all that follows begins with them.
        image = image.persist()
        smooth = image.map_overlap(ndimage.gaussian_filter, depth=MARGIN, boundary="reflect", sigma=SIGMA)
        threshold = 0.6 * smooth.max().compute()
        bright = smooth > threshold

        # A spot may lie on several tiles, so labels are given to the whole, in one task.
        spots, count = dask.delayed(ndimage.label, nout=2)(bright)
        count = count.compute()
        labels = da.from_delayed(spots, image.shape, np.int32).rechunk(image.chunks)
        parts = da.map_blocks(
            sums_by_label,
            labels,
            image,
            count,
            new_axis=[2, 3],
            chunks=((1,) * TILES, (1,) * TILES, (2,), (count + 1,)),
            dtype=np.float64,
        )
        pixels, light = parts.sum(axis=(0, 1)).compute()

    whole = grey(picture.astype(np.float32) / 255)
    known = ndimage.gaussian_filter(whole, SIGMA, mode="reflect")
    np.testing.assert_allclose(threshold, 0.6 * known.max(), rtol=1e-5)
    known_labels, known_count = ndimage.label(known > threshold)
    means = ndimage.mean(whole, known_labels, np.arange(known_count + 1))
    np.testing.assert_allclose(light / pixels, means, rtol=1e-4, err_msg="mean of each spot")
    print(f"{count} spots above {threshold:.3f}, {pixels[1:].mean():.1f} pixels each")
    print(f"ground {light[0] / pixels[0]:.3f}, spots {light[1:].sum() / pixels[1:].sum():.3f} of white")


if __name__ == "__main__":
    main()
