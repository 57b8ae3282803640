"""The worker process: one thread that reads work, computes it, stores results and reports.

It knows its own share of the shared store and its connection to the engine. It knows nothing of other workers, of
the scheduler's decisions or of Dask's graphs. Begin with `main`, which starts it, and `loop`, its main loop.
"""
