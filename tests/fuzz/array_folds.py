"""Arrays reduced, accumulated, counted and multiplied."""

from __future__ import annotations

from typing import Any

from tests.fuzz.arrays import Text, known, numeric, ordered, real, whole
from tests.fuzz.maker import Maker
from tests.fuzz.operations import Variable, operation


def _filled(a: Any) -> bool:
    """Return whether an array has elements, and of what size it is is known."""
    return known(a) and a.size > 0


def _options(make: Maker, a: Variable, split: bool = True) -> str:
    options = [f"axis={make.axes(a.ndim)}"]
    if make.chance(0.3):
        options.append("keepdims=True")
    if split and make.chance(0.3):
        options.append(f"split_every={make.integer(2, 3)}")
    return ", ".join(options)


@operation("array", 8, fits=numeric, rounds=True)
def added_up(make: Maker, a: Variable) -> Text:
    function = make.choice(["sum", "mean", "sum", "mean", "nansum", "nanmean", "prod", "nanprod"])
    if make.size != "small" and "prod" in function:
        function = "sum"
    dtype = ", dtype='f8'" if make.chance(0.15) and a.dtype.kind != "c" else ""
    return f"da.{function}({a}, {_options(make, a)}{dtype})"


@operation("array", 5, fits=lambda a: numeric(a) and _filled(a), rounds=True, decides=True)
def spread(make: Maker, a: Variable) -> Text:
    function = make.choice(["var", "std", "nanvar", "nanstd"])
    return f"da.{function}({a}, {_options(make, a)}{', ddof=1' if make.chance(0.2) else ''})"


@operation("array", 5, fits=lambda a: ordered(a) and _filled(a))
def extreme(make: Maker, a: Variable) -> Text:
    function = make.choice(["min", "max", "nanmin", "nanmax", "ptp"])
    return (
        f"da.ptp({a}, axis={make.axis(a.ndim)})"
        if function == "ptp"
        else f"da.{function}({a}, {_options(make, a)})"
    )


@operation("array", 4, fits=lambda a: a.dtype.kind in "biuf" and _filled(a) and a.ndim > 0, decides=True)
def where_extreme(make: Maker, a: Variable) -> Text:
    axis = make.choice(["None", str(make.axis(a.ndim))])
    return f"da.{make.choice(['argmin', 'argmax', 'nanargmax', 'nanargmin'])}({a}, axis={axis})"


@operation("array", 4, fits=numeric, decides=True)
def counted(make: Maker, a: Variable) -> Text:
    function = make.choice(["any", "all", "count_nonzero"])
    axis = make.axes(a.ndim)
    return f"da.{function}({a}, axis={axis})"


@operation("array", 5, fits=lambda a: numeric(a) and a.ndim > 0 and known(a), rounds=True)
def accumulated(make: Maker, a: Variable) -> Text:
    function = make.choice(["cumsum", "nancumsum", "cumsum", "cumprod"])
    if make.size != "small":
        function = "cumsum"
    return f"da.{function}({a}, axis={make.axis(a.ndim)}, method={make.choice(['sequential', 'blelloch'])!r})"


@operation("array", 3, fits=lambda a: real(a) and a.ndim > 0 and _filled(a), decides=True)
def sorted_out(make: Maker, a: Variable) -> Text:
    k = make.choice([-3, -1, 2, 4])
    axis = make.axis(a.ndim)
    options = [f"da.topk({a}, {k}, axis={axis})", f"da.argtopk({a}, {k}, axis={axis})"]
    if a.ndim == 1:
        options += [
            f"da.percentile({a}, [10, 50, 75])",
            f"da.percentile({a}, 30, method='nearest')",
            f"da.searchsorted({a}, da.arange(4, chunks=2))" if whole(a) else f"da.unique({a})",
            f"da.unique({a})",
            f"da.unique({a}, return_counts=True)[1]",
            f"da.unique({a}, return_inverse=True)[1]",
        ]
    options += [
        f"da.median({a}, axis={axis})",
        f"da.quantile({a}, 0.3, axis={axis})",
        f"da.nanmedian({a}, axis={axis})",
    ]
    return options


@operation("array", 3, fits=lambda a: real(a) and _filled(a), decides=True)
def histogram(make: Maker, a: Variable) -> Text:
    return [
        f"da.histogram({a}, bins=[-9, -2, 0, 3.5, 20])[0]",
        f"da.histogram({a}, bins=5, range=(-10, 10))[0]",
        f"da.histogram({a}, bins=5, range=(-10, 10), density=True)[0]",
        f"da.bincount(abs({a}).astype('i8').ravel() % 7, minlength=7)",
    ]


@operation("array", 2, fits=lambda a: a.dtype.kind in "biuf" and _filled(a) and a.ndim == 2, rounds=True)
def of_matrix(make: Maker, a: Variable) -> Text:
    return [
        f"{a} @ {a}.T",
        f"da.tensordot({a}, {a}, axes=((0,), (0,)))",
        f"da.dot({a}, {a}[0])",
        f"da.einsum('ij,kj->ik', {a}, {a})",
        f"da.einsum('ij->j', {a})",
        f"da.matmul({a}.T, {a})",
        f"da.vdot({a}, {a})",
        f"da.inner({a}[0], {a}[0])" if hasattr(a, "inner") else f"da.dot({a}[0], {a}[0])",
        f"da.outer({a}[0], {a}[:, 0])",
        f"da.cov({a})" if a.shape[1] > 1 else f"da.trace({a})",
        f"da.average({a}, axis=0, weights=np.arange({a.shape[0]}) + 1)",
        f"da.linalg.norm({a}, axis=1)",
        f"da.linalg.norm({a})",
        f"da.trace({a})",
    ]


@operation("array", 2, fits=lambda a: a.dtype == "f8" and _filled(a) and a.ndim == 2, rounds=True, decides=True)
def decomposed(make: Maker, a: Variable) -> Text:
    tall = f"{a}.rechunk({{1: -1}})"
    # Of singular vectors of matrices without full rank nothing is certain; so only what is unique.
    return [
        f"da.linalg.svd(da.nan_to_num({tall}))[1]",
        f"abs(da.linalg.qr(da.nan_to_num({tall}))[1])",
        f"da.linalg.svd_compressed(da.nan_to_num({a}), 1, seed=3)[1]",
        f"da.linalg.cholesky((da.eye(4, chunks=2) * {make.integer(2, 5)}))",
        f"da.linalg.solve(da.eye({a.shape[0]}, chunks={a.shape[0]}) * 2, {a}[:, 0].rechunk(-1))",
        f"da.linalg.inv(da.eye(4, chunks=2) * {make.integer(2, 5)})",
    ]


@operation("array", 2, fits=lambda a: numeric(a) and _filled(a) and a.ndim > 0, rounds=True)
def coarsened(make: Maker, a: Variable) -> Text:
    axis = make.integer(0, a.ndim - 1)
    factor = make.integer(1, 3)
    return f"da.coarsen(np.{make.choice(['sum', 'mean', 'max'])}, {a}, {{{axis}: {factor}}}, trim_excess=True)"


@operation("array", 2, fits=lambda a: numeric(a) and _filled(a), rounds=True)
def reduced_by_hand(make: Maker, a: Variable) -> Text:
    axis = make.axes(a.ndim)
    return (
        f"da.reduction({a}, lambda x, axis, keepdims: x.sum(axis=axis, keepdims=True), "
        f"lambda x, axis, keepdims: x.sum(axis=axis, keepdims=keepdims), axis={axis}, dtype={a.dtype.str!r})"
    )
