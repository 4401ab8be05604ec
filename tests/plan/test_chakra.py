"""Chakra traces, decoded by a parser of the tests: the work and the order of a program."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from command import run

from primepar.models import load_config
from primepar.operators import lower_step
from primepar.partition.registry import parse_sequence
from primepar.plan import preset_plan
from primepar.plan.cluster import load_cluster
from primepar.plan.simulator.chakra import COLLECTIVE, COMPUTE, RECEIVE, SEND, chakra_trace
from primepar.plan.simulator.run import Simulation, simulate
from primepar.schedule import Linear, Program, lower
from primepar.schedule.program import Compute, Instruction, IRecv, ISend, Wait

CONFIG = Path(__file__).resolve().parents[2] / "docs" / "examples" / "config.json"
H200 = load_cluster("h200-8")


class TraceNode(NamedTuple):
    number: int
    name: str
    kind: int
    before: tuple[int, ...]
    attributes: dict[str, int | str]


def varints(data: bytes) -> list[int]:
    values, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(value)
            value = shift = 0
    assert shift == 0
    return values


def fields(message: bytes) -> list[tuple[int, int | bytes]]:
    """Fields of a protobuf message: numbers, and what has a length."""
    decoded: list[tuple[int, int | bytes]] = []
    while message:
        key, message = first(message)
        value, message = first(message)
        if key & 7:
            assert key & 7 == 2
            decoded.append((key >> 3, message[:value]))
            message = message[value:]
        else:
            decoded.append((key >> 3, value))
    return decoded


def first(message: bytes) -> tuple[int, bytes]:
    end = next(place for place, byte in enumerate(message) if byte < 128) + 1
    return varints(message[:end])[0], message[end:]


def nodes(trace: bytes) -> list[TraceNode]:
    messages = []
    while trace:
        size, trace = first(trace)
        messages.append(fields(trace[:size]))
        trace = trace[size:]
    assert messages[0] == [(1, b"0.0.4")]
    decoded = []
    for message in messages[1:]:
        (one, number), (two, name), (three, kind), (four, before), *rest = message
        assert (one, two, three, four) == (1, 2, 3, 4)
        assert isinstance(number, int)
        assert isinstance(kind, int)
        assert isinstance(name, bytes)
        assert isinstance(before, bytes)
        attributes = {}
        for field, encoded in rest:
            assert field == 10
            assert isinstance(encoded, bytes)
            (_, key), (_, value) = fields(encoded)
            assert isinstance(key, bytes)
            attributes[key.decode()] = value.decode() if isinstance(value, bytes) else value
        decoded.append(TraceNode(number, name.decode(), kind, tuple(varints(before)), attributes))
    return decoded


def simulated(name: str) -> Simulation:
    program = lower(parse_sequence("P2x2"), Linear(M=64, N=64, K=64))
    if name == "a step":
        plan = preset_plan("M2,megatron-sp", load_config(CONFIG), 4)
        program = lower_step(plan, 4, 32)
    return simulate(program, H200, "bfloat16")


@pytest.mark.parametrize("name", ["P2x2", "a step"])
def test_a_trace_has_the_work_of_its_rank(name: str) -> None:
    done = simulated(name)
    for rank, operations in enumerate(done.operations):
        trace = nodes(chakra_trace(done.work, rank))
        assert [node.number for node in trace] == list(range(len(trace)))
        assert sum(int(node.attributes.get("num_ops", 0)) for node in trace) == operations
        assert all(place < node.number for node in trace for place in node.before)
        ends = {SEND: "comm_src", RECEIVE: "comm_dst"}
        assert all(node.attributes[ends[node.kind]] == rank for node in trace if node.kind in ends)
        members = [str(node.attributes["pg_name"]).split() for node in trace
                   if node.kind == COLLECTIVE]  # fmt: skip
        assert all(str(rank) in group for group in members)
        sent = sum(int(node.attributes["comm_size"]) for node in trace if node.kind == SEND)
        assert sent == done.sent[rank] or members


def test_every_message_is_in_the_traces_of_both_ends() -> None:
    done = simulated("P2x2")
    ends: dict[int, list[tuple[object, ...]]] = {SEND: [], RECEIVE: []}
    for rank in range(4):
        for node in nodes(chakra_trace(done.work, rank)):
            if node.kind in ends:
                keys = ("comm_src", "comm_dst", "comm_size", "comm_tag")
                ends[node.kind].append(tuple(node.attributes[key] for key in keys))
    assert sorted(map(str, ends[SEND])) == sorted(map(str, ends[RECEIVE])) != []


def test_what_is_posted_runs_with_the_next_instruction_until_it_is_awaited() -> None:
    compute = Compute(("I[0,0]", "W[0,0]"), "O[0,0]", "forward", {"M": 0, "N": 0, "K": 0})
    rows: list[tuple[Instruction, ...]] = [
        (ISend(peer=1, block="I[0,0]", request="a"), compute, Wait("a"), compute),
        (IRecv(peer=0, block="I[0,0]", request="a"), Wait("a"), compute, compute),
    ]
    program = Program(
        format="primepar-program", version=1, ranks=2, programs=tuple(rows),
        shape={"M": 4, "N": 4, "K": 4}, grid={"forward": {"M": 1, "N": 1, "K": 1}},
        initial=(("I[0,0]", "W[0,0]"), ("W[0,0]",)),
    )  # fmt: skip
    work = simulate(program, H200, "float32").work
    first_rank, second = (nodes(chakra_trace(work, rank)) for rank in range(2))
    assert [(node.kind, sorted(node.before)) for node in first_rank] == [
        (SEND, []), (COMPUTE, []), (COMPUTE, [0, 1]),
    ]  # fmt: skip
    assert [(node.kind, sorted(node.before)) for node in second] == [
        (RECEIVE, []), (COMPUTE, [0]), (COMPUTE, [1]),
    ]  # fmt: skip


def test_the_command_writes_a_file_for_each_rank(tmp_path: Path) -> None:
    line = ("simulate", "megatron", "--model", str(CONFIG), "--devices", "2", "--cluster", "h200-8")
    done = run(*line, "-o", f"{tmp_path}/t.et")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(f"wrote {tmp_path}/t.0.et\nwrote {tmp_path}/t.1.et\n")
    assert all(nodes((tmp_path / f"t.{rank}.et").read_bytes()) for rank in range(2))
    refused = run(*line, "-o", "t.trace")
    assert (refused.code, refused.err) == (2,
        "primepar: error: --output: expected a name that ends with .svg (the picture), .json (the "
        "trace), .txt (the text) or .et (a Chakra trace for each rank), got t.trace\n")  # fmt: skip
