"""Looking at computations over HTTP: the API, its security, a server beside a runtime, a page for browsers.

Nothing in the package is imported with :mod:`dask_mars`: who does not serve pays nothing.
The handlers need tornado (the extra ``web``).
"""
