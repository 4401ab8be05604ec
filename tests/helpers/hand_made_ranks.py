"""Ranks of a script that call these methods in place of torch.distributed, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from primepar.preflight.capture.recorder import RankRecorder
from primepar.preflight.capture.watched_operations import WatchedOperations
from primepar.preflight.meaning.terms import RankTerms
from primepar.preflight.verdict import captured_properties
from primepar.schedule.program import AllGather, AllReduce, Instruction, Program, ReduceScatter
from primepar.verify.report import PropertyResult


class HandMadeRank:
    """One rank, with the recorder of its terms and the instructions that it calls."""

    def __init__(self, rank: int) -> None:
        link: Any = None  # of a rank that gives no values to others
        self.operations = WatchedOperations(recorder := RankRecorder(link, rank))
        self.rank, self.recorder = rank, recorder.terms
        self.recorder.source = lambda: "step.py:7"
        self.instructions: list[Instruction] = []

    def call(
        self, instruction: Instruction, reads: list[torch.Tensor], writes: list[torch.Tensor]
    ) -> None:
        """Call a collective or a message that reads and writes these tensors."""
        self.recorder.call(len(self.instructions), reads, writes)
        self.instructions.append(instruction)

    def all_reduce(self, tensor: torch.Tensor, group: tuple[int, ...]) -> None:
        """Sum a tensor over a group."""
        self.call(AllReduce(group=group, block="x"), [tensor], [tensor])

    def scatter_and_gather(self, tensor: torch.Tensor, group: tuple[int, ...]) -> None:
        """Sum a tensor over a group, part by part."""
        names, part = ("a",) * len(group), torch.empty(tensor.numel() // len(group))
        self.call(ReduceScatter(group=group, blocks=names, block="b"), [tensor], [part])
        gathered = tuple(f"c{place}" for place in range(len(group)))
        self.call(AllGather(group=group, block="b", blocks=gathered), [part], [tensor])

    def local_gradient(self, size: int, seed: int, name: str = "") -> torch.Tensor:
        """A gradient that this rank computes from data of its own."""
        gradient = torch.randn(size, generator=torch.Generator().manual_seed(seed))
        self.recorder.gradient(gradient, name)
        return gradient


Step = Callable[[HandMadeRank], None]


def verdict_on(step: Step, ranks: int) -> PropertyResult:
    """Run a step on every rank, one after the other, and decide on the one property it asks."""
    every = [HandMadeRank(rank) for rank in range(ranks)]
    results: list[RankTerms] = []
    for recorded in every:
        with recorded.operations:
            step(recorded)
        results.append(recorded.recorder.result())
    lists = tuple(tuple(recorded.instructions) for recorded in every)
    program = Program("primepar-program", 1, ranks, lists)
    (result,) = captured_properties(program, results)
    return result


def parameter(size: int = 8) -> torch.Tensor:
    """A parameter that all ranks hold a replica of."""
    return torch.arange(1.0, 1 + size)
