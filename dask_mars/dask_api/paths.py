"""Dotted names of Dask's functions with side effects, so that their modules need not be imported."""

from __future__ import annotations

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
    }
)
