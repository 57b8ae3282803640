"""Tests of Dask that fail under dask_mars, and why: what cannot be otherwise between processes."""

from __future__ import annotations

_SIDE_EFFECT = "the task changes a variable of the test, and tasks run in other processes"
_IDENTITY = "compares objects by identity, and between processes objects are equal copies"
_WARNINGS = "expects warnings to be errors, as Dask's own configuration of pytest has it; fails under threads too"
_NETWORK = "needs the network; fails under threads too"

#: Part of a test's name to the reason for its failure.
DIFFERENCES = {
    "test_from_array_getitem[True-True]": _SIDE_EFFECT,
    "test_from_array_getitem[False-True]": _SIDE_EFFECT,
    "test_store_sources_unoptimized_nocompute": _SIDE_EFFECT,
    "test_fusion_executes_only_once": _SIDE_EFFECT,
    "test_use_of_weakref_proxy": _SIDE_EFFECT,
    "test_bag_with_single_callable": _IDENTITY,
    "test_repartition_partition_size_complex_dtypes": _IDENTITY,
    "test_filter_isna": _IDENTITY,
    "test_register_extension_type": _IDENTITY + " (the decimal context of a type that pandas' tests define)",
    "test_zarr_risky_shards_warns": _WARNINGS,
    "test_nanquantile_all_nan": _WARNINGS,
    "test_orc": _NETWORK,
    "test_pyarrow_filesystem_option_real_data": _NETWORK,
}
