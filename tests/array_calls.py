"""An example call of every public function of `dask.array` that makes a graph."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import dask
import dask.array as da
import numpy as np


class Arrays:
    """Arrays to call functions with. Whoever computes them changes their graphs, so each call gets its own."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(3)

    def _normal(self, shape: Any, chunks: Any) -> da.Array:
        return da.from_array(self._random.normal(size=shape), chunks=chunks)

    def _integers(self, low: int, high: int) -> da.Array:
        return da.from_array(self._random.integers(low, high, size=(7, 8)), chunks=3)

    # Chunks of unequal sizes and more than two along each axis, so that a mistaken coordinate shows.
    normal = cached_property(lambda self: self._normal((7, 8), ((3, 2, 2), (3, 4, 1))))
    fractions = cached_property(
        lambda self: da.from_array(self._random.uniform(0.1, 0.9, size=(7, 8)), chunks=((2, 5), (4, 4)))
    )
    tall = cached_property(lambda self: self._normal((9, 3), (3, -1)))
    wide = cached_property(lambda self: self._normal((4, 9), (-1, 3)))
    cube = cached_property(lambda self: self._normal((4, 5, 6), (2, 3, 4)))
    vector = cached_property(lambda self: self._normal(11, 4))
    labels = cached_property(lambda self: da.from_array(np.arange(11) % 4, chunks=3))
    integers = cached_property(lambda self: self._integers(-9, 9))
    counts = cached_property(lambda self: self._integers(1, 6))
    truths = cached_property(lambda self: self.integers > 0)
    complex = cached_property(lambda self: self.normal + 1j * self.fractions)
    square = cached_property(lambda self: self._normal((6, 6), 2) + 6 * np.eye(6))
    symmetric = cached_property(lambda self: self.square @ self.square.T)
    masked = cached_property(lambda self: da.ma.masked_greater(self.normal, 0.5))
    holes = cached_property(lambda self: da.where(self.normal > 0.8, np.nan, self.normal))
    ones = cached_property(lambda self: da.ones((7, 8), chunks=(3, 5)))


Call = Callable[[Arrays], Any]


def _pair(block: np.ndarray, other: np.ndarray) -> np.ndarray:
    return block + other


