"""Checkpoints: chunks are saved by Dask's key where that pays, and a graph is computed minus what is saved.

It knows chunk graphs, directories and files, and none of engines, workers and clusters, which call it by the hooks
of `saver`. `policy` and `restore` are pure. Open `session` first: one computation under a checkpoint, from its
lock to the end of its files. The public names are `dask_mars.checkpoint` and `dask_mars.checkpoints`.
"""
