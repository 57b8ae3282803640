"""Observation of engines: one recording, one sum by layer, and their views.

It listens to engines, which do not know it, and reads chunk graphs. Without a listener it costs nothing. Begin
with `recording` (rows of chunks by worker and time) and `layers` (counts, seconds and bytes by layer). Views are
`terminal`, `notebook`, `report` and `trace_file`; `drawing` makes pictures of graphs, `planning` estimates costs.
"""
