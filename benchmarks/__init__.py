"""Benchmarks of ``dask_mars`` beside Dask's own schedulers: ``python -m benchmarks --help``."""
