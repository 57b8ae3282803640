"""Ask a table of flights, kept in a CSV file for each year, the usual questions.

It follows the dataframe chapters of the Dask tutorial (https://tutorial.dask.org/01_dataframe.html) and of the
Dask examples (https://examples.dask.org/dataframe.html): types that have to be named, grouped means, several
results at once, functions for each partition, a join, an index that takes a shuffle, Parquet, and time series.
Run it with::

    python examples/tutorials/dataframes.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

YEARS = range(1990, 1996)
AIRPORTS = ("EWR", "JFK", "LGA")


def write_flights(folder: Path) -> pd.DataFrame:
    """Write a CSV file for each year; return all flights for comparison."""
    rng = np.random.default_rng(3)
    frames = []
    for year in YEARS:
        count = 5_000
        minutes = np.sort(rng.integers(0, 365 * 24 * 60, count))
        frame = pd.DataFrame(
            {
                "Departure": pd.Timestamp(year, 1, 1) + pd.to_timedelta(minutes, unit="min"),
                "Carrier": rng.choice(["AA", "DL", "UA", "US"], count),
                # The early years know no tail numbers: pandas would guess another type for them.
                "Tail": [f"N{n}" if year > 1992 else None for n in rng.integers(100, 400, count)],
                "Origin": rng.choice(AIRPORTS, count, p=[0.5, 0.3, 0.2]),
                "Distance": rng.integers(100, 2600, count),
                "Delay": rng.normal(8, 25, count).round(),
                "Cancelled": rng.random(count) < 0.02,
            }
        )
        frame.loc[frame.Cancelled, "Delay"] = np.nan
        frame.to_csv(folder / f"{year}.csv", index=False)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def kilometres(distance: pd.Series, factor: float = 1.0) -> pd.Series:
    return distance * factor


def main(scheduler: str = "mars") -> None:
    same_series, same_frame = pd.testing.assert_series_equal, pd.testing.assert_frame_equal
    with dask.config.set(scheduler=scheduler), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known = write_flights(folder)
        flights = dd.read_csv(folder / "*.csv", parse_dates=["Departure"], dtype={"Tail": "string"})
        print(f"{len(flights)} flights in {flights.npartitions} partitions")

        flown, known_flown = flights[~flights.Cancelled], known[~known.Cancelled]
        delays = flown.Delay
        # Asked for together, both statistics read the files once.
        mean, deviation = dask.compute(delays.mean(), delays.std())
        np.testing.assert_allclose([mean, deviation], [known_flown.Delay.mean(), known_flown.Delay.std()])
        by_origin = flown.groupby("Origin").agg({"Delay": ["mean", "max"], "Distance": "sum"}).compute()
        wanted = known_flown.groupby("Origin").agg({"Delay": ["mean", "max"], "Distance": "sum"})
        same_frame(by_origin.sort_index(), wanted, check_index_type=False)
        print(f"delay {mean:.3f} min, deviation {deviation:.3f} min; worst origin", wanted.Delay["mean"].idxmax())

        far = flights.Distance.map_partitions(kilometres, factor=1.609, meta=("Distance", "f8"))
        same_series(far.nlargest(3).compute(), (known.Distance * 1.609).nlargest(3), check_index=False)

        carriers = pd.DataFrame({"Carrier": ["AA", "DL", "UA"], "Fleet": [600, 500, 400]})
        joined = flights.merge(dd.from_pandas(carriers, npartitions=1), on="Carrier", how="left")
        fleets = joined.groupby("Carrier").Fleet.sum().compute().sort_index()
        known_fleets = known.merge(carriers, on="Carrier", how="left").groupby("Carrier").Fleet.sum()
        same_series(fleets, known_fleets, check_index_type=False)
        print("fleets by carrier:", ", ".join(f"{carrier} {total:.0f}" for carrier, total in fleets.items()))

        # Rows of one tail number meet in one partition, so that this needs all of them to move.
        tailed = flights.dropna(subset=["Tail"]).set_index("Tail")
        one = tailed.loc["N250"].compute()
        assert len(one) == (known.Tail == "N250").sum(), "flights of N250 were lost"
        print(f"N250 flew {len(one)} times")

        flights.to_parquet(folder / "flights", write_index=False)
        stored = dd.read_parquet(folder / "flights", columns=["Departure", "Delay"])
        monthly = stored.set_index("Departure", sorted=True).Delay.resample("30D").mean().compute()
        known_monthly = known.set_index("Departure").Delay.resample("30D").mean()
        same_series(monthly, known_monthly, check_index_type=False, check_freq=False)
        print(f"{len(monthly)} means of thirty days, from {monthly.min():.2f} to {monthly.max():.2f} min")


if __name__ == "__main__":
    main(*sys.argv[1:])
