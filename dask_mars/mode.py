"""Whether this process is a worker. A module of its own, because nearly everything may ask."""

#: True in worker processes, where a nested compute runs on the spot.
in_worker = False
