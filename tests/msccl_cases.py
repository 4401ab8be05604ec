"""MSCCL algorithms as text, and changes of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class StepText:
    """One step; locations as buffer and chunk."""

    kind: str
    source: tuple[str, int] = ("i", 0)
    destination: tuple[str, int] = ("o", 0)
    after: tuple[int, int] = (-1, -1)
    chunks: int = 1


@dataclass(frozen=True)
class BlockText:
    """A thread block."""

    sends_to: int
    receives_from: int
    steps: list[StepText] = field(default_factory=list)
    channel: int = 0


@dataclass(frozen=True)
class AlgorithmText:
    """The thread blocks of every GPU."""

    collective: str
    in_place: int
    inputs: int
    outputs: int
    gpus: list[list[BlockText]]

    def text(self) -> str:
        """The file."""
        lines = [f'<algo name="test" proto="Simple" nchannels="1" ngpus="{len(self.gpus)}" '
                 f'coll="{self.collective}" inplace="{self.in_place}">']  # fmt: skip
        for gpu, blocks in enumerate(self.gpus):
            chunks = f'i_chunks="{self.inputs}" o_chunks="{self.outputs}" s_chunks="4"'
            lines.append(f'  <gpu id="{gpu}" {chunks}>')
            for number, block in enumerate(blocks):
                lines.append(f'    <tb id="{number}" send="{block.sends_to}" '
                             f'recv="{block.receives_from}" chan="{block.channel}">')  # fmt: skip
                for place, step in enumerate(block.steps):
                    (srcbuf, srcoff), (dstbuf, dstoff) = step.source, step.destination
                    lines.append(
                        f'      <step s="{place}" type="{step.kind}" srcbuf="{srcbuf}" '
                        f'srcoff="{srcoff}" dstbuf="{dstbuf}" dstoff="{dstoff}" '
                        f'cnt="{step.chunks}" depid="{step.after[0]}" deps="{step.after[1]}" '
                        f'hasdep="0"/>'
                    )
                lines.append("    </tb>")
            lines.append("  </gpu>")
        return "\n".join([*lines, "</algo>", ""])


def ring_all_reduce(n: int) -> AlgorithmText:
    """In place, one thread block on each GPU: a reduce-scatter around the ring, then all-gather."""
    gpus = []
    for g in range(n):
        kinds = [("s", g), *(("rrs", g - k) for k in range(1, n - 1)), ("rrcs", g + 1),
                 *(("rcs", g - k) for k in range(n - 2)), ("r", g + 2)]  # fmt: skip
        steps = [StepText(kind, ("i", c % n), ("i", c % n)) for kind, c in kinds]
        gpus.append([BlockText((g + 1) % n, (g - 1) % n, steps)])
    return AlgorithmText("allreduce", 1, n, n, gpus)


def ring_all_gather(n: int) -> AlgorithmText:
    """Two thread blocks on each GPU: one receives, the other sends what has arrived."""
    gpus = []
    for g in range(n):
        receives = [StepText("r", ("i", 0), ("o", (g - k) % n)) for k in range(1, n)]
        sends = [StepText("s", ("i", 0), ("o", g))]
        sends += [StepText("s", ("o", (g - k) % n), ("o", 0), (0, k - 1)) for k in range(1, n - 1)]
        copy = [StepText("cpy", ("i", 0), ("o", g))]
        gpus.append([BlockText(-1, (g - 1) % n, receives), BlockText((g + 1) % n, -1, sends),
                     BlockText(-1, -1, copy)])  # fmt: skip
    return AlgorithmText("allgather", 0, 1, n, gpus)


def direct_reduce_scatter(n: int) -> AlgorithmText:
    """Every GPU sends its chunks to their GPUs, in two thread blocks for each pair."""
    gpus = []
    for g in range(n):
        peers = [p for p in range(n) if p != g]
        sums = [BlockText(-1, -1, [StepText("cpy", ("i", g), ("o", 0))])]
        for number, p in enumerate(peers):
            arrives = StepText("rrc", ("o", 0), ("o", 0), (number, 0))
            sums.append(BlockText(-1, p, [arrives]))
        sends = [BlockText(p, -1, [StepText("s", ("i", p), ("o", 0))]) for p in peers]
        gpus.append(sums + sends)
    return AlgorithmText("reduce_scatter", 0, n, 1, gpus)


ALGORITHMS = (ring_all_reduce(2), ring_all_reduce(3), ring_all_gather(3), ring_all_gather(4),
              direct_reduce_scatter(2), direct_reduce_scatter(3))  # fmt: skip


def changed(algorithm: AlgorithmText, chance: random.Random) -> AlgorithmText:
    """The algorithm with one step changed, moved, left out or doubled."""
    gpus = [[replace(block, steps=list(block.steps)) for block in gpu] for gpu in algorithm.gpus]
    blocks = [block for gpu in gpus for block in gpu if block.steps]
    steps = chance.choice(blocks).steps
    place = chance.randrange(len(steps))
    step = steps[place]
    way = chance.choice(("chunk", "dependency", "swap", "drop", "double", "kind"))
    if way == "chunk":
        end = chance.choice(("source", "destination"))
        buffer = getattr(step, end)[0]
        many = algorithm.inputs if buffer == "i" else algorithm.outputs
        location = (buffer, chance.randrange(many))
        if end == "source":
            steps[place] = replace(step, source=location)
        else:
            steps[place] = replace(step, destination=location)
    elif way == "dependency":
        steps[place] = replace(step, after=(-1, -1))
    elif way == "swap" and len(steps) > 1:
        other = chance.randrange(len(steps) - 1)
        steps[other], steps[other + 1] = steps[other + 1], steps[other]
    elif way == "drop" and step.kind in ("cpy", "re"):
        steps[place] = replace(step, kind="nop")
    elif way == "double" and step.kind in ("cpy", "re"):
        steps.insert(place, step)
    elif way == "kind":
        also = {"rrc": "r", "r": "rrc", "rrs": "rcs", "rcs": "rrcs", "rrcs": "rcs", "s": "s"}
        steps[place] = replace(step, kind=also.get(step.kind, step.kind))
    return replace(algorithm, gpus=gpus)
