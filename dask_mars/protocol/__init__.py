"""The protocol between an engine and its workers: frames, messages, references, pickles.

Frames and their messages, packed columns of chunks, references to stored objects, pickles, the control page in
shared memory, locks that hold across processes, and what a task is to find around it. It knows neither who sends
nor who decides. Begin with `channel`.
"""
