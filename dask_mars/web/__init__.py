"""Observation of computations over HTTP: the API, its security, a server beside a runtime, a page for browsers.

Importing :mod:`dask_mars` imports none of this package. The handlers need tornado (the extra ``web``).
"""
