"""Find the patterns in which a field varies, and how often: EOFs and spectra.

It follows what Pangeo's notebooks do with fields of the ocean and the atmosphere
(https://gallery.pangeo.io/repos/pangeo-gallery/physical-oceanography/), and "SVD" of the Dask examples
(https://examples.dask.org/machine-learning/svd.html): anomalies weighted by area, cells without values left out, a
singular value decomposition of the matrix of times and places, exact and compressed, and power spectra of its time
series and of the field. Run it with::

    python examples/tutorials/eof.py
"""

from __future__ import annotations

import sys

import dask
import dask.array as da
import numpy as np
import xarray as xr

MODES = 3
BLOCK, SEGMENT = 480, 240


def make_field() -> xr.DataArray:
    """Return a field of two standing waves, of periods 40 and 16, with land and noise."""
    rng = np.random.default_rng(13)
    latitude, longitude = np.arange(-67.5, 68, 15), np.arange(0.0, 360, 20)
    time = np.arange(1440)
    rows, columns = np.meshgrid(np.radians(latitude), np.radians(longitude), indexing="ij")
    slow = 3.0 * np.sin(2 * np.pi * time / 40)[:, np.newaxis, np.newaxis] * np.cos(rows) * np.cos(columns)
    fast = 1.5 * np.cos(2 * np.pi * time / 16)[:, np.newaxis, np.newaxis] * np.cos(2 * rows) * np.sin(3 * columns)
    field = 10 + slow + fast + rng.normal(0, 0.5, (len(time), *rows.shape))
    field[:, (columns > 2) & (columns < 3) & (np.abs(rows) < 0.5)] = np.nan
    return xr.DataArray(field, {"time": time, "lat": latitude, "lon": longitude}, ("time", "lat", "lon"), "height")


def main(scheduler: str = "mars") -> None:
    made = make_field()
    with dask.config.set(scheduler=scheduler):
        field = made.chunk(time=BLOCK)
        anomaly = field - field.mean("time")
        weighted = anomaly * np.sqrt(np.cos(np.deg2rad(field.lat)))
        # Which cells have values must be known to Dask: the number of columns depends on it.
        sea = field.isel(time=0).notnull().stack(place=("lat", "lon")).compute()
        matrix = weighted.stack(place=("lat", "lon"))[:, np.flatnonzero(sea)].data.rechunk((BLOCK, -1))
        matrix = matrix.persist()
        print(f"{matrix.shape[0]} times and {matrix.shape[1]} places, {sea.size - matrix.shape[1]} left out")

        u, s, v = da.linalg.svd(matrix)
        total = (matrix**2).sum()
        _, nearly, _ = da.linalg.svd_compressed(matrix, MODES, n_power_iter=2, seed=0)
        series, s, v, total, nearly = dask.compute(u[:, :MODES] * s[:MODES], s, v[:MODES], total, nearly)

        # Along time a series must be in one block for its Fourier transform, and cells may be apart.
        segments = matrix.reshape(-1, SEGMENT, matrix.shape[1]).rechunk((1, SEGMENT, 100))
        window = np.hanning(SEGMENT)[np.newaxis, :, np.newaxis]
        power = (abs(da.fft.rfft(segments * window, axis=1)) ** 2).mean(axis=(0, 2)).compute()

    cosine = np.sqrt(np.cos(np.radians(made.lat.values)))[:, np.newaxis]
    flat = ((made - made.mean("time")).values * cosine).reshape(len(made), -1)
    known = flat[:, ~np.isnan(flat[0])]
    known_u, known_s, known_v = np.linalg.svd(known, full_matrices=False)
    np.testing.assert_allclose(s, known_s, rtol=1e-8, err_msg="singular values")
    np.testing.assert_allclose(nearly[:2], known_s[:2], rtol=1e-4, err_msg="compressed")
    # A pattern is known up to its sign.
    signs = np.sign((v * known_v[:MODES]).sum(axis=1))
    np.testing.assert_allclose(v[:2] * signs[:2, np.newaxis], known_v[:2], atol=1e-8, err_msg="patterns")
    np.testing.assert_allclose(series[:, :2] * signs[:2], (known_u * known_s)[:, :2], atol=1e-6, err_msg="series")
    shares = s[:MODES] ** 2 / total
    print("shares of the variance:", ", ".join(f"{share:.2%}" for share in shares))

    for mode in range(2):
        spectrum = np.abs(np.fft.rfft(series[:, mode]))
        print(f"pattern {mode + 1} comes back every {len(made) / spectrum.argmax():.1f} steps")
    pieces = known.reshape(-1, SEGMENT, known.shape[1]) * np.hanning(SEGMENT)[np.newaxis, :, np.newaxis]
    wanted = (np.abs(np.fft.rfft(pieces, axis=1)) ** 2).mean(axis=(0, 2))
    np.testing.assert_allclose(power, wanted, rtol=1e-8, err_msg="mean spectrum")
    print(f"most power of the field is at a period of {SEGMENT / power.argmax():.1f} steps")


if __name__ == "__main__":
    main(*sys.argv[1:])
