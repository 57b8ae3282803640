"""Values in shared memory and on disk: arenas, their allocator, references, compression, spill files.

It puts values into memory that all processes of a host map, reads them where they lie, and writes them to files.
It knows nothing of graphs, workers or what is computed when. Begin with `store`; what all of it passes around is a
reference of `protocol.object_ref`.
"""
