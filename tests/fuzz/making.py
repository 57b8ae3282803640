"""The strategy of programs: what they are about, under which settings, and how long they are."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.fuzz import computing
from tests.fuzz.maker import Maker
from tests.fuzz.programs import Program
from tests.fuzz.running import silenced

#: What programs are about, with weights; and the kinds of their sources, with weights.
_THEMES: dict[str, tuple[float, dict[str, float]]] = {
    "arrays": (10, {"array": 1}),
    "xarray": (3, {"xarray": 3, "array": 1}),
    "frames": (2.5, {"frame": 1}),
    "bags": (3, {"bag": 2, "delayed": 3}),
    "mixed": (3, {"array": 3, "xarray": 1, "frame": 1, "bag": 1, "delayed": 2}),
}
#: Settings of Dask that no result may depend on, each with what it may be; most programs leave them alone.
_SETTINGS: dict[str, list[Any]] = {
    "optimization.fuse.active": [True, False],
    "array.slicing.split-large-chunks": [True, False],
    "array.chunk-size": ["1 kiB", "64 kiB"],
    "array.rechunk.method": ["tasks"],
    "dask-mars.expressions.reductions": [False],
    "dask-mars.writable-inputs": [True],
    "dask-mars.retries": [1],
}


@st.composite
def programs(draw: st.DrawFn, sizes: tuple[str, ...] = ("small",), theme: str = "") -> Program:
    """Make a program over data of one of some sizes, the first of which is most frequent."""
    size = draw(st.sampled_from([sizes[0], *sizes]))
    # Hypothesis makes its numbers, and copies no part of one program into the next as it does with strategies.
    random = draw(st.randoms(use_true_random=False))
    with silenced():
        maker = Maker(random, size)
        program = maker.program
        program.theme = theme or maker.weighted({name: weight for name, (weight, _) in _THEMES.items()})
        program.settings = {name: maker.choice(may) for name, may in _SETTINGS.items() if maker.chance(0.06)}
        kinds = _THEMES[program.theme][1]
        wanted = maker.integer(1, 3)
        for _ in range(20):
            wanted -= maker.begin(maker.weighted(kinds))
            if wanted <= 0:
                break
        for _ in range(maker.integer(3, 14)):
            computing.some_step(maker)
        computing.last_steps(maker)
    return program
