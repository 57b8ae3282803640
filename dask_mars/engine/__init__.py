"""The shell around the scheduler: a thread in the user's process that drives worker processes.

It feeds events to the state machine of `scheduler` and executes its instructions: it starts processes, sends work,
reads reports, writes spilled objects. It decides nothing about order, places or memory. Begin with `loop`;
`executor` executes instructions, `receiver` takes reports, `sender` packs work.
"""
