"""Values in shared memory and on disk: arenas, their allocator, references, compression, spill files.

It puts values into memory that all processes of a host map, reads them in place, and writes them to files. It does
not know graphs, workers and schedules. Begin with `store`; its functions exchange references of
`protocol.object_ref`.
"""
