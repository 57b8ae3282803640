"""The standing service: a front that answers and keeps records, and a runner that computes.

The front knows HTTP, sqlite and files, and never unpickles. The runner unpickles and never listens on a port. They
exchange lines of JSON over a socket pair; graphs and results are files. Open `front.py` first.
"""
