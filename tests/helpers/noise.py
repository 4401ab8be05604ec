"""Programs of any instructions in any order, mostly with partners."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

Json = dict[str, Any]

PLAIN = ("X", "Y", "I[0]", "I[1]")
PLACED = ("X", "y[0]", "y[1]", "y.whole[0]", "y.other[0]", "y.other[1]", "y.other[2]", "z[0]")
TENSORS = {
    "y": {"cuts": [[0, 2, 4]]},
    "y.whole": {"of": "y", "cuts": [[0, 4]]},
    "y.other": {"of": "y", "cuts": [[0, 1, 3, 4]]},
}
PHASES = {"f": {"reads": ["x[M]"], "writes": "y[M]"}, "g": {"reads": ["y[M]"], "writes": "z[N]"}}


@dataclass(frozen=True)
class Noise:
    """Where instructions go, and the names that they use."""

    random: Random
    programs: list[list[Json]]
    placed: bool

    def block(self) -> str:
        return self.random.choice(PLACED if self.placed else PLAIN)

    def post(self, rank: int, node: Json, request: str) -> None:
        """Post something, and wait for it a little later."""
        instructions = self.programs[rank]
        instructions.append({**node, "request": request})
        late = self.random.randint(len(instructions), len(instructions) + 2)
        instructions.insert(late, {"op": "wait", "request": request})

    def on(self) -> Json:
        """A communicator, mostly the usual one."""
        return {"communicator": "other"} if self.random.random() < 0.15 else {}

    def message(self, number: str) -> None:
        source, target = self.random.sample(range(len(self.programs)), 2)
        where = self.on()
        for rank, peer, op in ((source, target, "send"), (target, source, "recv")):
            node = {"op": op, "peer": peer, "block": self.block(), **where}
            if self.random.random() < 0.6:
                self.post(rank, {**node, "op": f"i{op}"}, number)
            else:
                self.programs[rank].append(node)

    def exchange(self, number: str) -> None:
        one, other = self.random.sample(range(len(self.programs)), 2)
        for rank, peer in ((one, other), (other, one)):
            body = [
                {"op": "send", "peer": peer, "block": self.block()},
                {"op": "recv", "peer": peer, "block": self.block()},
            ]
            self.programs[rank].append({"op": "group", "body": body})

    def collective(self, number: str) -> None:
        random, ranks = self.random, range(len(self.programs))
        group = random.sample(ranks, random.randint(1, len(ranks)))
        op = random.choice(
            ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all",
             "barrier")
        )  # fmt: skip
        node: Json = {"op": op, "group": group, **self.on()}
        if op in ("reduce", "broadcast"):
            node["root"] = random.choice(group)
        if op in ("all_reduce", "reduce", "reduce_scatter"):
            node["reduction"] = random.choice(("sum", "sum", "max"))
        posted = random.random() < 0.4
        more = sum(map(len, self.programs)) % 3 if op == "all_reduce" else 0
        for rank in group:
            call = dict(node)
            if op not in ("barrier", "all_to_all"):
                call["block"] = self.block()
            if more:
                call["also"] = self.after(call["block"], more)
            if op in ("all_gather", "reduce_scatter", "all_to_all"):
                call["blocks"] = [self.block() for _ in group]
            if op == "all_to_all":
                call["into"] = [self.block() for _ in group]
            if posted:
                self.post(rank, call, number)
            else:
                self.programs[rank].append(call)

    def after(self, block: str, count: int) -> list[str]:
        """Other blocks of one call; without another draw, so that the rest stays as it is."""
        names = PLACED if self.placed else PLAIN
        first = names.index(block) + 1
        return [*names, *names][first : first + count]

    def local(self, number: str) -> None:
        ops = ("compute", "alloc", "free", "evict", "fetch") + ("cut", "join", "f", "g") * 2
        op = self.random.choice(ops if self.placed else ops[:5])
        node: Json = {"op": op, "block": self.block()}
        if op == "compute":
            node = {"op": op, "reads": [self.block()], "accumulates": self.block()}
        elif op in PHASES:
            slices = {"M": self.random.randint(0, 1), "N": 0}
            reads = [self.block()] if op == "g" else [f"x[{slices['M']}]"]
            node = {"op": "compute", "phase": op, "sub_operator": slices, "reads": reads,
                    "accumulates": self.block()}  # fmt: skip
        elif op in ("cut", "join"):
            # Without another draw, so that all else is generated as it is without the flag.
            in_place = {"in_place": True} if sum(map(len, self.programs)) % 2 else {}
            node = {"op": op, **self.random.choice(PARTS), **in_place}
        self.random.choice(self.programs).append(node)


PARTS: tuple[Json, ...] = (
    {"block": "y.whole[0]", "blocks": ["y[0]", "y[1]"]},
    {"block": "y.whole[0]", "blocks": ["y.other[0]", "y.other[1]", "y.other[2]"]},
    {"block": "y.whole[0]", "blocks": ["y[0]", "y.other[1]"]},
    {"block": "y.whole[0]", "blocks": ["y[0]", "y[1]", "X"]},
    {"block": "y[0]", "blocks": ["y[1]"]},
    {"block": "z[0]", "blocks": ["z[0]"]},
    {"block": "y.other[1]", "blocks": ["y[0]"]},
)


def noise(random: Random) -> Json:
    """Messages, collectives and local instructions of two or three ranks."""
    ranks, placed = random.choice((2, 3)), random.random() < 0.5
    made = Noise(random, [[] for _ in range(ranks)], placed)
    for number in range(random.randint(1, 6)):
        kinds = (made.message, made.message, made.exchange, made.collective, made.local)
        random.choice((*kinds, made.local) if placed else kinds)(str(number))
    fields: Json = {
        "format": "primepar-program", "version": 1, "ranks": ranks, "programs": made.programs
    }  # fmt: skip
    names = PLACED if placed else ("X", "Y", "I[0]")
    if placed:
        fields |= {"tensors": TENSORS, "phases": PHASES}
        if random.random() < 0.3:
            fields["grid"] = {"f": {"M": 2, "N": 1}, "g": {"M": 2, "N": 1}}
    if random.random() < 0.3:
        fields["initial"] = [[*names, "x[0]", "x[1]"][: 8 if placed else 3]] * ranks
    if random.random() < 0.3:
        fields["final"] = [[random.choice(names)] for _ in range(ranks)]
    return fields
