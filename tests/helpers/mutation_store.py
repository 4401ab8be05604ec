"""What was judged of mutants so far, kept so that a run that was stopped goes on where it was."""

from __future__ import annotations

from pathlib import Path

from long_runs import KeptLines
from mutation_oracle import Generated, Judged

Key = tuple[str, str, int]


class Store(KeptLines[Judged | Generated]):
    """The mutants and the generated programs that were judged."""

    def __init__(self, path: Path, of: str) -> None:
        self.mutants: dict[Key, Judged] = {}
        self.generated: dict[int, Generated] = {}
        super().__init__(path, of, Judged | Generated)

    def note(self, one: Judged | Generated) -> None:
        """File it by what it is."""
        if isinstance(one, Judged):
            self.mutants[one.key] = one
        else:
            self.generated[one.seed] = one
