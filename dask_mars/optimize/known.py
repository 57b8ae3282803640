"""Effects and costs of functions and objects of known libraries, by dotted names: none need be imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from dask_mars.graph.callables import attribute, called_by, full_name, module_of
from dask_mars.graph.chunks import Constant, Operand, Subprogram

# -- effects of functions -----------------------------------------------------------------------------------------

#: Functions that append: to the files of a shuffle, to a table of a database.
APPENDING = frozenset(
    {
        "dask.bag.core.partition",
        "dask.dataframe.dask_expr._shuffle.DiskShuffle._shuffle_group",
        "dask.dataframe.io.hdf._pd_to_hdf",
        "dask.dataframe.io.sql._to_sql_chunk",
    }
)
#: Appends if its keyword names a task that wrote the file before; otherwise it creates the file.
APPENDING_BEHIND = "dask.dataframe.io.csv._write_csv"
BEHIND = "depend_on"
#: Creates the directory of a shuffle's files.
MAKER_OF_FILES = "dask.dataframe.shuffle.maybe_buffered_partd"
#: Functions that write files without a way to verify them later.
WRITERS = frozenset(
    {
        "dask.bag.core._to_textfiles_chunk",
        "dask.bag.avro._write_avro_part",
        "dask.dataframe.dask_expr.io.parquet.ToParquetFunctionWrapper",
        "dask.dataframe.io.csv._write_csv",
        "dask.dataframe.io.json.write_json_partition",
        "dask.dataframe.io.orc.core.to_orc",
        "numpy.save",
        "numpy.savez",
    }
)
#: Functions that read the files named in their arguments: beginnings of their names, by package.
READERS = {
    "PIL": ("open",),
    "dask": ("_read_orc",),
    "geopandas": ("read_",),
    "imageio": ("imread", "volread"),
    "numpy": ("fromfile", "genfromtxt", "load", "loadtxt"),
    "pandas": ("read_",),
    "polars": ("read_",),
    "pyarrow": ("read_",),
    "scipy": ("loadmat", "mmread"),
    "skimage": ("imread",),
    "tifffile": ("imread",),
    "xarray": ("load_da", "open_da", "open_zarr"),
}
#: Packages whose functions count as reductions where their results are small.
REDUCING_PACKAGES = ("dask.array.", "dask_array.", "numpy", "xarray.", "flox.")
#: The first step of sums, counts, extremes and the like of a frame's partition, whose results are small.
FRAME_REDUCTION = "dask.dataframe.dask_expr._reductions.Reduction.chunk"

# -- objects ------------------------------------------------------------------------------------------------------

#: Zarr's stores in local directories, on file systems of fsspec's, and in object stores.
LOCAL_STORES = frozenset({"LocalStore", "DirectoryStore", "NestedDirectoryStore"})
FILE_SYSTEM_STORES = frozenset({"FsspecStore", "FSStore"})
OBJECT_STORES = frozenset({"ObjectStore"})
#: Packages whose objects name the files that they read.
TELLING_PACKAGES = frozenset({"h5py", "xarray", "zarr"})

# -- code that may run in the user's process ----------------------------------------------------------------------

#: Packages whose functions may run in the user's process, and that every worker has loaded or imports at once.
LOADED_PACKAGES = frozenset(
    {"_functools", "_operator", "builtins", "collections", "cytoolz", "dask", "dask_mars", "functools"}
    | {"itertools", "math", "numpy", "operator", "pathlib", "tlz", "toolz"}
)
#: All packages whose functions may run in the user's process.
LIBRARIES = LOADED_PACKAGES | {
    "dask_array",
    "flox",
    "numbagg",
    "numpy_groupies",
    "pandas",
    "pyarrow",
    "scipy",
    "xarray",
    "zarr",
}
#: Packages whose objects only read and decode, whatever they hold.
DECODING_PACKAGES = frozenset({"adlfs", "fsspec", "gcsfs", "h5py", "numcodecs", "s3fs"})
#: Functions of these packages that run arbitrary code.
RUNNING_CODE = frozenset(
    {"builtins:eval", "builtins:exec", "builtins:compile", "builtins:__import__", "builtins:open"}
)

# -- temporary memory ---------------------------------------------------------------------------------------------

#: Temporary memory of functions of NumPy and SciPy, as a multiple of the largest input or result,
#: measured with squares of 8 MB (NumPy 2.4, SciPy 1.17). Other functions take next to nothing.
TEMPORARY_SHARES: dict[str, float] = {
    # A partially sorted copy.
    **dict.fromkeys(("median", "percentile", "quantile", "nanmedian", "nanpercentile", "nanquantile"), 1.0),
    # A complex copy.
    **dict.fromkeys(("fft", "ifft", "fft2", "ifft2", "fftn", "ifftn", "rfft2", "rfftn", "irfft2", "irfftn"), 1.0),
    "hilbert": 1.0,
    # LAPACK overwrites its inputs, and needs work arrays.
    **dict.fromkeys(("qr", "cholesky", "inv", "det", "slogdet", "lu", "solve_triangular"), 1.0),
    **dict.fromkeys(("solve", "eigh", "eigvalsh"), 2.0),
    **dict.fromkeys(("svd", "svdvals", "eig", "eigvals", "matrix_rank"), 3.0),
    # Values of NumPy 2.5; older versions take 2.0 and 3.0.
    "lstsq": 3.5,
    "pinv": 7.0,
    # Squares and differences.
    **dict.fromkeys(("norm", "std", "var", "cov", "corrcoef", "gradient", "diff", "interp"), 1.0),
    **dict.fromkeys(("nanstd", "nanvar", "nanmean", "nansum", "unique"), 1.5),
    "bincount": 2.0,
    "isin": 10.0,
    # Padded inputs and their transforms.
    **dict.fromkeys(("fftconvolve", "convolve", "correlate", "convolve2d", "oaconvolve"), 3.5),
    **dict.fromkeys(("welch", "periodogram", "spectrogram", "detrend"), 4.5),
    **dict.fromkeys(("gaussian_gradient_magnitude", "gaussian_laplace", "zoom"), 1.0),
    **dict.fromkeys(("map_coordinates", "distance_transform_edt"), 3.5),
}
_TEMPORARY_PACKAGES = ("numpy", "scipy")


# -- look-ups -----------------------------------------------------------------------------------------------------


def unfolded(functions: Iterable[Any]) -> Iterator[Any]:
    """Yield functions and the values that they hold, with inner programs and constants unfolded."""
    for function in functions:
        if isinstance(function, Subprogram):
            yield from unfolded(function.operand.functions)
            yield from function.literals
            yield from getattr(function, "values", ())
        elif isinstance(function, Constant):
            yield function.value
        else:
            yield function


def appends(operand: Operand) -> bool:
    """Return whether an operand calls a function that appends to existing data."""
    for step in operand.steps:
        function = operand.functions[step.function]
        if isinstance(function, Subprogram):
            if appends(function.operand):
                return True
            continue
        path = full_name(function)
        if path in APPENDING or (path == APPENDING_BEHIND and BEHIND in step.keywords):
            return True
    return False


def makes_files(values: Iterable[Any]) -> bool:
    """Return whether some value makes the directory of a shuffle's files."""
    return any(full_name(value).startswith(("partd.", MAKER_OF_FILES)) for value in values if callable(value))


