"""The shell around the scheduler: a thread in the user's process that drives worker processes.

It feeds events to the state machine of `scheduler` and executes its instructions; it decides nothing about order,
places or memory. Other threads call `engine`; its thread runs `loop`. `executor` executes instructions,
`workforce` starts and replaces workers, `memory` measures and `memory_control` acts on it, `receiver` takes
reports, `sender` packs work.
"""
