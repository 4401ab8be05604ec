"""The communicators that splits make, on every device."""

from __future__ import annotations

from collections.abc import Sequence

from primepar.errors import MismatchError
from primepar.schedule.program import Collective, Program, SplitCommunicator


class MadeCommunicators:
    """Which communicators exist on which device; one of no split exists everywhere."""

    def __init__(self, program: Program) -> None:
        nodes = (node for nodes in program.programs for node in nodes)
        self._names = {node.into for node in nodes if isinstance(node, SplitCommunicator)} - {None}
        self._made: dict[tuple[int, str], set[int]] = {}

    def check(self, rank: int, name: str, ranks: set[int], every: bool = False) -> None:
        """Raise `MismatchError` unless a device may use a communicator with these ranks.

        A collective must be on `every` one of its ranks.
        """
        if name not in self._names:
            return
        made = self._made.get((rank, name))
        if made is None:
            raise MismatchError(
                f"expected communicator {name} to be made on device {rank} before, got none: "
                "move its split before this"
            )
        if ranks != made if every else not ranks <= made:
            raise MismatchError(
                f"expected devices of {name}, {sorted(made)}, got {sorted(ranks)}: split it so "
                "that these are in it"
            )

    def note(self, rank: int, calls: Sequence[Collective], ranks: Sequence[int]) -> None:
        """Take note of a split that ends on a device; `calls` are those of all `ranks`."""
        names = [call.into if isinstance(call, SplitCommunicator) else None for call in calls]
        name = names[ranks.index(rank)]
        if name is not None:
            if (rank, name) in self._made:
                raise MismatchError(
                    f"expected a new communicator, got {name} a second time on device {rank}: "
                    "give it another name"
                )
            pairs = zip(ranks, names, strict=True)
            self._made[rank, name] = {member for member, other in pairs if other == name}