def _halves(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return block.mean(axis=-1), block.std(axis=-1)


def _total(block: np.ndarray, axis: Any, keepdims: Any) -> Any:
    return np.sum(block, axis=axis, keepdims=keepdims)


_UFUNCS_OF_ONE = """
    abs absolute angle bitwise_not:integers cbrt ceil conj:complex cos cosh deg2rad degrees exp exp2 expm1 fabs fix
    floor i0 imag:complex invert:integers iscomplex:complex isfinite isinf isnan isneginf isposinf isreal:complex
    log10:fractions log1p:fractions log2:fractions log:fractions logical_not:truths negative nan_to_num:holes
    positive rad2deg radians real:complex reciprocal rint sign signbit sin sinc sinh spacing sqrt:fractions square
    tan tanh trunc arccos:fractions arcsin:fractions arcsinh arctan arctanh:fractions isnull:holes notnull:holes
"""
_UFUNCS_OF_TWO = """
    add arctan2 copysign divide equal float_power:fractions floor_divide fmax fmin fmod:fractions greater
    greater_equal hypot less less_equal logaddexp logaddexp2 logical_and logical_or logical_xor maximum minimum
    mod:fractions multiply nextafter not_equal power:fractions remainder:fractions subtract true_divide
    bitwise_and:integers bitwise_or:integers bitwise_xor:integers left_shift:counts right_shift:counts isclose
"""
_REDUCTIONS = """
    all any argmax argmin max mean min prod std sum var nanargmax nanargmin nanmax nanmean nanmin nanprod nanstd
    nansum nanvar
"""


def _calls(names: str, make: Callable[[Arrays, str, da.Array], Any], default: str) -> Iterator[tuple[str, Call]]:
    """Yield a call for each function named, of the array named with it or of the default."""
    for entry in names.split():
        name, _, argument = entry.partition(":")

        def call(a: Arrays, name: str = name, argument: str = argument or default) -> Any:
            return make(a, name, getattr(a, argument))

        yield name, call


def _reduced(a: Arrays, name: str, array: da.Array) -> Any:
    function = getattr(da, name)
    return [function(array, axis=0), function(array, axis=1, split_every=2), function(array)]


#: Functions of `dask.array` itself.
ARRAY_CALLS: dict[str, Call] = {
    **dict(_calls(_UFUNCS_OF_ONE, lambda a, name, array: getattr(da, name)(array), "normal")),
    **dict(_calls(_UFUNCS_OF_TWO, lambda a, name, array: getattr(da, name)(array, a.counts), "normal")),
    **dict(_calls(_REDUCTIONS, _reduced, "holes")),
    "allclose": lambda a: da.allclose(a.normal, a.normal + 1e-12),
    "append": lambda a: da.append(a.normal, a.fractions, axis=1),
    "apply_along_axis": lambda a: da.apply_along_axis(np.sort, 1, a.normal),
    "apply_gufunc": lambda a: da.apply_gufunc(_halves, "(i)->(),()", a.tall),
    "apply_over_axes": lambda a: da.apply_over_axes(da.sum, a.cube, [0, 2]),
    "arange": lambda a: da.arange(2, 30, 3, chunks=4),
    "arccosh": lambda a: da.arccosh(a.fractions + 1),
    "argtopk": lambda a: [da.argtopk(a.normal, 3, axis=0), da.argtopk(a.normal, -2)],
    "argwhere": lambda a: da.argwhere(a.truths),
    "around": lambda a: da.around(a.normal, 2),
    "array": lambda a: da.array([[1, 2], [3, 4]]) + 1,
    "as_gufunc": lambda a: da.as_gufunc(signature="(i)->()", output_dtypes=float, vectorize=True)(np.mean)(a.tall),
    "asanyarray": lambda a: da.asanyarray(np.arange(5)) + 1,
    "asarray": lambda a: da.asarray([a.normal, a.normal + 1]),
    "atleast_1d": lambda a: da.atleast_1d(a.vector.sum(), a.vector),
    "atleast_2d": lambda a: da.atleast_2d(a.vector, a.normal),
    "atleast_3d": lambda a: da.atleast_3d(a.vector, a.normal, a.cube),
    "average": lambda a: [da.average(a.normal, axis=0, weights=a.fractions), da.average(a.normal)],
    "bincount": lambda a: [
        da.bincount(a.labels, minlength=6),
        da.bincount(a.labels, weights=a.labels * 0.5, minlength=6, split_every=2),
    ],
    "block": lambda a: da.block([[a.normal, a.fractions], [a.fractions, a.normal]]),
    "blockwise": lambda a: da.blockwise(_pair, "ij", a.normal, "ij", a.normal, "ij", dtype=float),
    "broadcast_arrays": lambda a: da.broadcast_arrays(a.normal, a.wide[:1, :8]),
    "broadcast_to": lambda a: da.broadcast_to(a.vector, (3, 11), chunks=(2, 4)) + 1,
    "choose": lambda a: da.choose(a.counts % 2, [a.normal, a.fractions]),
    "clip": lambda a: da.clip(a.normal, -0.5, a.fractions),
    "coarsen": lambda a: da.coarsen(np.sum, a.cube, {0: 2}),
    "count_nonzero": lambda a: [da.count_nonzero(a.integers, axis=0), da.count_nonzero(a.integers)],
    "compress": lambda a: da.compress([True, False, True, True], a.normal, axis=0),
    "concatenate": lambda a: da.concatenate([a.normal, a.fractions, a.wide[:, :8]], axis=0),
    "corrcoef": lambda a: da.corrcoef(a.wide),
    "cov": lambda a: [da.cov(a.normal), da.cov(a.normal, a.fractions, rowvar=False)],
    "cumprod": lambda a: [da.cumprod(a.normal, axis=0), da.cumprod(a.normal, axis=1, method="blelloch")],
    "cumsum": lambda a: [
        da.cumsum(a.normal, axis=1),
        da.cumsum(a.normal, axis=0, method="blelloch"),
        da.cumsum(a.normal, axis=None),
    ],
    "delete": lambda a: da.delete(a.normal, [1, 5], axis=1),
    "diag": lambda a: [da.diag(a.vector), da.diag(a.square), da.diag(a.square, 1)],
    "diagonal": lambda a: da.diagonal(a.cube, 1, 0, 2),
    "diff": lambda a: da.diff(a.normal, n=2, axis=1, prepend=0),
    "digitize": lambda a: da.digitize(a.normal, np.array([-1.0, 0.0, 1.0])),
    "divmod": lambda a: da.divmod(a.integers, a.counts),
    "dot": lambda a: [da.dot(a.square, a.square), da.dot(a.vector, a.vector)],
    "dstack": lambda a: da.dstack([a.normal, a.fractions]),
    "ediff1d": lambda a: da.ediff1d(a.vector, to_begin=-99, to_end=da.array([88, 99])),
    "einsum": lambda a: [
        da.einsum("ij,kj->ik", a.normal, a.fractions),
        da.einsum("ijk,jk->i", a.cube, a.cube[0]),
        da.einsum("ii", a.square),
    ],
    "empty": lambda a: da.empty((5, 7), chunks=3) * 0 == 1e300,
    "empty_like": lambda a: da.empty_like(a.normal, shape=(5, 7), chunks=3) * 0 == 1e300,
    "expand_dims": lambda a: da.expand_dims(a.normal, (0, 2)),
    "extract": lambda a: da.extract(a.truths, a.normal),
    "eye": lambda a: da.eye(7, chunks=3, M=9, k=1),
    "flatnonzero": lambda a: da.flatnonzero(a.truths),
    "flip": lambda a: da.flip(a.normal, axis=1),
    "fliplr": lambda a: da.fliplr(a.normal),
    "flipud": lambda a: da.flipud(a.normal),
    "frexp": lambda a: da.frexp(a.normal),
    "from_array": lambda a: da.from_array(np.arange(56.0).reshape(7, 8), chunks=(3, 5), inline_array=True) + 1,
    "from_delayed": lambda a: da.from_delayed(dask.delayed(np.arange)(9), shape=(9,), dtype=int) + 1,
    "fromfunction": lambda a: da.fromfunction(lambda i, j: i * 10 + j, shape=(7, 8), chunks=3, dtype=float),
    "frompyfunc": lambda a: da.frompyfunc(max, 2, 1)(a.normal, 0.5).astype(float),
    "full": lambda a: da.full((7, 8), 2.5, chunks=3) + a.normal,
    "full_like": lambda a: da.full_like(a.normal, 2.5),
    "gradient": lambda a: da.gradient(a.cube, 0.5, axis=(0, 1)),
    "gufunc": lambda a: da.gufunc(np.mean, signature="(i)->()", output_dtypes=float, vectorize=True)(a.tall),
    "histogram": lambda a: [
        *da.histogram(a.normal, bins=4, range=(-1, 1), weights=a.ones.rechunk(a.normal.chunks), density=True)
    ],
    "histogram2d": lambda a: da.histogram2d(a.vector, a.vector * 2, bins=3, range=((-1, 1), (-2, 2)))[0],
    "histogramdd": lambda a: da.histogramdd(a.tall[:, :2], bins=(2, 3), range=((-1, 1), (-1, 1)))[0],
    "hstack": lambda a: da.hstack([a.normal, a.fractions]),
    "indices": lambda a: da.indices((4, 5), chunks=3),
    "insert": lambda a: da.insert(a.normal, [1, 4], a.fractions[:2], axis=0),
    "isin": lambda a: [da.isin(a.integers, [1, 2, -3]), da.isin(a.integers, a.labels, invert=True)],
    "ldexp": lambda a: da.ldexp(a.normal, a.counts),
    "linspace": lambda a: da.linspace(0, 1, 11, chunks=4),
    "map_blocks": lambda a: da.map_blocks(
        _pair, a.normal, a.normal.T.rechunk(a.normal.chunks[::-1]).T, dtype=float
    ),
    "map_overlap": lambda a: da.map_overlap(lambda x: x * 2, a.normal, depth=1, boundary="reflect"),
    "matmul": lambda a: [da.matmul(a.normal, a.fractions.T), da.matmul(a.cube, a.cube.transpose(0, 2, 1))],
    "median": lambda a: da.median(a.normal, axis=0),
    "meshgrid": lambda a: da.meshgrid(a.vector, a.labels, indexing="ij"),
    "modf": lambda a: da.modf(a.normal),
    "moment": lambda a: da.moment(a.normal, 3, axis=0),
    "moveaxis": lambda a: da.moveaxis(a.cube, 0, -1),
    "nancumprod": lambda a: da.nancumprod(a.holes, axis=0),
    "nancumsum": lambda a: da.nancumsum(a.holes, axis=1),
    "nanmedian": lambda a: da.nanmedian(a.holes, axis=1),
    "nanpercentile": lambda a: da.nanpercentile(a.holes, 30, axis=1),
    "nanquantile": lambda a: da.nanquantile(a.holes, [0.3, 0.4], axis=0),
    "nonzero": lambda a: da.nonzero(a.truths),
    "ones": lambda a: a.ones + 1,
    "ones_like": lambda a: da.ones_like(a.normal),
    "optimize": lambda a: (
        da.Array(
            da.optimize(a.normal.dask, a.normal.__dask_keys__()), a.normal.name, a.normal.chunks, a.normal.dtype
        )
        + 1
    ),
    "outer": lambda a: da.outer(a.vector, a.labels),
    "pad": lambda a: [
        da.pad(a.normal, ((1, 2), (0, 3)), mode) for mode in ("constant", "edge", "reflect", "wrap", "mean")
    ],
    "percentile": lambda a: da.percentile(a.vector, [20, 60]),
    "piecewise": lambda a: da.piecewise(a.normal, [a.normal < 0, a.normal >= 0], [-1, lambda x: x * 2]),
    "ptp": lambda a: da.ptp(a.normal, axis=1),
    "quantile": lambda a: da.quantile(a.normal, 0.3, axis=0),
    "ravel": lambda a: da.ravel(a.cube),
    "ravel_multi_index": lambda a: da.ravel_multi_index(da.stack([a.labels, a.labels + 1]), (9, 9)),
    "rechunk": lambda a: da.rechunk(a.normal, (2, 5)),
    "reduction": lambda a: da.reduction(
        a.normal, _total, _total, axis=1, dtype=float, split_every=2, concatenate=True
    ),
    "repeat": lambda a: da.repeat(a.normal, 3, axis=1),
    "reshape": lambda a: [da.reshape(a.cube, (20, 6)), da.reshape(a.cube, (4, 30))],
    "reshape_blockwise": lambda a: da.reshape_blockwise(a.cube, (20, 6)),
    "roll": lambda a: da.roll(a.normal, (1, 3), (0, 1)),
    "rollaxis": lambda a: da.rollaxis(a.cube, 2),
    "rot90": lambda a: da.rot90(a.normal),
    "round": lambda a: da.round(a.normal, 1),
    "searchsorted": lambda a: da.searchsorted(da.arange(20, chunks=6), a.counts),
    "select": lambda a: da.select([a.normal < 0, a.normal > 0.5], [a.normal, a.fractions], default=7.0),
    "shuffle": lambda a: da.shuffle(a.normal, [[6, 1], [2, 5, 0], [3, 4]], axis=0),
    "squeeze": lambda a: da.squeeze(a.normal[None, :, :, None]),
    "stack": lambda a: da.stack([a.normal, a.fractions.rechunk(a.normal.chunks), a.normal], axis=1),
    "store": lambda a: da.store(a.normal, np.zeros(a.normal.shape), compute=False, return_stored=False),
    "swapaxes": lambda a: da.swapaxes(a.cube, 0, 2),
    "take": lambda a: [da.take(a.normal, [3, 1, 1, 6], axis=0), da.take(a.normal, 2, axis=1)],
    "tensordot": lambda a: [
        da.tensordot(a.cube, a.cube, axes=((0, 2), (0, 2))),
        da.tensordot(a.normal, a.fractions.T, axes=1),
    ],
    "tile": lambda a: da.tile(a.normal, (2, 3)),
    "topk": lambda a: [da.topk(a.normal, 3, axis=0), da.topk(a.normal, -2, split_every=2)],
    "trace": lambda a: da.trace(a.square),
    "transpose": lambda a: [
        da.transpose(a.cube, (2, 0, 1)),
        a.normal + a.normal.T.rechunk(a.normal.chunks[::-1]).T,
        a.square + a.square.T,
    ],
    "tri": lambda a: da.tri(7, 9, 1, chunks=3),
    "tril": lambda a: da.tril(a.square, -1),
    "tril_indices": lambda a: da.tril_indices(5, chunks=3),
    "tril_indices_from": lambda a: da.tril_indices_from(a.square),
    "triu": lambda a: da.triu(a.square, 1),
    "triu_indices": lambda a: da.triu_indices(5, chunks=3),
    "triu_indices_from": lambda a: da.triu_indices_from(a.square),
    "unify_chunks": lambda a: da.unify_chunks(a.normal, "ij", a.fractions, "ij")[1],
    "union1d": lambda a: da.union1d(a.labels, a.labels * 2),
    "unique": lambda a: da.unique(a.labels, return_index=True, return_inverse=True, return_counts=True),
    "unravel_index": lambda a: da.unravel_index(a.labels, (3, 4)),
    "vdot": lambda a: da.vdot(a.complex[0], a.complex[1]),
    "vstack": lambda a: da.vstack([a.normal, a.fractions]),
    "where": lambda a: [da.where(a.truths, a.normal, 2.5), da.where(a.truths)[0]],
    "zeros": lambda a: da.zeros((7, 8), chunks=3) + a.normal,
    "zeros_like": lambda a: da.zeros_like(a.normal),
}

#: Names of `dask.array` that are no functions making graphs, and why.
ARRAY_EXCLUSIONS: dict[str, str] = {
    **dict.fromkeys(["Array", "PerformanceWarning"], "a class"),
    **dict.fromkeys(["e", "euler_gamma", "inf", "nan", "newaxis", "pi"], "a constant"),
    **dict.fromkeys(
        ["bool", "complex64", "complex128", "float32", "float64", "int8", "int16", "int32", "int64"], "a dtype"
    ),
    **dict.fromkeys(["uint8", "uint16", "uint32", "uint64"], "a dtype"),
    **dict.fromkeys(["annotations", "array_expr_enabled", "register_chunk_type"], "about Dask itself"),
    **dict.fromkeys(["ndim", "shape", "result_type"], "answered without a graph"),
    **dict.fromkeys(["assert_eq", "compute"], "computes, and makes nothing"),
    **dict.fromkeys(
        ["from_npy_stack", "to_npy_stack", "from_zarr", "to_zarr", "to_hdf5"], "files: see test_symbolic"
    ),
    **dict.fromkeys(["from_tiledb", "to_tiledb"], "needs TileDB"),
    "push": "needs Bottleneck",
    "atop": "the former name of blockwise, with a warning",
}

LINALG_CALLS: dict[str, Call] = {
    "cholesky": lambda a: da.linalg.cholesky(a.symmetric, lower=True),
    "compression_matrix": lambda a: da.linalg.compression_matrix(a.tall, 2, seed=da.random.RandomState(5)),
    "inv": lambda a: da.linalg.inv(a.square),
    "lstsq": lambda a: da.linalg.lstsq(a.tall, a.tall[:, 0]),
    "lu": lambda a: da.linalg.lu(a.square),
    "norm": lambda a: [
        da.linalg.norm(a.normal),
        da.linalg.norm(a.normal, axis=0),
        da.linalg.norm(a.normal, ord=1, axis=(0, 1)),
    ],
    "qr": lambda a: [*da.linalg.qr(a.tall), *da.linalg.qr(a.tall.T)],
    "sfqr": lambda a: da.linalg.sfqr(a.tall.T),
    "solve": lambda a: da.linalg.solve(a.square, a.square[:, 0]),
    "solve_triangular": lambda a: da.linalg.solve_triangular(da.triu(a.square), a.square[:, 0]),
    "svd": lambda a: da.linalg.svd(a.tall),
    "svd_compressed": lambda a: da.linalg.svd_compressed(a.tall, 2, seed=da.random.RandomState(5)),
    "tsqr": lambda a: da.linalg.tsqr(a.tall),
}
LINALG_EXCLUSIONS = {"compression_level": "gives a number"}

FFT_CALLS: dict[str, Call] = {
    **{
        name: lambda a, name=name: getattr(da.fft, name)(a.wide, axis=0)
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    },
    **{
        name: lambda a, name=name: getattr(da.fft, name)(a.cube.rechunk((2, -1, -1)), axes=(1, 2))
        for name in ("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn")
    },
    "fft_wrap": lambda a: da.fft.fft_wrap(np.fft.fft)(a.wide, axis=0),
    "fftfreq": lambda a: da.fft.fftfreq(11, 0.5, chunks=4),
    "rfftfreq": lambda a: da.fft.rfftfreq(11, 0.5, chunks=4),
    "fftshift": lambda a: da.fft.fftshift(a.normal),
    "ifftshift": lambda a: da.fft.ifftshift(a.normal, axes=1),
}
FFT_EXCLUSIONS: dict[str, str] = {}

MASKED_CALLS: dict[str, Call] = {
    **{
        name: lambda a, name=name: getattr(da.ma, name)(a.integers, 2)
        for name in ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")
        for name in [f"masked_{name}"]
    },
    "average": lambda a: da.ma.average(a.masked, axis=0, weights=a.fractions),
    "count": lambda a: [da.ma.count(a.masked, axis=1), da.ma.count(a.masked)],
    "empty_like": lambda a: da.ma.empty_like(a.masked) * 0 == 1e300,
    "filled": lambda a: da.ma.filled(a.masked, 5),
    "fix_invalid": lambda a: da.ma.fix_invalid(a.holes, fill_value=9.0),
    "getdata": lambda a: da.ma.getdata(a.masked),
    "getmaskarray": lambda a: da.ma.getmaskarray(a.masked),
    "masked_array": lambda a: da.ma.masked_array(a.normal, mask=a.truths.rechunk(a.normal.chunks), fill_value=3.0),
    "masked_inside": lambda a: da.ma.masked_inside(a.normal, -0.5, 0.5),
    "masked_invalid": lambda a: da.ma.masked_invalid(a.holes),
    "masked_outside": lambda a: da.ma.masked_outside(a.normal, -0.5, 0.5),
    "masked_values": lambda a: da.ma.masked_values(a.normal, 1.5),
    "masked_where": lambda a: da.ma.masked_where(a.truths.rechunk(a.normal.chunks), a.normal),
    "nonzero": lambda a: da.ma.nonzero(a.masked),
    "ones_like": lambda a: da.ma.ones_like(a.masked),
    "set_fill_value": lambda a: _with_fill_value(a, -7.0),
    "where": lambda a: da.ma.where(a.truths, a.masked, a.normal),
    "zeros_like": lambda a: da.ma.zeros_like(a.masked),
}
MASKED_EXCLUSIONS = {"normalize_masked_array": "makes tokens"}


def _with_fill_value(a: Arrays, value: float) -> da.Array:
    array = a.masked + 0
    da.ma.set_fill_value(array, value)
    return array


_PARAMETERS: dict[str, tuple[Any, ...]] = {
    "beta": (1, 2),
    "binomial": (10, 0.5),
    "chisquare": (2,),
    "choice": (20,),
    "exponential": (2.0,),
    "f": (3, 4),
    "gamma": (2.0,),
    "geometric": (0.4,),
    "gumbel": (),
    "hypergeometric": (10, 12, 5),
    "laplace": (),
    "logistic": (),
    "lognormal": (),
    "logseries": (0.4,),
    "multinomial": (20, [0.2, 0.3, 0.5]),
    "negative_binomial": (5, 0.4),
    "noncentral_chisquare": (3, 1.0),
    "noncentral_f": (3, 4, 1.0),
    "normal": (1.0, 2.0),
    "pareto": (3.0,),
    "poisson": (3.0,),
    "power": (2.0,),
    "randint": (10,),
    "random": (),
    "random_integers": (10,),
    "random_sample": (),
    "rayleigh": (),
    "standard_cauchy": (),
    "standard_exponential": (),
    "standard_gamma": (2.0,),
    "standard_normal": (),
    "standard_t": (3,),
    "triangular": (0, 1, 2),
    "uniform": (1, 2),
    "vonmises": (0, 1),
    "wald": (1, 2),
    "weibull": (2.0,),
    "zipf": (3.0,),
}


def _random(name: str) -> Any:
    return getattr(da.random, name)(*_PARAMETERS[name], size=(11,), chunks=4)


RANDOM_CALLS: dict[str, Call] = {
    **{name: lambda a, name=name: _random(name) for name in _PARAMETERS},
    "Generator": lambda a: da.random.Generator(np.random.PCG64(3)).normal(a.vector, 1.0, chunks=4),
    "RandomState": lambda a: da.random.RandomState(3).normal(a.vector, 1.0, chunks=4),
    "default_rng": lambda a: da.random.default_rng(3).permutation(a.vector),
    "permutation": lambda a: da.random.permutation(a.vector),
}
RANDOM_EXCLUSIONS = {"seed": "makes nothing"}

OVERLAP_CALLS: dict[str, Call] = {
    "add_dummy_padding": lambda a: da.overlap.add_dummy_padding(a.normal, {0: 1}, {0: "none"})[
        1:-1
    ],  # of any value
    "boundaries": lambda a: da.overlap.boundaries(a.normal, {0: 1, 1: 2}, {0: "nearest", 1: 5}),
    "constant": lambda a: da.overlap.constant(a.normal, 0, 2, 9.0),
    "ensure_minimum_chunksize": lambda a: da.rechunk(
        a.vector, da.overlap.ensure_minimum_chunksize(5, a.vector.chunks[0])
    ),
    "map_overlap": lambda a: da.overlap.map_overlap(
        _pair, a.normal, a.normal, depth=(1, 0), boundary=2.0, dtype=float
    ),
    "nearest": lambda a: da.overlap.nearest(a.normal, 1, 1),
    "overlap": lambda a: da.overlap.overlap(
        a.normal, depth={0: 1, 1: (1, 0)}, boundary={0: "periodic", 1: "none"}
    ),
    "overlap_internal": lambda a: da.overlap.overlap_internal(a.normal, {0: 1, 1: 1}),
    "periodic": lambda a: da.overlap.periodic(a.normal, 0, 2),
    "reflect": lambda a: da.overlap.reflect(a.normal, 1, 1),
    "sliding_window_view": lambda a: da.overlap.sliding_window_view(a.normal, (2, 3)),
    "trim_internal": lambda a: da.overlap.trim_internal(a.cube, {0: 1, 2: 1}, boundary="reflect"),
    "trim_overlap": lambda a: da.overlap.trim_overlap(a.cube, depth={0: 1}, boundary="reflect"),
}
OVERLAP_EXCLUSIONS = {
    "push": "needs Bottleneck",
    "coerce_boundary": "works on arguments",
    "coerce_depth": "works on arguments",
    "coerce_depth_type": "works on arguments",
}

#: Methods of arrays, and ways to index them.
METHOD_CALLS: dict[str, Call] = {
    "astype": lambda a: a.normal.astype("f4"),
    "blocks": lambda a: [
        a.normal.blocks[1:, [2, 0]] + 1,
        a.normal.blocks[np.int64(1)],
        (a.normal + 1).blocks[0, 1],
        a.normal.partitions[::2],
    ],
    "compute_chunk_sizes": lambda a: a.normal[a.normal[:, 0] > 0].compute_chunk_sizes() + 1,
    "copy": lambda a: a.normal.copy(),
    "item assignment": lambda a: _assigned(a),
    "map_blocks": lambda a: a.normal.map_blocks(
        lambda x, block_id=None: x + block_id[0] * 10 + block_id[1], dtype=float
    ),
    "positions": lambda a: [
        a.normal[2, 3],
        a.normal[::-2, 1:7:3],
        a.normal[[4, 0, 4]],
        a.normal[:, [7, 1]],
        a.normal[None, ..., -1],
        a.normal[-3:, 0],
    ],
    "rechunk": lambda a: a.normal.rechunk({0: -1, 1: (2, 6)}),
    "to_delayed": lambda a: da.stack(
        [da.from_delayed(part, (), float) for part in map(dask.delayed(np.sum), a.normal.to_delayed().ravel())]
    ),
    "truth": lambda a: [
        a.normal[a.normal > 0],
        a.normal[a.normal[:, 0] > 0],
        (a.normal[a.normal[:, 0] > 0] * 2).sum(axis=0),
    ],
    "view": lambda a: a.normal.view("i8"),
    "vindex": lambda a: [
        a.normal.vindex[[0, 6, 3], [7, 0, 2]],
        a.normal.vindex[[1, 2], :],
        a.normal.vindex[[[1, 2], [3, 4]], 1],
    ],
}


def _assigned(a: Arrays) -> da.Array:
    array = a.normal.copy()
    array[a.normal > 0.5] = 0
    array[2:5, ::2] = a.fractions[2:5, ::2]
    return array


#: Each namespace: the module, example calls, and what needs none.
NAMESPACES: dict[str, tuple[Any, dict[str, Call], dict[str, str]]] = {
    "array": (da, ARRAY_CALLS, ARRAY_EXCLUSIONS),
    "linalg": (da.linalg, LINALG_CALLS, LINALG_EXCLUSIONS),
    "fft": (da.fft, FFT_CALLS, FFT_EXCLUSIONS),
    "ma": (da.ma, MASKED_CALLS, MASKED_EXCLUSIONS),
    "random": (da.random, RANDOM_CALLS, RANDOM_EXCLUSIONS),
    "overlap": (da.overlap, OVERLAP_CALLS, OVERLAP_EXCLUSIONS),
}

CALLS: dict[str, Call] = {
    **{f"{name}.{call}": make for name, (_, calls, _) in NAMESPACES.items() for call, make in calls.items()},
    **{f"method.{call}": make for call, make in METHOD_CALLS.items()},
}


def public_functions(module: types.ModuleType) -> set[str]:
    """Return the names of what a module of arrays offers: all of `dask.array`, of others what is their own."""
    names = {name for name in dir(module) if not name.startswith("_")}
    names = {name for name in names if not isinstance(getattr(module, name), types.ModuleType)}
    if module is da:
        return {name for name in names if name != name.upper() or len(name) == 1}
    # What a module has from elsewhere is not its to offer.
    return {
        name
        for name in names
        if callable(getattr(module, name)) and module.__name__ in (_home(getattr(module, name)))
    }


def _home(function: Any) -> set[str]:
    """Name the modules in which a function was defined, though it may pass itself off as NumPy's."""
    return {getattr(function, "__module__", ""), getattr(function, "__globals__", {}).get("__name__", "")}


def assert_close(ours: Any, theirs: Any) -> None:
    """Compare values; the last bit of what is added up depends on where arrays lie in memory."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs, strict=True):
            assert_close(our, their)
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
