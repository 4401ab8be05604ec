"""Small programs with phases of their own, made at random: norms, sums, updates, moved blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

Json = dict[str, Any]


@dataclass
class Step:
    """A program that grows by instructions; `x` is sharded by rows, one or two for a rank."""

    random: Random
    ranks: int
    columns: int
    rows: int
    grid: Json = field(default_factory=dict)
    phases: Json = field(default_factory=dict)
    tensors: Json = field(default_factory=dict)
    programs: list[list[Json]] = field(default_factory=list)
    initial: list[list[str]] = field(default_factory=list)
    final: list[list[str]] = field(default_factory=list)
    requests: int = 0

    @classmethod
    def of(cls, random: Random) -> Step:
        ranks = random.choice((2, 2, 3))
        step = cls(random, ranks, random.choice((1, 2)), random.choice((1, 1, 2)))
        step.programs = [[] for _ in range(ranks)]
        step.initial = [[] for _ in range(ranks)]
        step.final = [[] for _ in range(ranks)]
        return step

    def mine(self, rank: int) -> range:
        """Rows of one rank."""
        return range(rank * self.rows, (rank + 1) * self.rows)

    @property
    def shape(self) -> Json:
        return {"M": self.ranks * self.rows, "K": self.columns}

    def tensor(self, name: str) -> None:
        """Declare the cuts of a tensor with sharded rows, or do not."""
        if self.random.random() < 0.7:
            self.tensors[name] = {"cuts": [self.lines("M"), self.lines("K")]}

    def lines(self, dim: str) -> list[int]:
        width = 4 if dim == "M" else 6
        return [number * width for number in range(self.shape[dim] + 1)]

    def compute(self, rank: int, phase: str, reads: list[str], writes: str, **slices: int) -> None:
        self.programs[rank].append(
            {"op": "compute", "phase": phase, "reads": reads, "accumulates": writes,
             "sub_operator": slices}
        )  # fmt: skip

    def phase(self, name: str, grid: Json, reads: list[str], writes: str, **more: str) -> None:
        self.grid[name] = grid
        self.phases[name] = {"reads": reads, "writes": writes, **more}

    def together(self, node: Json, ranks: list[int], fields: list[Json] | None = None) -> None:
        """A collective of some ranks, at once or posted, perhaps on a communicator of its own."""
        if self.random.random() < 0.3:
            node["communicator"] = self.random.choice(("tp", "dp"))
        posted = self.random.random() < 0.4
        self.requests += posted
        for place, rank in enumerate(ranks):
            call = {**node, **(fields[place] if fields else {}), "group": ranks}
            if posted:
                call["request"] = f"c{self.requests}"
            self.programs[rank].append(call)
            if posted:
                self.programs[rank].append({"op": "wait", "request": call["request"]})

    def message(self, source: int, target: int, sent: str, received: str) -> tuple[Json, Json]:
        self.requests += 1
        name = f"m{self.requests}"
        return (
            {"op": "isend", "peer": target, "block": sent, "request": name},
            {"op": "irecv", "peer": source, "block": received, "request": name},
        )


def phased(random: Random) -> Json:
    """A step over rows: a statistic, a product with it, its gradient, and blocks on their way."""
    step = Step.of(random)
    parts = (_residual, _halves, _gradient, _moved, _host)
    fields = _made(step, [part for part in parts if random.random() < 0.5])
    for key, chance in (("initial", 0.1), ("final", 0.1), ("grid", 0.1)):
        if random.random() < chance:
            del fields[key]
    return fields


def everything(random: Random) -> Json:
    """A step with all parts."""
    return _made(Step.of(random), [_residual, _halves, _gradient, _moved, _host])


def _made(step: Step, parts: list[Callable[[Step], None]]) -> Json:
    step.tensor("x")
    for rank in range(step.ranks):
        step.initial[rank] += [f"x[{m},{k}]" for m in step.mine(rank) for k in range(step.columns)]
    for part in (_statistic, _forward, *parts):
        part(step)
    return {
        "format": "primepar-program", "version": 1, "ranks": step.ranks, "grid": step.grid,
        "phases": step.phases, "tensors": step.tensors, "initial": step.initial,
        "final": step.final, "programs": step.programs,
    }  # fmt: skip


def _statistic(step: Step) -> None:
    reduction = step.random.choice(("sum", "sum", "max"))
    step.phase("stat", step.shape, ["x[M,K]"], "stat[M]", reduction=reduction)
    for rank in range(step.ranks):
        for m in step.mine(rank):
            for k in range(step.columns):
                step.compute(rank, "stat", [f"x[{m},{k}]"], f"stat[{m}]", M=m, K=k)
            if step.random.random() < 0.5:
                step.final[rank].append(f"stat[{m}]")


def _forward(step: Step) -> None:
    step.tensor("y")
    step.phase("scale", step.shape, ["x[M,K]", "stat[M]", "w[K]"], "y[M,K]")
    for rank in range(step.ranks):
        step.initial[rank] += [f"w[{k}]" for k in range(step.columns)]
        for m in step.mine(rank):
            for k in range(step.columns):
                reads = [f"x[{m},{k}]", f"stat[{m}]", f"w[{k}]"]
                step.compute(rank, "scale", reads, f"y[{m},{k}]", M=m, K=k)
                step.final[rank].append(f"y[{m},{k}]")


def _residual(step: Step) -> None:
    step.tensor("z")
    step.phase("add", step.shape, ["x[M,K]", "y[M,K]"], "z[M,K]")
    for rank in range(step.ranks):
        for m in step.mine(rank):
            for k in range(step.columns):
                step.compute(rank, "add", [f"x[{m},{k}]", f"y[{m},{k}]"], f"z[{m},{k}]", M=m, K=k)
                step.final[rank].append(f"z[{m},{k}]")


def _halves(step: Step) -> None:
    """Pairs of rows make one block; with one row for each rank, pairs of ranks do."""
    if step.shape["M"] % 2:
        return
    step.phase("pair", step.shape, ["x[M,K]"], "pair[M/2,K]")
    for rank in range(step.ranks):
        for m in step.mine(rank):
            for k in range(step.columns):
                step.compute(rank, "pair", [f"x[{m},{k}]"], f"pair[{m // 2},{k}]", M=m, K=k)
    if step.rows == 1:
        for pair in range(step.ranks // 2):
            ranks = [2 * pair, 2 * pair + 1]
            for k in range(step.columns):
                step.together({"op": "all_reduce", "block": f"pair[{pair},{k}]"}, ranks)
    for rank in range(step.ranks):
        halves = sorted({m // 2 for m in step.mine(rank)})
        step.final[rank] += [f"pair[{m},{k}]" for m in halves for k in range(step.columns)]


def _gradient(step: Step) -> None:
    """Summed over all ranks, by one all-reduce or in pieces; then everyone updates its copy."""
    width = 2 * step.ranks
    if step.random.random() < 0.6:
        step.tensors["g"] = {"cuts": [[number * width for number in range(step.columns + 1)]]}
        pieces = step.columns * step.ranks
        step.tensors["g.pieces"] = {
            "of": "g",
            "cuts": [[number * 2 for number in range(pieces + 1)]],
        }
    step.phase("gradient", step.shape, ["x[M,K]", "y[M,K]"], "g[K]")
    step.phase("update", {"K": step.columns, "R": step.ranks}, ["w[K]", "g[K]"], "new[K]")
    for rank in range(step.ranks):
        for m in step.mine(rank):
            for k in range(step.columns):
                reads = [f"x[{m},{k}]", f"y[{m},{k}]"]
                step.compute(rank, "gradient", reads, f"g[{k}]", M=m, K=k)
    for k in range(step.columns):
        _summed(step, k)
    for rank in range(step.ranks):
        for k in range(step.columns):
            step.compute(rank, "update", [f"w[{k}]", f"g[{k}]"], f"new[{k}]", K=k, R=rank)
            step.final[rank].append(f"new[{k}]")


def _summed(step: Step, k: int) -> None:
    ranks = list(range(step.ranks))
    block = f"g[{k}]"
    if "g.pieces" in step.tensors and step.random.random() < 0.7:
        pieces = [f"g.pieces[{k * step.ranks + place}]" for place in ranks]
        # Without another draw, so that all else is generated as it is without the flag.
        place = {"in_place": True} if sum(map(len, step.programs)) % 2 else {}
        for rank in ranks:
            step.programs[rank].append({"op": "cut", "block": block, "blocks": pieces, **place})
        fields = [{"block": pieces[rank]} for rank in ranks]
        step.together({"op": "reduce_scatter", "blocks": pieces}, ranks, fields)
        step.together({"op": "all_gather", "blocks": pieces}, ranks, fields)
        for rank in ranks:
            step.programs[rank].append({"op": "join", "blocks": pieces, "block": block, **place})
    elif step.random.random() < 0.4:
        root = step.random.choice(ranks)
        step.together({"op": "reduce", "block": block, "root": root}, ranks)
        step.together({"op": "broadcast", "block": block, "root": root}, ranks)
    else:
        step.together({"op": "all_reduce", "block": block}, ranks)


def _moved(step: Step) -> None:
    """From rows to columns: every rank cuts what it has, sends the pieces, and joins its own."""
    if "y" not in step.tensors or step.columns > 1 or step.rows > 1:
        return
    ranks = range(step.ranks)
    width = 6 // step.ranks
    fine = [number * width for number in range(step.ranks + 1)]
    step.tensors["y.pieces"] = {"of": "y", "cuts": [step.lines("M"), fine]}
    step.tensors["y.columns"] = {"of": "y", "cuts": [[0, 4 * step.ranks], fine]}
    for rank in ranks:
        pieces = [f"y.pieces[{rank},{k}]" for k in ranks]
        step.programs[rank].append({"op": "cut", "block": f"y[{rank},0]", "blocks": pieces})
    if step.random.random() < 0.4:
        fields = [
            {"blocks": [f"y.pieces[{rank},{k}]" for k in ranks],
             "into": [f"y.pieces[{m},{rank}]" for m in ranks]}
            for rank in ranks
        ]  # fmt: skip
        step.together({"op": "all_to_all"}, list(ranks), fields)
    else:
        _exchange(step)
    for rank in ranks:
        pieces = [f"y.pieces[{m},{rank}]" for m in ranks]
        step.programs[rank].append(
            {"op": "join", "blocks": pieces, "block": f"y.columns[0,{rank}]", "in_place": True}
        )
        step.final[rank].append(f"y.columns[0,{rank}]")


def _exchange(step: Step) -> None:
    posts: list[list[Json]] = [[] for _ in range(step.ranks)]
    for source in range(step.ranks):
        for target in range(step.ranks):
            if source != target:
                piece = f"y.pieces[{source},{target}]"
                sent, received = step.message(source, target, piece, piece)
                posts[source].append(sent)
                posts[target].append(received)
    for rank, rank_posts in enumerate(posts):
        waits = [{"op": "wait", "request": post["request"]} for post in rank_posts]
        step.programs[rank] += [*rank_posts, *waits]


def _host(step: Step) -> None:
    """A block is in host memory for a while."""
    rank = step.random.randrange(step.ranks)
    block = step.random.choice(step.initial[rank])
    place = step.random.randint(0, len(step.programs[rank]))
    users = [
        position
        for position, node in enumerate(step.programs[rank])
        if block in node.get("reads", ())
    ]
    later = [position for position in users if position >= place]
    back = step.random.randint(place, min(later, default=len(step.programs[rank])))
    step.programs[rank].insert(back, {"op": "fetch", "block": block})
    step.programs[rank].insert(place, {"op": "evict", "block": block})
