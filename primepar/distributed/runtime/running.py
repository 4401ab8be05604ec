"""A compiled list, and where a rank is in it, for a thread that watches whether it goes on.

The loop over the list pays nothing for it: an iterator of Python knows how much it has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import NamedTuple

import torch

from primepar.operators import StepInputs
from primepar.schedule.program import (
    Collective,
    Group,
    Instruction,
    IRecv,
    ISend,
    Recv,
    Send,
    Wait,
)
from primepar.schedule.program_file import instruction_line

Token = tuple[int, int]
Blocks = dict[str, torch.Tensor]


class Frame:
    """What differs between runs: the caller's blocks on the device and on the host, and inputs."""

    __slots__ = ("blocks", "host", "inputs")

    def __init__(self, blocks: Blocks, inputs: StepInputs, host: Blocks | None = None) -> None:
        self.blocks, self.inputs = blocks, inputs
        self.host: Blocks = {} if host is None else host


Action = Callable[[Frame], object]


class CompiledStep(NamedTuple):
    """The actions of some instructions, in order; none if all was done at compile time."""

    instructions: tuple[Instruction, ...]
    actions: list[Action]

    def run(self, frame: Frame) -> None:
        """Do all of them."""
        for action in self.actions:
            action(frame)


@dataclass(frozen=True)
class ListPlace:
    """An instruction of a rank's list that has started, and the processes that it waits for."""

    location: str
    """`programs[0][37]`, as error messages name it."""
    instruction: str
    """The instruction as text; for a wait that which was posted, `wait for irecv W[0,1] <- 1`."""
    peers: tuple[int, ...]
    """Processes of the world; none if the instruction needs no other one."""

    def __str__(self) -> str:
        return f"{self.location} ({self.instruction})"


class Running:
    """One compiled list, and how far its run has come.

    `first` is the process of the world that has rank 0 of the mesh. A run takes either `actions`
    or `steps`, and ends with `stop`.
    """

    def __init__(self, steps: Sequence[CompiledStep], rank: int, first: int) -> None:
        self._steps, self._rank, self._first = steps, rank, first
        self._actions = [action for step in steps for action in step.actions]
        self._left: Iterator[object] | None = None
        self._by_action = True
        self._runs = 0

    def actions(self) -> Iterator[Action]:
        """Start a run, and return all actions in order."""
        actions = iter(self._actions)
        self._left, self._by_action, self._runs = actions, True, self._runs + 1
        return actions

    def steps(self) -> Iterator[CompiledStep]:
        """Start a run, and return all instructions in order."""
        steps = iter(self._steps)
        self._left, self._by_action, self._runs = steps, False, self._runs + 1
        return steps

    def stop(self) -> None:
        """End the run."""
        self._left = None

    @property
    def token(self) -> Token | None:
        """What changes whenever the run goes on; None outside of a run."""
        left = self._left
        return None if left is None else (self._runs, length_hint(left))

    def place(self) -> ListPlace | None:
        """Return the instruction that has started last; None if there is none."""
        token = self.token
        if token is None:
            return None
        number = self._step_of(token[1])
        started = [] if number is None else self._steps[: number + 1]
        if not started or not started[-1].instructions:
            return None
        before = [node for step in started[:-1] for node in step.instructions]
        nodes = [self._awaited(node, before) for node in started[-1].instructions]
        waits = "wait for " * isinstance(started[-1].instructions[0], Wait)
        text = waits + "; ".join(map(instruction_line, nodes))
        peers = sorted({peer + self._first for node in nodes for peer in self._peers(node)})
        return ListPlace(f"programs[{self._rank}][{len(before)}]", text, tuple(peers))

    def _step_of(self, left: int) -> int | None:
        """Return the number of the step whose action or whole has started last."""
        if not self._by_action:
            done = len(self._steps) - left
            return done - 1 if done else None
        started = len(self._actions) - left
        for number, step in enumerate(self._steps):
            if 0 < started <= len(step.actions):
                return number
            started -= len(step.actions)
        return None

    def _awaited(self, node: Instruction, before: list[Instruction]) -> Instruction:
        """Return the instruction that a wait is for, any other one as it is."""
        if not isinstance(node, Wait):
            return node
        posted = (past for past in reversed(before) if not isinstance(past, Wait))
        return next(past for past in posted if getattr(past, "request", None) == node.request)

    def _peers(self, node: Instruction) -> list[int]:
        """Return the ranks of the mesh that an instruction waits for."""
        match node:
            case Send(peer=peer) | Recv(peer=peer) | ISend(peer=peer) | IRecv(peer=peer):
                return [peer]
            case Group(body=body):
                return [message.peer for message in body]
            case _ if isinstance(node, Collective):
                return [rank for rank in node.group if rank != self._rank]
            case _:
                return []
