"""Learn from data in blocks, with nothing but arrays.

It follows "custom workloads" and "machine learning" of the Dask examples
(https://examples.dask.org/machine-learning.html) for those who do without a library for it: k-means by Lloyd's
rule, and a logistic regression by gradient descent. Each step is a computation on data that were persisted before,
and its result decides about the next one. Run it with::

    python examples/tutorials/learning.py
"""

from __future__ import annotations

import sys

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt

CENTRES = np.array([[0.0, 0.0, 0.0], [6.0, 1.0, -2.0], [-3.0, 5.0, 4.0]])
WEIGHTS = np.array([1.5, -2.0, 0.5])

Floats = npt.NDArray[np.float64]


def make_points() -> da.Array:
    """Return points around three centres."""
    rng = da.random.default_rng(11)
    which = rng.integers(0, 3, 90_000, chunks=15_000)
    # An array of centres in the program's memory travels with the tasks that pick from it.
    middles = which.map_blocks(lambda numbers: CENTRES[numbers], new_axis=1, chunks=(which.chunks[0], (3,)))
    return middles + rng.normal(0, 1, (90_000, 3), chunks=(15_000, 3))


def lloyd_step(points: da.Array | Floats, centres: Floats) -> tuple[da.Array | Floats, da.Array | Floats]:
    """Return the sum and the number of the points nearest to each centre."""
    distances = ((points[:, np.newaxis, :] - centres) ** 2).sum(axis=2)
    nearest = distances.argmin(axis=1)[:, np.newaxis] == np.arange(len(centres))
    return nearest.T.astype(float) @ points, nearest.sum(axis=0)


def k_means(points: da.Array, start: Floats) -> tuple[Floats, int]:
    """Move the centres until they rest; return them, and how often they moved."""
    centres = start
    for step in range(1, 30):
        sums, numbers = dask.compute(*lloyd_step(points, centres))
        moved = sums / numbers[:, np.newaxis]
        if np.allclose(moved, centres, atol=1e-6):
            return moved, step
        centres = moved
    raise AssertionError("centres still move after 29 steps")


def gradient(points: da.Array | Floats, truth: da.Array | Floats, weights: Floats) -> da.Array | Floats:
    chance = 1 / (1 + np.exp(-(points @ weights)))
    return points.T @ (chance - truth) / len(points)


def regression(points: da.Array, truth: da.Array, steps: int) -> Floats:
    weights = np.zeros(points.shape[1])
    for _ in range(steps):
        weights = weights - 0.5 * gradient(points, truth, weights).compute()
    return weights


def main(scheduler: str = "mars") -> None:
    with dask.config.set(scheduler=scheduler):
        points = make_points().persist()
        known = points.compute()
        print(f"{len(points)} points in {points.npartitions} blocks, {points.nbytes / 1e6:.1f} MB persisted")

        start = known[:3].copy()
        start[1:] = known[[np.argmax(known[:, 0]), np.argmax(known[:, 1])]]
        centres, steps = k_means(points, start)
        wanted = start
        for _ in range(steps):
            sums, numbers = lloyd_step(known, wanted)
            wanted = sums / numbers[:, np.newaxis]
        np.testing.assert_allclose(centres, wanted, err_msg="centres of k-means")
        print(f"centres after {steps} steps:", np.array2string(centres, precision=3).replace("\n", ","))

        features = (points - points.mean(axis=0)) / points.std(axis=0)
        chance = da.random.default_rng(12).random(len(points), chunks=points.chunks[0])
        truth = (chance < 1 / (1 + da.exp(-(features @ WEIGHTS)))).astype(float)
        # Both come from the same points, in one computation.
        features, truth = dask.persist(features, truth)
        learned = regression(features, truth, 40)
        features_known, truth_known = dask.compute(features, truth)
        weights = np.zeros(3)
        for _ in range(40):
            weights = weights - 0.5 * gradient(features_known, truth_known, weights)
        np.testing.assert_allclose(learned, weights, rtol=1e-6, err_msg="weights of the regression")
        right = ((features @ learned > 0) == (truth > 0.5)).mean().compute()
        assert right > 0.8, f"only {right:.0%} are told apart"
        print("weights after 40 steps:", np.array2string(learned, precision=4), f"{right:.2%} are right")


if __name__ == "__main__":
    main(*sys.argv[1:])
