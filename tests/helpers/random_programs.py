"""Random small programs with every way to communicate, right and wrong ones alike."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec.structs import replace

from primepar.schedule import Program
from primepar.schedule.program import (
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
    Scatter,
    Send,
    Wait,
)

Lists = list[list[Instruction]]


class ProgramMaker:
    """Draws a program: first one that could run, then some changes that may make it wrong."""

    def __init__(self, seed: int, ranks: int = 3) -> None:
        self.random, self.ranks = Random(seed), ranks
        self.lists: Lists = [[] for _ in range(ranks)]
        self.names = 0

    def program(self, steps: int = 4, changes: int = 2) -> Program:
        """Return the program."""
        for _ in range(self.random.randint(1, steps)):
            self.random.choice([self._message, self._message, self._call])()
        for _ in range(self.random.randint(0, changes)):
            self._change()
        lists = tuple(tuple(line) for line in self.lists)
        return Program("primepar-program", 1, self.ranks, lists)

    def _name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def _claims(self) -> dict[str, Any]:
        return {"count": 4, "dtype": "f4"} if self.random.random() < 0.3 else {}

    def _message(self) -> None:
        source, target = self.random.sample(range(self.ranks), 2)
        tag = self.random.randrange(2)
        comm = self.random.choice(["world", "world", "rows"])
        claims = {**self._claims(), "communicator": comm, "tag": tag}
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
                Group((Recv(source, other, **claims), Send(source, other + "'", tag=tag)))
            )
        elif form == 1:
            request = self._name("q")
            self.lists[source] += [ISend(target, send, request=request, **claims)]
            self.lists[source] += [Wait(request)]
            self.lists[target].append(Recv(source, receive, **claims))
        elif form == 2:
            request = self._name("q")
            self.lists[target] += [IRecv(source, receive, request=request, **claims)]
            self.lists[source].append(Send(target, send, **claims))
            self.lists[target] += [Wait(request)]
        else:
            self.lists[source].append(Send(target, send, **claims))
            self.lists[target].append(Recv(source, receive, **claims))

    def _call(self) -> None:
        size = self.random.randint(2, self.ranks)
        group = tuple(sorted(self.random.sample(range(self.ranks), size)))
        root = self.random.choice(group)
        name = self._name("c")
        many = tuple(f"{name}.{index}" for index in group)
        kind = self.random.randrange(9)
        request = self._name("q") if self.random.random() < 0.3 else None
        for rank in group:
            node: Any = [
                AllReduce(group, block=name, **self._claims()),
                Reduce(group, block=name, root=root),
                Broadcast(group, block=name, root=root),
                AllGather(group, block=name, blocks=many, **self._claims()),
                ReduceScatter(group, blocks=many, block=name),
                AllToAll(group, blocks=many, into=tuple(f"{name}>{index}" for index in group)),
                Gather(group, block=name, root=root, blocks=many if rank == root else ()),
                Scatter(group, block=name, root=root, blocks=many if rank == root else ()),
                Barrier(group),
            ][kind]  # fmt: skip
            changed: Any = replace(node, request=request)
            self.lists[rank].append(changed)
            self.lists[rank] += [Wait(request)] if request else []

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
        elif kind == 3 and hasattr(changed, "count"):
            line[first] = replace(changed, count=5)
