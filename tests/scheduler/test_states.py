"""The table of moves: complete, obeyed, and what the documentation shows."""

from __future__ import annotations

import itertools
import pickle
import re
from pathlib import Path

import pytest

from dask_mars.errors import StateError
from dask_mars.graph.ids import subtask_id
from dask_mars.scheduler.states import LEGAL, MOVES, State
from tests.machines import CheckedMachine

ARCHITECTURE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
PAIRS = list(itertools.product(State, State))


def test_legal_and_moves_say_the_same_of_every_pair():
    assert len(LEGAL) == len(PAIRS)
    for source, target in PAIRS:
        assert LEGAL[source * len(State) + target] == (target in MOVES[source]), (source, target)


def test_machine_makes_legal_moves_and_refuses_all_others():
    for source, target in PAIRS:
        assert_moves(source, target)


def assert_moves(source: State, target: State) -> None:
    checked = CheckedMachine(workers=0)
    checked.submit(())
    machine = checked.machine
    graph = machine._graphs[1]
    graph.state[0] = source
    if target in MOVES[source]:
        graph.move(0, target)
        assert machine.state_of(1, 0) is target
        return
    with pytest.raises(StateError) as caught:
        graph.move(0, target)
    error = caught.value
    assert (error.graph, error.chunk, error.state, error.target) == (1, 0, source.name, target.name)
    assert error.__notes__ == [f"dask_mars: the chunk's id is {subtask_id(1, 0, 0).hex()}"]
    assert machine.state_of(1, 0) is source


def test_state_error_says_that_it_is_our_bug_and_survives_pickling():
    error = StateError(7, 3, "FREED", "RUNNING")
    assert str(error) == (
        "chunk 3 of graph 7 cannot go from FREED to RUNNING; this is a bug in dask_mars, please report it"
    )
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), vars(copy)) == (str(error), vars(error))


def test_documentation_shows_the_moves_as_a_diagram():
    # Chunks whose values come with the graph start as FINISHED.
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {state.name}" for state in (State.UNSCHEDULED, State.READY, State.FINISHED)]
    for source, targets in MOVES.items():
        lines += [f"    {source.name} --> {target.name}" for target in sorted(targets)]
    text = ARCHITECTURE.read_text(encoding="utf-8")
    diagrams = re.findall(r"^```mermaid\n(.*?)\n```$", text, flags=re.DOTALL | re.MULTILINE)
    assert [diagram for diagram in diagrams if diagram.startswith("stateDiagram")] == ["\n".join(lines)]
