# %% [markdown]
# # An image pipeline
#
# `scikit-image` ships a part of the Hubble deep field: galaxies far away. Say that a telescope has taken it many times,
# each time with other noise. We count the galaxies of each exposure, and ask how sure the count is.

# %%
import statistics
import time

import dask
import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from skimage import data, filters, measure, morphology

import dask_mars

picture = data.hubble_deep_field().mean(axis=2).astype("f4")
EXPOSURES = 12


def expose(number):
    rng = np.random.default_rng(number)
    return (picture + rng.normal(0, 12, picture.shape)).astype("f4")


def galaxies(exposure, threshold=40):
    smooth = filters.gaussian(exposure, sigma=1.5)
    background = filters.gaussian(exposure, sigma=15, truncate=2)
    spots = morphology.remove_small_objects(smooth - background > threshold, max_size=12)
    return [(spot.area, *spot.centroid) for spot in measure.regionprops(measure.label(spots))]


# %% [markdown]
# Any function works in `dask.delayed`. Functions that a notebook defines travel to the workers by value.

# %%
found = [dask.delayed(galaxies)(dask.delayed(expose)(number)) for number in range(EXPOSURES)]
lists = dask.compute(*found, scheduler=dask_mars.get)
counts = [len(spots) for spots in lists]
print(f"{statistics.mean(counts):.1f} galaxies, give or take {statistics.stdev(counts):.1f}")

# %% [markdown]
# The mean of all exposures has less noise. It is a reduction of an array with an exposure in each chunk.

# %%
stack = da.stack([da.from_delayed(dask.delayed(expose)(n), picture.shape, "f4") for n in range(EXPOSURES)])
mean = stack.mean(axis=0).compute(scheduler=dask_mars.get)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
left.imshow(expose(0), cmap="gray", vmin=0, vmax=150)
left.set_title(f"one exposure: {counts[0]} galaxies")
right.imshow(mean, cmap="gray", vmin=0, vmax=150)
right.set_title(f"mean of {EXPOSURES}: {len(galaxies(mean))} galaxies")
for spot in galaxies(mean):
    right.add_patch(plt.Circle(spot[:0:-1], 3 + spot[0] ** 0.5, fill=False, color="tomato", linewidth=0.6))
for axes in (left, right):
    axes.axis("off")
plt.show()

# %% [markdown]
# ## Beside threads

# %%
times = {"dask_mars": [], "threads": []}
schedulers = {"dask_mars": dask_mars.get, "threads": "threads"}
for run in range(3):
    for name, scheduler in schedulers.items():
        began = time.perf_counter()
        assert dask.compute(*found, scheduler=scheduler) == lists
        if run > 0:
            times[name].append(time.perf_counter() - began)
for name, runs in times.items():
    print(f"{name:10} {statistics.median(runs):.2f} s")

# %% [markdown]
# The filters are compiled and release the GIL; to measure the spots is a Python loop that holds it. The more of a
# pipeline is Python, the more worker processes gain.

# %%
dask_mars.close()
