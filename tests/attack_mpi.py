"""Compares captures of mpi4py scripts with proofs: `python tests/attack_mpi.py 300`.

Draws programs under the rules of MPI, writes each as a script, runs it on the stand-in,
and compares the verdict with that of the program itself. Prints how many there were of each.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from random_programs import ProgramMaker

from primepar.preflight.mpi.capture import preflight_mpi
from primepar.schedule import Program
from primepar.schedule.program import (
    ANY,
    Barrier,
    Group,
    Instruction,
    IRecv,
    ISend,
    Message,
    Recv,
    Send,
    Wait,
    messages_of,
)
from primepar.verify import verify_program

_SENDS = {"standard": "send", "buffered": "bsend", "synchronous": "ssend"}


def line(node: Instruction) -> str | None:
    """A line of Python that makes the call of an instruction; None for one that has none."""
    if isinstance(node, Wait):
        return f"requests.pop({node.request!r}).wait()"
    if isinstance(node, Barrier):
        return "comm.barrier()" if len(node.group) == 3 and node.request is None else None
    if isinstance(node, Group | Message):
        if any(message.communicator != "world" for message in messages_of(node)):
            return None
        return _group(node) if isinstance(node, Group) else _message(node)
    return None


def _message(node: Message) -> str:
    if isinstance(node, Send | ISend):
        posted = "i" * isinstance(node, ISend)
        call = f"comm.{posted}{_SENDS[node.mode]}(0, {node.peer}, {node.tag})"
    else:
        posted = "i" * isinstance(node, IRecv)
        source = "MPI.ANY_SOURCE" if node.peer == ANY else node.peer
        tag = "MPI.ANY_TAG" if node.tag == ANY else node.tag
        call = f"comm.{posted}recv(source={source}, tag={tag})"
    if isinstance(node, ISend | IRecv):
        return f"requests[{node.request!r}] = {call}"
    return call


def _group(node: Group) -> str | None:
    sends = [message for message in node.body if isinstance(message, Send)]
    receives = [message for message in node.body if isinstance(message, Recv)]
    if len(sends) != 1 or len(receives) != 1 or node.request is not None:
        return None
    (send,), (receive,) = sends, receives
    return (
        f"comm.sendrecv(0, {send.peer}, {send.tag}, source={receive.peer}, recvtag={receive.tag})"
    )


def script(program: Program) -> str | None:
    """The script of a program; None where some instruction has no line."""
    lines = ["from mpi4py import MPI", "comm, requests = MPI.COMM_WORLD, {}"]
    for rank, nodes in enumerate(program.programs):
        lines.append(f"if comm.rank == {rank}:\n    pass")
        for node in nodes:
            text = line(node)
            if text is None:
                return None
            lines.append(f"    {text}")
    return "\n".join(lines)


def main(count: int) -> None:
    """Attack with programs until `count` of them have a script."""
    counts: Counter[str] = Counter()
    seed = 0
    with TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        while sum(counts.values()) < count:
            seed += 1
            program = ProgramMaker(seed, open_receives=True).without_claims().program(steps=5)
            text = script(program)
            if text is None or not any(program.programs) or "KeyError" in _lost(program):
                continue
            path.write_text(text)
            proved = verify_program(program, only="deadlock-freedom")["deadlock-freedom"].verdict
            captured = preflight_mpi(path, (), 3, limit=20, timeout=20)[1]
            verdict = captured["deadlock-freedom"].verdict
            counts[f"{proved}, captured: {verdict}"] += 1
            if proved != verdict:
                print(f"seed {seed}: {proved}, captured: {verdict}\n{text}")
    for text, number in sorted(counts.items()):
        print(f"{number:7} {text}")


def _lost(program: Program) -> str:
    """`KeyError` where a script would wait for a request that it has not posted."""
    for nodes in program.programs:
        known = set[str]()
        for node in nodes:
            if isinstance(node, ISend | IRecv):
                known.add(node.request)
            elif isinstance(node, Wait) and node.request not in known:
                return "KeyError"
    return ""


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
