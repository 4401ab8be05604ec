"""Random small programs with every way to communicate, right and wrong ones alike."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec.structs import replace

from primepar.schedule import Program
from primepar.schedule.program import (
    ANY,
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Gather,
    Group,
    Instruction,
    IRecv,
    ISend,
    Recv,
    Reduce,
    ReduceScatter,
    Scan,
    Scatter,
    Send,
    SplitCommunicator,
    Wait,
)

Lists = list[list[Instruction]]
MODES = ("standard", "buffered", "synchronous")


class ProgramMaker:
    """Draws a program: first one that could run, then some changes that may make it wrong."""

    def __init__(self, seed: int, ranks: int = 3, open_receives: bool = False) -> None:
        self.random, self.ranks = Random(seed), ranks
        self.rules = "mpi" if open_receives or self.random.random() < 0.5 else None
        self.open_receives = open_receives
        self.lists: Lists = [[] for _ in range(ranks)]
        self.names = 0
        self.made: list[str] = []
        self.claimed = 0.3
        """How often a message states its count and type."""

    def program(self, steps: int = 4, changes: int = 2) -> Program:
        """Return the program."""
        for _ in range(self.random.randint(1, steps)):
            self.random.choice([self._message, self._message, self._call, self._split])()
        for _ in range(self.random.randint(0, changes)):
            self._change()
        rules: Any = self.rules
        lists = tuple(tuple(line) for line in self.lists)
        return Program("primepar-program", 1, self.ranks, lists, rules=rules)

    def without_claims(self) -> ProgramMaker:
        """Return this maker, which then states no counts and no types of data."""
        self.claimed = 0.0
        return self

    def _name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def _claims(self) -> dict[str, Any]:
        return {"count": 4, "dtype": "f4"} if self.random.random() < self.claimed else {}

    def _message(self) -> None:
        source, target = self.random.sample(range(self.ranks), 2)
        tag = self.random.randrange(2)
        comm = self.random.choice(["world", "world", *self.made[:1]])
        claims = {**self._claims(), "communicator": comm, "tag": tag}
        modes = (*MODES, "standard", "standard") if self.open_receives else (*MODES, "ready")
        mode: Any = self.random.choice(modes)
        peer, opened = source, dict(claims)
        if self.open_receives and self.random.random() < 0.7:
            peer = ANY
        if self.rules and self.random.random() < 0.2:
            opened["tag"] = ANY
        send, receive = self._name("s"), self._name("r")
        form = self.random.randrange(4)
        posted = self.random.random() < 0.3
        if form == 0:
            request = self._name("g") if posted else None
            body = (Send(target, send, **claims), Recv(target, receive, tag=tag))
            self.lists[source].append(Group(body, request=request))
            self.lists[source] += [Wait(request)] if request else []
            other = self._name("b")
            self.lists[target].append(
                Group((Recv(peer, other, **opened), Send(source, other + "'", tag=tag)))
            )
        elif form == 1:
            request = self._name("q")
            self.lists[source] += [ISend(target, send, request=request, mode=mode, **claims)]
            self.lists[source] += [Wait(request)]
            self.lists[target].append(Recv(peer, receive, **opened))
        elif form == 2:
            request = self._name("q")
            self.lists[target] += [IRecv(peer, receive, request=request, **opened)]
            self.lists[source].append(Send(target, send, mode=mode, **claims))
            self.lists[target] += [Wait(request)]
        else:
            self.lists[source].append(Send(target, send, mode=mode, **claims))
            self.lists[target].append(Recv(peer, receive, **opened))

    def _call(self) -> None:
        size = self.random.randint(2, self.ranks)
        group = tuple(sorted(self.random.sample(range(self.ranks), size)))
        root = self.random.choice(group)
        name = self._name("c")
        many = tuple(f"{name}.{index}" for index in group)
        kind = self.random.randrange(10)
        request = self._name("q") if self.random.random() < 0.3 else None
        counts = tuple(range(1, size + 1)) if self.random.random() < 0.3 else None
        for rank in group:
            own = None if counts is None else counts[group.index(rank)]
            node: Any = [
                AllReduce(group, block=name, **self._claims()),
                Reduce(group, block=name, root=root),
                Broadcast(group, block=name, root=root),
                AllGather(group, block=name, blocks=many, counts=counts),
                ReduceScatter(group, blocks=many, block=name),
                AllToAll(group, blocks=many, into=tuple(f"{name}>{index}" for index in group)),
                Gather(group, block=name, root=root, blocks=many if rank == root else (),
                       counts=counts if rank == root else None, count=own),
                Scatter(group, block=name, root=root, blocks=many if rank == root else ()),
                Scan(group, block=name, exclusive=bool(size % 2)),
                Barrier(group),
            ][kind]  # fmt: skip
            changed: Any = replace(node, request=request)
            self.lists[rank].append(changed)
            self.lists[rank] += [Wait(request)] if request else []

    def _split(self) -> None:
        group, name = tuple(range(self.ranks)), self._name("m")
        without = self.random.randrange(self.ranks + 2)
        for rank in group:
            self.lists[rank].append(
                SplitCommunicator(group, into=None if rank == without else name)
            )
        self.made.insert(0, name)
        members = tuple(rank for rank in group if rank != without)
        for rank in members if self.random.random() < 0.5 else ():
            self.lists[rank].append(Barrier(members, communicator=name))

    def _change(self) -> None:
        line = self.random.choice(self.lists)
        if len(line) < 2:
            return
        first = self.random.randrange(len(line) - 1)
        kind = self.random.randrange(4)
        changed: Any = line[first]
        if kind == 0:
            line[first], line[first + 1] = line[first + 1], line[first]
        elif kind == 1:
            del line[first]
        elif kind == 2 and hasattr(changed, "tag"):
            line[first] = replace(changed, tag=1)
        elif kind == 3 and self.claimed and hasattr(changed, "count"):
            line[first] = replace(changed, count=5)
