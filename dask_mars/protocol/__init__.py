"""The protocol between an engine and its workers: frames, messages, references, pickles.

It has frames and messages, packed columns of chunks, references to stored objects, pickles, the control page in
shared memory, interprocess locks, and the context of tasks. It knows neither senders nor decisions. Begin with
`channel`.
"""
