"""Figure 10: splits of 32 devices into stages, replicas and tensor parallelism, by the planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.paper.printed import FIGURE_10, SPLITS, Throughputs
from benchmarks.paper.setting import SETTING, Setting, megatron_sequences
from primepar.errors import PlanError
from primepar.plan.pipeline.splits import Sequences, Splits
from primepar.plan.search.planner import Planner


@dataclass(frozen=True)
class Stack:
    """Seconds of a step of some blocks of a model by `SPLITS`; None where the sizes refuse it."""

    model: str
    megatron: tuple[float | None, ...]
    primepar: tuple[float | None, ...]

    @property
    def printed(self) -> Throughputs:
        """The paper's bars."""
        return FIGURE_10[self.model]

    @property
    def bars(self) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
        """Throughputs over that of Megatron's plan that the paper takes for 1."""
        base = self.megatron[self.printed.megatron.index(1.0)]
        assert base is not None, "the paper's first bar is one of ours"
        one, other = (tuple(took and base / took for took in own)
                      for own in (self.megatron, self.primepar))  # fmt: skip
        return one, other


def stacked(model: str, setting: Setting = SETTING) -> Stack:
    """All splits of a model, under Megatron's plan in a stage and under the search's."""
    blocks = replace(setting.model(model), layers=setting.blocks)
    own = Splits(blocks, setting.machine, 32, setting.batch, setting.dtype, "paper", "blocks")

    def took(split: int, sequences: Sequences | None) -> float | None:
        size = setting.batch // SPLITS[split].replicas // setting.microbatches
        try:
            return own.pipeline(SPLITS[split], size, sequences).seconds
        except PlanError:
            return None

    plain, searched = ([took(at, sequences) for at in range(len(SPLITS))]
                       for sequences in (_megatron, None))  # fmt: skip
    return Stack(model, tuple(plain), tuple(searched))


def _megatron(planner: Planner) -> dict[str, str]:
    return megatron_sequences(planner, 1)


def best_two(bars: Sequence[float | None]) -> list[int]:
    """Places of the two highest bars, the highest first."""
    return sorted(range(len(bars)), key=lambda at: -(bars[at] or 0.0))[:2]


def pairs(own: Stack) -> list[tuple[tuple[float | None, ...], tuple[float | None, ...]]]:
    """Ours and the paper's bars, of Megatron and of PrimePar."""
    one, other = own.bars
    return [(one, own.printed.megatron), (other, own.printed.primepar)]


def right(found: list[Stack]) -> list[int]:
    """For how many models the best two splits are the paper's: by Megatron's plans, by ours."""
    return [sum(set(best_two(ours)) == set(best_two(printed)) for ours, printed in plans)
            for plans in zip(*map(pairs, found), strict=True)]  # fmt: skip


def most_microbatches(printed: Throughputs) -> float:
    """The most for which 1F1B explains the paper's bars of Megatron without replicas."""
    bars = dict(zip(SPLITS, printed.megatron, strict=True))
    one, other = (bars[split] for split in SPLITS if split[0] > 2 and split[1] == 1)
    ratio = (one or 0.0) / (other or 1.0)
    return (7 - 3 * ratio) / (ratio - 1) if ratio > 1 else float("inf")
