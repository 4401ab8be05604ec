"""Figure 10: splits of 32 devices into stages, replicas and tensor parallelism, by the planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.paper.printed import FIGURE_10, SPLITS, Throughputs
from benchmarks.paper.setting import SETTING, Setting, megatron_sequences
from primepar.errors import PlanError
from primepar.models.graph import Operator
from primepar.partition.by_dimension import BySequence
from primepar.plan.cost.candidate import Candidate
from primepar.plan.search.planner import Planner
from primepar.plan.search.search import search
from primepar.plan.search.sequence_space import SequenceSpace
from primepar.plan.search.splits import Sequences, Splits


@dataclass(frozen=True)
class Stack:
    """Seconds of a step of some blocks of a model by `SPLITS`; None where sizes do not divide."""

    model: str
    megatron: tuple[float | None, ...]
    primepar: tuple[float | None, ...]

    @property
    def printed(self) -> Throughputs:
        """The paper's bars."""
        return FIGURE_10[self.model]

    @property
    def bars(self) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
        """Throughputs over that of the Megatron plan to which the paper assigns 1."""
        base = self.megatron[self.printed.megatron.index(1.0)]
        assert base is not None, "the paper's first bar is one of ours"
        megatron, primepar = (tuple(took and base / took for took in seconds)
                      for seconds in (self.megatron, self.primepar))  # fmt: skip
        return megatron, primepar


def stacked(model: str, setting: Setting = SETTING) -> Stack:
    """All splits of a model, with stages under Megatron's plan and under the searched one."""
    blocks = replace(setting.model(model), layers=setting.blocks)
    splits = Splits(blocks, setting.machine, 32, setting.batch, setting.dtype, "paper", "blocks")

    def step_seconds(split: int, sequences: Sequences | None) -> float | None:
        size = setting.batch // SPLITS[split].replicas // setting.microbatches
        try:
            return splits.pipeline(SPLITS[split], size, sequences).seconds
        except PlanError:
            return None

    plain, searched = ([step_seconds(split, sequences) for split in range(len(SPLITS))]
                       for sequences in (_megatron, without_row_cuts))  # fmt: skip
    return Stack(model, tuple(plain), tuple(searched))


def _megatron(planner: Planner) -> dict[str, str]:
    return megatron_sequences(planner, 1)


def without_row_cuts(planner: Planner) -> dict[str, str]:
    """The searched plan in which linear operators cut no rows but by P.

    The paper disables its batch partition in figure 10. Here the rows of all sequences are one dim.
    """
    space = SequenceSpace.whole(planner.space, planner.training.links.bits)

    def candidates(operator: Operator) -> list[Candidate]:
        return [candidate for candidate in space.of(operator)
                if operator.kind != "linear" or not _cuts_rows(candidate)]  # fmt: skip

    return search(Planner.like(planner, candidates=candidates)).sequences


def _cuts_rows(candidate: Candidate) -> bool:
    return any(isinstance(element.primitive, BySequence) for element in candidate.elements)


def best_two(bars: Sequence[float | None]) -> list[int]:
    """Indices of the two highest bars, the highest first."""
    return sorted(range(len(bars)), key=lambda split: -(bars[split] or 0.0))[:2]


def pairs(stack: Stack) -> list[tuple[tuple[float | None, ...], tuple[float | None, ...]]]:
    """Our bars and the paper's, of Megatron and of PrimePar."""
    megatron, primepar = stack.bars
    return [(megatron, stack.printed.megatron), (primepar, stack.printed.primepar)]


def matching_splits(stacks: Sequence[Stack]) -> list[int]:
    """Number of models whose best two splits are the paper's, for Megatron and for PrimePar."""
    return [sum(set(best_two(ours)) == set(best_two(printed)) for ours, printed in plans)
            for plans in zip(*map(pairs, stacks), strict=True)]  # fmt: skip


def most_microbatches(printed: Throughputs) -> float:
    """The most microbatches with which 1F1B explains the paper's Megatron bars without replicas."""
    bars = dict(zip(SPLITS, printed.megatron, strict=True))
    one, other = (bars[split] for split in SPLITS if split[0] > 2 and split[1] == 1)
    ratio = (one or 0.0) / (other or 1.0)
    return (7 - 3 * ratio) / (ratio - 1) if ratio > 1 else float("inf")
