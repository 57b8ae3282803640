"""Checkpoints: worthwhile chunks are saved by Dask's key, and a graph is computed minus its saved chunks.

It knows chunk graphs, directories and files, but no engines, workers and clusters; they call the hooks of `saver`.
`policy` and `restore` are pure. Open `session` first: one computation under a checkpoint, from its lock to the
removal of its files. The public names are `dask_mars.checkpoint` and `dask_mars.checkpoints`.
"""
