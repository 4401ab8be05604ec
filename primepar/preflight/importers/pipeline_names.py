"""Names and meaning of the blocks of a pipeline that was written elsewhere.

    x.s[m]       input of stage s for micro-batch m; x.S, after the last stage, is the output
    dx.s[m]      its gradient; the loss makes that of the output, of x.S and target
    w.s[r]       weights of stage s, in one shard for each replica where they are sharded
    dw.s[r]      their gradient, summed over micro-batches, as a mean of the replicas

A replica has micro-batches of its own: those of replica q are q n to q n + n - 1. Rank p d + q is
position p of the pipeline in replica q of d, as in a mesh ("pp", "dp").
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from primepar.schedule.program import Instruction, Program
from primepar.schedule.signature import Signature

LOSS = "loss"


def activation(stage: int, micro_batch: int) -> str:
    """The input of a stage; of the number of stages, the output of the last one."""
    return f"x.{stage}[{micro_batch}]"


def activation_gradient(stage: int, micro_batch: int) -> str:
    """The gradient of the input of a stage."""
    return f"dx.{stage}[{micro_batch}]"


class PipelineNames(Struct, frozen=True):
    """The sizes of a pipeline, and the blocks that follow from them."""

    stage_ranks: tuple[int, ...]
    """Stage -> its position in the pipeline."""
    positions: int
    """Ranks of one pipeline."""
    micro_batches: int
    replicas: int = 1
    sharded: bool = False
    """Whether the replicas shard the weights (FSDP); else each has all of them (DDP)."""
    trains: bool = True

    @property
    def stages(self) -> int:
        """Stages of the model."""
        return len(self.stage_ranks)

    @property
    def shards(self) -> int:
        """Shards of the weights of a stage."""
        return self.replicas if self.sharded else 1

    def rank(self, position: int, replica: int) -> int:
        """The rank at a position of a replica's pipeline."""
        return position * self.replicas + replica

    def replica_ranks(self, position: int) -> tuple[int, ...]:
        """The ranks at a position of all replicas."""
        return tuple(self.rank(position, replica) for replica in range(self.replicas))

    def weights(self, stage: int) -> tuple[str, ...]:
        """All shards of the weights of a stage."""
        return tuple(f"w.{stage}[{shard}]" for shard in range(self.shards))

    def gradients(self, stage: int) -> tuple[str, ...]:
        """All shards of their gradient."""
        return tuple(f"dw.{stage}[{shard}]" for shard in range(self.shards))

    def _kept(self, blocks: Sequence[str], replica: int) -> str:
        return blocks[replica if self.sharded else 0]

    def program(self, programs: Sequence[Sequence[Instruction]]) -> Program:
        """The program of all ranks, with what it has at the start and must have at the end."""
        phases = self._phases()
        micro_batches = self.micro_batches * self.replicas
        ranks = [(p, q) for p in range(self.positions) for q in range(self.replicas)]
        return Program(
            format="primepar-program",
            version=1,
            ranks=len(ranks),
            programs=tuple(map(tuple, programs)),
            phases=phases,
            grid={
                name: {"M": micro_batches}
                | ({"R": self.shards} if name.endswith("gradient") else {})
                for name in phases
            },
            initial=tuple(tuple(self._initial(p, q)) for p, q in ranks),
            final=tuple(tuple(self._final(p, q)) for p, q in ranks),
        )

    def _phases(self) -> dict[str, Signature]:
        last = self.stages
        phases = {}
        for stage in range(last):
            x, y, dx, dy = (
                f"x.{stage}[M]",
                f"x.{stage + 1}[M]",
                f"dx.{stage}[M]",
                f"dx.{stage + 1}[M]",
            )
            weights = self.weights(stage)
            phases[f"stage{stage}.forward"] = Signature((x, *weights), y)
            if self.trains:
                phases[f"stage{stage}.backward"] = Signature((dy, y, *weights), dx)
                scale = "1" if self.replicas == 1 else f"1/{self.replicas}"
                phases[f"stage{stage}.gradient"] = Signature(
                    (x, dy, dx), f"dw.{stage}[R]", scale=scale
                )
        if self.trains:
            phases[LOSS] = Signature((f"x.{last}[M]", "target[M]"), f"dx.{last}[M]")
        return phases

    def _own(self, replica: int) -> range:
        return range(replica * self.micro_batches, (replica + 1) * self.micro_batches)

    def _initial(self, position: int, replica: int) -> list[str]:
        blocks = []
        for stage, place in enumerate(self.stage_ranks):
            if place != position:
                continue
            blocks.append(self._kept(self.weights(stage), replica))
            if stage == 0:
                blocks += [activation(0, m) for m in self._own(replica)]
            if stage == self.stages - 1 and self.trains:
                blocks += [f"target[{m}]" for m in self._own(replica)]
        return blocks

    def _final(self, position: int, replica: int) -> list[str]:
        blocks = []
        for stage, place in enumerate(self.stage_ranks):
            if place == position and self.trains:
                blocks.append(self._kept(self.gradients(stage), replica))
            if place == position and stage == self.stages - 1:
                blocks += [activation(self.stages, m) for m in self._own(replica)]
            if place == position and stage == 0 and self.trains:
                blocks += [activation_gradient(0, m) for m in self._own(replica)]
        return blocks