def is_reader(function: Any) -> bool:
    """Return whether a function reads the files named in its arguments."""
    module = module_of(function)
    name = full_name(function).removeprefix(f"{module}.")
    return name.startswith(READERS.get(module.partition(".")[0], "\0"))


def reads_files(operand: Operand) -> bool:
    """Return whether an operand calls or holds a function that reads the files named in its arguments."""
    return any(map(is_reader, unfolded(operand.functions)))


def temporary_share(functions: Iterable[Callable[..., Any]]) -> float:
    """Return the temporary memory of functions as a multiple of the largest input or the result, 0 if unknown."""
    return max(map(_share_of, functions), default=0.0)


def temporaries_of(operands: Sequence[Operand]) -> dict[int, float]:
    """Return the known shares of `temporary_share` by the operands' ids."""
    shares = {operand_id: temporary_share(operand.functions) for operand_id, operand in enumerate(operands)}
    return {operand_id: share for operand_id, share in shares.items() if share}


def _share_of(function: Callable[..., Any]) -> float:
    name = attribute(called_by(function), "__name__")
    if type(name) is not str or name not in TEMPORARY_SHARES:
        return 0.0
    return TEMPORARY_SHARES[name] if module_of(function).partition(".")[0] in _TEMPORARY_PACKAGES else 0.0
