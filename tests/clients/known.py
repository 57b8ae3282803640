"""Tests of clients that fail under dask_mars alone, and why: what cannot be otherwise between processes."""

from __future__ import annotations

_SIDE_EFFECT = "the task changes a variable of the test, and tasks run in other processes"
_LOGS = "looks at log records, and those of tasks go to the handlers of their own processes"
_IDENTITY = "compares objects by identity, and between processes objects are equal copies"
_FILTERS = "asks for the warning filters of Dask's repository: fails under Dask's threads as well"

#: Suite to part of a test's name to the reason for its failure.
_REASONS = {
    "dask-array": {
        "test_from_array_getitem[True-True]": _SIDE_EFFECT,
        "test_from_array_getitem[False-True]": _SIDE_EFFECT,
        "test_store_sources_unoptimized_nocompute": _SIDE_EFFECT,
        "test_zarr_risky_shards_warns": _FILTERS,
    },
    "array-expressions": {
        "test_map_blocks_block_id_stable_through_sliding_window_rewrite": _SIDE_EFFECT,
        "test_map_blocks_block_info_one_task_per_day_through_rolling_slice_rechunk": _SIDE_EFFECT,
        "test_map_blocks_block_info_stable_through_lower_time_chunk_drift": _SIDE_EFFECT,
        "test_map_blocks_block_info_stable_through_sliding_window_rewrite": _SIDE_EFFECT,
        "test_map_blocks_multi_output_shares_block_calls": _SIDE_EFFECT,
        "test_rechunk_pushdown_does_not_split_storage_chunks": _SIDE_EFFECT,
        "test_rechunk_pushdown_refines_coarse_source_chunks_to_storage_chunks": _SIDE_EFFECT,
        "test_rechunk_pushdown_respects_storage_shards_over_chunks": _SIDE_EFFECT,
        "test_rechunk_pushdown_sees_storage_chunks_through_lazy_wrapper": _SIDE_EFFECT,
        "test_rechunk_pushdown_through_offset_region_preserves_values_and_reads": _SIDE_EFFECT,
        "test_rechunk_pushdown_through_region_preserves_values_and_storage_reads": _SIDE_EFFECT,
    },
    "dask-bag": {
        "test_bag_with_single_callable": _IDENTITY,
        "test_repartition_partition_size_complex_dtypes": _IDENTITY,
        "test_to_delayed_optimize_graph": _SIDE_EFFECT,
    },
    "dask-delayed": {
        "test_checkpoint": _SIDE_EFFECT,
        "test_wait_on": _SIDE_EFFECT,
        "test_bind": _SIDE_EFFECT,
        "test_traverse_false": _IDENTITY,
    },
    "dask-dataframe": {
        "test_extra_connection_engine_keywords": _LOGS,
        "test_from_map_column_projection": _SIDE_EFFECT,
        "test_fusion_executes_only_once": _SIDE_EFFECT,
        "test_to_sql_engine_kwargs": _LOGS,
        "test_filter_isna": _IDENTITY,
        "test_register_extension_type": _IDENTITY + " (the decimal context of a type that pandas' tests define)",
    },
    "xarray": {
        "test_to_zarr_no_redundant_computation": _SIDE_EFFECT,
        "test_concat_loads_variables": _SIDE_EFFECT,
        "test_dataarray_pickle": _SIDE_EFFECT,
        "test_dataset_pickle": _SIDE_EFFECT,
        "TestVariable::test_pickle": _SIDE_EFFECT,
    },
    "dask-geopandas": {
        "test_geoseries_properties[exterior]": "GeoPandas pickles rings as lines (as WKB, which has no rings)",
    },
    "anndata": {
        "test_access_count_subset_column_compute": _SIDE_EFFECT,
        "test_data_access": _SIDE_EFFECT,
    },
    "dask-ml": {
        "test_cache_cv": _SIDE_EFFECT,
    },
    "flox": {
        "test_reindex_sparse": _SIDE_EFFECT,
    },
    "pyresample": {
        "test_resample_blocks_works_in_chunks": _SIDE_EFFECT,
        "test_resample_blocks_can_run_without_input": _SIDE_EFFECT,
    },
    "pint": {
        "test_dask_scheduler": "asks for the scheduler's name, which is here that of the one put in its place",
    },
}


def reason_for(suite: str, test: str) -> str | None:
    """Return why a test of a suite fails under dask_mars alone, None if that is not known."""
    return next((reason for part, reason in _REASONS.get(suite, {}).items() if part in test), None)
