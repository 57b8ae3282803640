# %% [markdown]
# # A climatology
#
# The package `iris-sample-data` ships monthly temperatures of the sea surface in the tropics, from April 2006 to
# September 2010, as the OSTIA analysis has them. Xarray computes with Dask, so that one line of configuration is all
# that is needed.

# %%
import statistics
import time
import warnings
from pathlib import Path

import dask
import iris_sample_data
import matplotlib.pyplot as plt
import xarray

import dask_mars

path = Path(iris_sample_data.path) / "ostia_monthly.nc"
warnings.simplefilter("ignore", RuntimeWarning)  # there is no mean over land
data = xarray.open_dataset(path).load().chunk(time=6)
temperature = data.surface_temperature - 273.15
temperature

# %% [markdown]
# The climatology is the mean of each month over the years. What is left without it are the anomalies.

# %%
months = temperature.groupby("time.month")
climatology = months.mean("time")
anomalies = months - climatology

with dask.config.set(scheduler=dask_mars.get):
    mean_by_month = climatology.mean(["latitude", "longitude"]).compute()

print(mean_by_month.to_series().round(2).to_string())

# %% [markdown]
# The Niño 3.4 index is the mean anomaly between 5° S and 5° N, and 170° W and 120° W. Above 0.5 K for some months it is
# called El Niño, below −0.5 K La Niña.

# %%
longitudes = anomalies.longitude % 360
box = (abs(anomalies.latitude) <= 5) & (longitudes >= 190) & (longitudes <= 240)
index = anomalies.where(box).mean(["latitude", "longitude"]).rolling(time=3, center=True).mean()
with dask.config.set(scheduler=dask_mars.get):
    index, spread = dask.compute(index, anomalies.std("time"))

figure, (above, below) = plt.subplots(2, 1, figsize=(9, 5), layout="constrained")
above.axhline(0, color="grey", linewidth=0.5)
above.fill_between(
    index.time.values.astype("datetime64[D]"), index, where=index > 0, color="firebrick", label="warm"
)
above.fill_between(
    index.time.values.astype("datetime64[D]"), index, where=index < 0, color="steelblue", label="cold"
)
above.set_ylabel("Niño 3.4, K")
above.legend()
spread.plot(ax=below, cbar_kwargs={"label": "K"})
below.set_title("standard deviation of the anomalies")
plt.show()

# %% [markdown]
# La Niña of 2007 and 2008, and El Niño of the winter from 2009 to 2010, are both to be seen. Temperatures vary most in
# the eastern Pacific.
#
# ## Beside threads

# %%
times = {"dask_mars": [], "threads": []}
schedulers = {"dask_mars": dask_mars.get, "threads": "threads"}
for run in range(6):
    for name, scheduler in schedulers.items():
        began = time.perf_counter()
        anomalies.std("time").compute(scheduler=scheduler)
        if run > 0:
            times[name].append(time.perf_counter() - began)
for name, runs in times.items():
    print(f"{name:10} {statistics.median(runs):.3f} s")

# %% [markdown]
# This is 1.7 MB of data, in chunks that take less than a millisecond each. Threads are faster at it: they need not talk
# to another process. [The benchmarks](../benchmarks.md#real-workloads) have climatologies of some size, which take 0.3 to 0.5 of
# the time that threads take.

# %%
dask_mars.close()
