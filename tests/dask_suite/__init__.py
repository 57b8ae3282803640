"""Dask's own test suite, run with every named scheduler replaced by one scheduler."""
