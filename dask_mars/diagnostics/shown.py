"""Texts about a computation's progress, for terminals, notebooks and files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dask_mars import units
from dask_mars.diagnostics.tally import Tally
from dask_mars.engine.listeners import EngineView

#: Elapsed time before which no remaining time is estimated, in seconds.
_SOON_S = 0.5


class MemoryUse(NamedTuple):
    """The current or peak memory in use, with a text about it."""

    in_use_bytes: int
    limit_bytes: int
    words: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A displayed computation.

    Attributes
    ----------
    tally : Tally
        Its progress.
    engine : EngineView or None
        The engine that computes it, if known.
    """

    tally: Tally
    engine: EngineView | None

    @property
    def outcome(self) -> str:
        """The outcome, or "running" before the end."""
        return self.tally.outcome or "running"

    def headline(self, now_s: float) -> str:
        """Return its state, progress and elapsed time."""
        tally, whole = self.tally, self.tally.whole()
        elapsed_s = (now_s if tally.ended_s is None else tally.ended_s) - tally.began_s
        text = f"{self.outcome}: {whole.done:,} of {whole.total:,} tasks in {units.duration(elapsed_s)}"
        left_s = tally.remaining_s(now_s) if elapsed_s > _SOON_S else None
        parts = [text if left_s is None else f"{text}, about {units.remaining(left_s)} left"]
        if whole.failed:
            parts.append(f"{whole.failed:,} failed")
        if self.engine is not None and tally.ended_s is None:
            running = self.engine.running()
            busy = sum([noted is not None for noted in running.values()])
            parts.append(f"{busy} of {len(running)} workers busy")
        return " · ".join(parts)

    def memory(self) -> MemoryUse | None:
        """Return the current memory in use, or the peak after the end; None without an engine."""
        if self.engine is None:
            return None
        memory = self.engine.memory()
        limit = memory["limit_bytes"]
        spilled = units.size(max(self.engine.store()["spilled_bytes"] - self.tally.spilled_before_bytes, 0))
        if self.tally.ended_s is not None:
            most = self.tally.most_in_use_bytes
            words = f"at most {units.size(most)} of {units.size(limit)} in use · {spilled} spilled"
            return MemoryUse(most, limit, words)
        in_use = memory["in_use_bytes"]
        on_disk = units.size(memory["on_disk_bytes"])
        words = f"{units.size(in_use)} of {units.size(limit)} in use · {on_disk} on disk · {spilled} spilled"
        return MemoryUse(in_use, limit, words)

    def line(self, now_s: float) -> str:
        """Return headline and memory in one line, without layers."""
        memory = self.memory()
        headline = self.headline(now_s)
        return headline if memory is None else f"{headline} · {memory.words}"


__all__ = ["MemoryUse", "Shown"]
