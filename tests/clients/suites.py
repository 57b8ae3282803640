"""Which suites there are: what to install, and which of a client's tests compute with Dask."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Suite:
    """A client's tests.

    Parameters
    ----------
    name : str
        Of the suite.
    package : str
        The client, with its version.
    targets : tuple of str
        What pytest runs: packages and modules as they are installed, or paths in the source distribution.
    short : tuple of str
        What of that continuous integration runs.
    needs : tuple of str
        What its tests need besides.
    from_source : bool
        Whether the tests come in the source distribution alone.
    repository : str
        Where the tests are if no distribution has them: an address for git, with the tag behind an ``@``.
    options : tuple of str
        For pytest.
    environment : str
        Name of its environment, which suites of the same package share. Default: the suite's.
    """

    name: str
    package: str
    targets: tuple[str, ...]
    short: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    from_source: bool = False
    repository: str = ""
    options: tuple[str, ...] = ()
    environment: str = ""

    def __post_init__(self) -> None:
        """Name the environment."""
        if not self.environment:
            object.__setattr__(self, "environment", self.name)

    @property
    def distribution(self) -> str:
        """Name of the client's distribution."""
        return self.package.partition("==")[0].partition("[")[0]

    @property
    def version(self) -> str:
        """Version of the client."""
        return self.package.partition("==")[2]


_DASK = "dask==2026.8.0"
_DASK_NEEDS = (
    "cachey",
    "dask[array,dataframe,distributed]",
    "h5py",
    "pytest-mock",
    "scikit-learn",
    "scipy",
    "sqlalchemy",
    "tqdm",
    "xarray",
    "zarr>=3",
)


def _of_dask(name: str, targets: tuple[str, ...], short: tuple[str, ...] = ()) -> Suite:
    return Suite(name, _DASK, targets, short, needs=_DASK_NEEDS, environment="dask")


