"""Right programs, drawn from a seed, on which every pass has something to do.

A program has some parts, each with tensors of its own: a product of a gathered operand, whole or in
slices; a product whose result is reduced; a sum of which each rank uses a part; small sums that are
used later; a block that goes round. The steps of all parts are interleaved, alike on every rank, so
no rank waits for another in a circle. Blocks that are not needed any more are freed at some place
after their last use, or stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from primepar.passes.block_uses import Rank, RankList
from primepar.schedule import Program
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    Compute,
    Cut,
    Free,
    Instruction,
    IRecv,
    ISend,
    Join,
    ReduceScatter,
    Wait,
)
from primepar.schedule.signature import Signature, Tensor

Nodes = Sequence[Instruction]


def drawn(seed: int) -> Program:
    """Return the program of a seed."""
    return _Maker(Random(seed)).program()


class _Maker:
    def __init__(self, random: Random) -> None:
        self.random, self.ranks = random, random.choice((2, 2, 2, 3, 4))
        self.group = tuple(range(self.ranks))
        self.tensors: dict[str, Tensor] = {}
        self.phases: dict[str, Signature] = {}
        self.grid: dict[str, dict[str, int]] = {}
        self.initial: list[list[str]] = [[] for _ in self.group]
        self.final: list[list[str]] = [[] for _ in self.group]
        self.steps: list[list[Nodes]] = []
        """Of the part that is made: what each rank does at a step."""

    def program(self) -> Program:
        """Return the program."""
        kinds = (self._gathered, self._reduced, self._scattered, self._small_sums, self._ring)
        parts: list[list[list[Nodes]]] = []
        for number in range(self.random.choice((1, 1, 2, 3, 4))):
            self.steps = []
            self.random.choice(kinds)(str(number))
            parts.append(self.steps)
        lists: list[list[Instruction]] = [[] for _ in self.group]
        while parts := [steps for steps in parts if steps]:
            step = self.random.choice(parts).pop(0)
            for rank in self.group:
                lists[rank] += step[rank]
        freed = [self._freed(rank, nodes) for rank, nodes in enumerate(lists)]
        return Program(
            "primepar-program", 1, self.ranks, tuple(map(tuple, freed)), grid=self.grid,
            initial=tuple(map(tuple, self.initial)), final=tuple(map(tuple, self.final)),
            phases=self.phases, tensors=self.tensors,
        )  # fmt: skip

    def _freed(self, rank: int, nodes: list[Instruction]) -> list[Instruction]:
        last, after = dict.fromkeys(self.initial[rank], -1), dict[int, list[Instruction]]()
        gone = set[str]()
        for place, used in enumerate(RankList(nodes, Rank(rank)).uses):
            last |= dict.fromkeys(used.names, place)
            gone = (gone | set(used.gone)) - set(used.made)
        for name, place in last.items():
            if name not in (*gone, *self.final[rank]) and self.random.random() < 0.7:
                later = self.random.choice((place, self.random.randint(place, len(nodes) - 1)))
                after.setdefault(max(later, 0), []).append(Free(name))
        return [new for place, node in enumerate(nodes) for new in (node, *after.get(place, ()))]

    # Parts

    def _gathered(self, n: str) -> None:
        """y = x w, rows of x with each rank: gathered and joined, or multiplied slice by slice."""
        rows, whole = self._even(2), self.random.random() < 0.6
        self.tensors |= {f"x{n}": Tensor((rows, (0, 4))), f"w{n}": Tensor(((0, 4), self._even(3)))}
        self.tensors |= {f"y{n}": Tensor(((0, rows[-1]) if whole else rows, self._even(3)))}
        joined = f"x{n}.whole" if whole else f"x{n}"
        if whole:
            self.tensors[joined] = Tensor(((0, rows[-1]), (0, 4)), f"x{n}")
        slices = 1 if whole else self.ranks
        grid = {"M": slices, "N": 1, "K": self.ranks}
        self._phase(f"p{n}", grid, [f"{joined}[M,N]", f"w{n}[N,K]"], f"y{n}[M,K]")
        parts = tuple(f"x{n}[{m},0]" for m in self.group)
        self._gather(n, parts)
        for rank in self.group:
            self._given(rank, [parts[rank], f"w{n}[0,{rank}]"])
            self.final[rank] += [f"y{n}[{m},{rank}]" for m in range(slices)]
        if whole:
            self._all([Join(parts, f"{joined}[0,0]", in_place=True)])
        for m in range(slices):
            self._each(lambda rank, m=m: [
                Compute((f"{joined}[{m},0]", f"w{n}[0,{rank}]"), f"y{n}[{m},{rank}]", f"p{n}",
                        {"M": m, "N": 0, "K": rank})
            ])  # fmt: skip
        if whole:
            self._all([Cut(f"{joined}[0,0]", parts, in_place=True)])

    def _gather(self, n: str, parts: tuple[str, ...]) -> None:
        if self.ranks == 2 and self.random.random() < 0.5:
            self._each(lambda rank: [
                IRecv(1 - rank, parts[1 - rank], request=f"<{n}"),
                ISend(1 - rank, parts[rank], request=f">{n}"),
            ])  # fmt: skip
            self._all([Wait(f"<{n}"), Wait(f">{n}")])
            return
        self._call(n, lambda rank, name, request: AllGather(
            self.group, name, request, block=parts[rank], blocks=parts
        ))  # fmt: skip

    def _reduced(self, n: str) -> None:
        """y = x w, each rank with a slice of the summed dim; y is reduced, or scattered by rows."""
        rows, columns = self._even(2), self.random.choice((1, 2))
        self.tensors |= {
            f"x{n}": Tensor(((0, rows[-1]), self._even(3))),
            f"w{n}": Tensor((self._even(3), tuple(range(0, 4 * columns + 1, 4)))),
            f"y{n}": Tensor(((0, rows[-1]), tuple(range(0, 4 * columns + 1, 4)))),
        }
        grid = {"M": 1, "N": self.ranks, "K": columns}
        self._phase(f"p{n}", grid, [f"x{n}[M,N]", f"w{n}[N,K]"], f"y{n}[M,K]")
        for rank in self.group:
            self._given(rank, [f"x{n}[0,{rank}]", *(f"w{n}[{rank},{k}]" for k in range(columns))])
        scatters = self.random.random() < 0.5
        if scatters:
            self.tensors[f"y{n}.own"] = Tensor((rows, self.tensors[f"y{n}"].cuts[1]), f"y{n}")
        wholes = [f"y{n}[0,{k}]" for k in range(columns)]
        products = [
            lambda rank, k=k, whole=whole: [
                Compute((f"x{n}[0,{rank}]", f"w{n}[{rank},{k}]"), whole, f"p{n}",
                        {"M": 0, "N": rank, "K": k})
            ]
            for k, whole in enumerate(wholes)
        ]  # fmt: skip
        is_late = self.random.random() < 0.5
        for make in products if is_late else ():
            self._each(make)
        for k, whole in enumerate(wholes):
            parts = tuple(f"y{n}.own[{m},{k}]" for m in self.group)
            if not is_late:
                self._each(products[k])
            if scatters:
                self._all([Cut(whole, parts, in_place=True)])
                self._call(f"{n}.{k}", lambda rank, name, request, parts=parts: ReduceScatter(
                    self.group, name, request, blocks=parts, block=parts[rank]
                ))  # fmt: skip
            else:
                self._call(f"{n}.{k}", lambda rank, name, request, whole=whole: AllReduce(
                    self.group, name, request, block=whole
                ))  # fmt: skip
            for rank in self.group:
                self.final[rank].append(parts[rank] if scatters else whole)

    def _scattered(self, n: str) -> None:
        """A sum or maximum g of all ranks, of which each then uses a part, as an optimizer does."""
        line = self.random.choice((self._even(2), (0, *self._even(3)[1:-1], 3 * self.ranks + 1)))
        self.tensors |= {f"x{n}": Tensor((self._even(1), (0, line[-1]))), f"u{n}": Tensor((line,))}
        self.tensors |= {f"g{n}": Tensor(((0, line[-1]),)), f"g{n}.own": Tensor((line,), f"g{n}")}
        self.tensors[f"v{n}"] = Tensor((line,))
        reduction: Any = self.random.choice(("sum", "max"))
        self._phase(f"p{n}", {"R": self.ranks}, [f"x{n}[R,0]"], f"g{n}[0]", reduction=reduction)
        self._phase(f"q{n}", {"U": self.ranks}, [f"g{n}.own[U]", f"u{n}[U]"], f"v{n}[U]")
        whole, parts = f"g{n}[0]", tuple(f"g{n}.own[{part}]" for part in self.group)
        for rank in self.group:
            self._given(rank, [f"x{n}[{rank},0]", f"u{n}[{rank}]"])
            self.final[rank].append(f"v{n}[{rank}]")
        self._each(lambda rank: [Compute((f"x{n}[{rank},0]",), whole, f"p{n}", {"R": rank})])
        self._call(n, lambda rank, name, request: AllReduce(
            self.group, name, request, block=whole, reduction=reduction
        ))  # fmt: skip
        self._all([Cut(whole, parts, in_place=self.random.random() < 0.7)])
        self._each(lambda rank: [
            Compute((parts[rank], f"u{n}[{rank}]"), f"v{n}[{rank}]", f"q{n}", {"U": rank})
        ])  # fmt: skip

    def _small_sums(self, n: str) -> None:
        """Some sums of few elements; one phase uses all of them."""
        names = [f"s{n}.{place}" for place in range(self.random.randint(2, 4))]
        for size, name in enumerate(names, 1):
            self.tensors |= {f"a{name}": Tensor((self._even(1),)), name: Tensor(((0, size),))}
            self._phase(f"p{name}", {"R": self.ranks}, [f"a{name}[R]"], f"{name}[0]")
            for rank in self.group:
                self._given(rank, [f"a{name}[{rank}]"])
            self._each(lambda rank, name=name: [
                Compute((f"a{name}[{rank}]",), f"{name}[0]", f"p{name}", {"R": rank})
            ])  # fmt: skip
            self._call(name, lambda rank, world, request, name=name: AllReduce(
                self.group, world, request, block=f"{name}[0]"
            ))  # fmt: skip
        sums = [f"{name}[0]" for name in names]
        self.tensors[f"t{n}"] = Tensor(((0, 2),))
        self._phase(f"q{n}", {"R": self.ranks}, sums, f"t{n}[0]")
        self._each(lambda rank: [Compute(tuple(sums), f"t{n}[0]", f"q{n}", {"R": rank})])
        for rank in self.group:
            self.final[rank].append(f"t{n}[0]")

    def _ring(self, n: str) -> None:
        """Every rank multiplies its block of x, and then those of the ranks after it."""
        self.tensors |= {
            f"x{n}": Tensor((self._even(2), (0, 4))),
            f"w{n}": Tensor(((0, 4), (0, 3))),
        }
        self.tensors[f"y{n}"] = Tensor((self._even(2), (0, 3)))
        grid = {"M": self.ranks, "N": 1, "K": 1, "R": self.ranks}
        self._phase(f"p{n}", grid, [f"x{n}[M,N]", f"w{n}[N,K]"], f"y{n}[M,K]", kernel=None)
        for rank in self.group:
            self._given(rank, [f"x{n}[{rank},0]", f"w{n}[0,0]"])
            self.final[rank] += [f"y{n}[{m},0]" for m in self.group]
        for step in range(self.ranks):
            block = {rank: f"x{n}[{(rank + step) % self.ranks},0]" for rank in self.group}
            posts = step < self.ranks - 1
            if posts:
                self._each(lambda rank, block=block, step=step: [
                    IRecv((rank + 1) % self.ranks, block[(rank + 1) % self.ranks],
                          request=f"<{n}.{step}"),
                    ISend((rank - 1) % self.ranks, block[rank], request=f">{n}.{step}"),
                ])  # fmt: skip
            self._each(lambda rank, block=block, step=step: [
                Compute((block[rank], f"w{n}[0,0]"), f"y{n}[{(rank + step) % self.ranks},0]",
                        f"p{n}", {"M": (rank + step) % self.ranks, "N": 0, "K": 0, "R": rank})
            ])  # fmt: skip
            if posts:
                self._all([Wait(f"<{n}.{step}"), Wait(f">{n}.{step}")])

    # What parts are made of

    def _even(self, width: int) -> tuple[int, ...]:
        """Cuts in as many slices as there are ranks."""
        return tuple(range(0, width * self.ranks + 1, width))

    def _phase(
        self, name: str, grid: dict[str, int], reads: list[str], writes: str, **more: Any
    ) -> None:
        kernel = "linear.forward" if len(reads) == 2 and "N" in grid else None
        self.phases[name] = Signature(tuple(reads), writes, **{"kernel": kernel, **more})
        self.grid[name] = grid

    def _given(self, rank: int, blocks: list[str]) -> None:
        self.initial[rank] += blocks

    def _each(self, make: Any) -> None:
        self.steps.append([make(rank) for rank in self.group])

    def _all(self, nodes: Nodes) -> None:
        self.steps += [[[node]] * self.ranks for node in nodes]

    def _call(self, name: str, make: Any) -> None:
        """A collective of all ranks, at once or posted, on one of two communicators."""
        world = self.random.choice(("world", "world", "other"))
        request = f"c{name}" if self.random.random() < 0.3 else None
        self._each(lambda rank: [make(rank, world, request)])
        if request is not None:
            self._all([Wait(request)])
