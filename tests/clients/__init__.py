"""Test suites of libraries that compute with Dask, run with every scheduler replaced by one."""