SUITES = [
    _of_dask(
        "dask-array",
        ("dask.array.tests",),
        (
            "dask.array.tests.test_overlap",
            "dask.array.tests.test_rechunk",
        ),
    ),
    _of_dask("dask-bag", ("dask.bag",)),
    _of_dask(
        "dask-delayed",
        (
            "dask.tests.test_base",
            "dask.tests.test_cache",
            "dask.tests.test_callbacks",
            "dask.tests.test_delayed",
            "dask.tests.test_graph_manipulation",
            "dask.tests.test_hashing",
            "dask.tests.test_layers",
        ),
        ("dask.tests.test_delayed",),
    ),
    _of_dask(
        "dask-diagnostics",
        ("dask.diagnostics",),
        ("dask.diagnostics.tests.test_progress", "dask.diagnostics.tests.test_profiler"),
    ),
    _of_dask("dask-dataframe", ("dask.dataframe",)),
    Suite(
        "array-expressions",
        "dask-array==0.7.1",
        ("dask_array.tests",),
        (
            "dask_array.tests.test_gufunc",
            "dask_array.tests.test_map_blocks",
            "dask_array.tests.test_rechunk",
        ),
        needs=(_DASK, "bottleneck", "h5py", "hypothesis", "numba", "scipy", "sparse", "xarray", "zarr>=3"),
        # These are about another scheduler.
        options=("-k", "not frisky"),
    ),
    Suite(
        "xarray",
        "xarray==2026.9.0",
        ("xarray.tests",),
        needs=("dask[array,dataframe]", "bottleneck", "cftime", "netcdf4", "h5netcdf", "h5py", "numbagg", "pint")
        + ("scipy", "flox", "pytest-asyncio", "sparse", "zarr>=3", "distributed"),
        options=("-k", "dask or chunk or lazy or Dask or zarr", "-n", "2"),
    ),
    Suite(
        "dask-image",
        "dask-image==2026.5.0",
        ("tests",),
        needs=("pims", "tifffile", "scikit-image"),
        from_source=True,
    ),
    Suite(
        "flox",
        "flox==0.11.2",
        ("tests",),
        needs=("dask[array]", "cubed", "hypothesis", "netcdf4", "numba", "numbagg", "pooch", "pyarrow", "sparse")
        + ("scipy", "syrupy", "xarray", "cftime"),
        from_source=True,
        # Of one test with 12,096 parameters a part.
        options=("--ignore", "tests/test_asv.py", "-n", "2", "-k", "not test_groupby_reduce_all or flox-nanm"),
    ),
    Suite(
        "xhistogram",
        "xhistogram==0.3.2",
        ("xhistogram",),
        needs=("scipy", "xarray", "dask[array]"),
        from_source=True,
    ),
    Suite(
        "dask-ml",
        "dask-ml==2025.1.0",
        ("tests",),
        needs=("pytest<9", "pytest-mock"),
        repository="https://github.com/dask/dask-ml@v2025.1.0",
        options=("-n", "2"),
    ),
    Suite(
        "scikit-image",
        "scikit-image==0.25.2",
        ("skimage.util.tests.test_apply_parallel", "skimage.restoration.tests.test_denoise"),
        needs=("dask[array]", "pooch", "pywavelets"),
    ),
    Suite(
        "anndata",
        "anndata[dask,lazy]==0.12.19",
        ("tests",),
        needs=("pytest-mock", "pytest-memray", "scikit-learn", "joblib", "boltons", "awkward>=2.3.2", "filelock")
        + ("matplotlib", "openpyxl", "pyarrow", "pooch", "dask[distributed]", "loompy"),
        from_source=True,
        options=("-p", "testing.anndata._pytest", "--import-mode=importlib", "-k", "dask or lazy", "-n", "2"),
    ),
    Suite(
        "sparse",
        "sparse==0.19.3",
        ("sparse/numba_backend/tests/test_dask_interop.py",),
        needs=("dask[array]", "scipy"),
        from_source=True,
    ),
    Suite(
        "xarray-spatial",
        "xarray-spatial==0.5.3",
        ("xrspatial",),
        needs=("dask[array,dataframe]", "scipy", "geopandas", "shapely", "spatialpandas", "noise", "pyarrow"),
        from_source=True,
        options=("-k", "dask"),
    ),
    Suite("xrft", "xrft==1.0.1", ("xrft",), needs=("dask[array]", "numpy_groupies", "cftime"), from_source=True),
    Suite(
        "xgcm",
        "xgcm==0.10.1",
        ("xgcm",),
        needs=("dask[array]", "numba", "netcdf4", "scipy"),
        from_source=True,
        # Threads take an hour for those, in which Dask fuses large graphs of many small tasks.
        options=("-k", "not test_dask_vs_eager"),
    ),
    Suite(
        "pyresample",
        "pyresample==1.35.0",
        (
            "pyresample.test.test_bilinear",
            "pyresample.test.test_bucket",
            "pyresample.test.test_gradient",
            "pyresample.test.test_resample_blocks",
        ),
        needs=("dask[array,dataframe]", "rasterio", "scipy", "xarray", "zarr>=3"),
    ),
    Suite(
        "dask-geopandas",
        "dask-geopandas==0.5.0",
        ("dask_geopandas",),
        needs=("pyogrio", "pyarrow", "distributed", "geodatasets"),
        from_source=True,
    ),
    Suite(
        "pint",
        "pint==0.25.3",
        ("pint/testsuite/test_dask.py",),
        needs=("dask[array,distributed]", "pytest-subtests", "pytest-benchmark"),
        from_source=True,
    ),
    Suite(
        "xskillscore",
        "xskillscore==0.0.29",
        ("xskillscore",),
        needs=("dask[array]", "bottleneck", "cftime", "matplotlib", "numba", "packaging", "scikit-learn"),
        from_source=True,
    ),
    Suite(
        "dask-histogram",
        "dask-histogram==2026.2.0",
        ("tests",),
        # Without a version pip does not find one that suits all of them.
        needs=("dask[array,dataframe]==2026.8.0", "dask-awkward", "hist"),
        repository="https://github.com/dask-contrib/dask-histogram@2026.2.0",
    ),
]
