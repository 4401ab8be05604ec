"""Properties of a program: what is asked, what is proved, and what a report states."""

from __future__ import annotations

from importlib import import_module
from itertools import product
from typing import Any

import msgspec
import pytest

from primepar.partition import parse_sequence
from primepar.schedule import Layout, Program, lower, redistribution
from primepar.schedule.operators import PHASES
from primepar.verify.program import verify_program
from primepar.verify.report import PROPERTIES, PropertyResult, Report

SEQUENCES = ("", "B", "M", "N", "K", "N3", "P1x1", "P2x2", "P3x3", "P4x4", "K,P2x2", "P2x2,N",
             "B,N", "M,K", "P2x2,P2x2")  # fmt: skip

Json = dict[str, Any]


def program(*ranks: list[Json], **fields: object) -> Program:
    head = {"format": "primepar-program", "version": 1, "ranks": len(ranks)}
    return msgspec.convert({**head, "programs": ranks, **fields}, Program)


def send(peer: int, block: str, tag: int = 0) -> Json:
    return {"op": "send", "peer": peer, "block": block, "tag": tag}


def recv(peer: int, block: str, tag: int = 0) -> Json:
    return {"op": "recv", "peer": peer, "block": block, "tag": tag}


def isend(peer: int, block: str, request: str) -> Json:
    return {"op": "isend", "peer": peer, "block": block, "request": request}


def irecv(peer: int, block: str, request: str) -> Json:
    return {"op": "irecv", "peer": peer, "block": block, "request": request}


def wait(request: str) -> Json:
    return {"op": "wait", "request": request}


def verdicts(report: Report) -> dict[str, str]:
    return {result.name: result.verdict for result in report.properties}


def only_counterexample(report: Report) -> str:
    refuted = [result for result in report.properties if result.verdict == "refuted"]
    assert len(refuted) == 1
    assert refuted[0].counterexample is not None
    return refuted[0].counterexample


@pytest.mark.parametrize("text", SEQUENCES)
def test_a_lowered_sequence_is_proved_in_all_that_it_asks(text: str) -> None:
    report = verify_program(lower(parse_sequence(text)), text)
    assert report.target == text
    assert verdicts(report) == dict.fromkeys(PROPERTIES[:6], "proved")
    assert report.verdict == "proved"


@pytest.mark.parametrize(
    "use",
    [
        {"op": "compute", "reads": ["O[0]"], "accumulates": "S"},
        {"op": "cut", "block": "O[0]", "blocks": ["S", "T"]},
        {"op": "join", "blocks": ["O[0]"], "block": "S"},
    ],
    ids=["added", "cut", "joined"],
)
def test_a_sum_that_is_used_need_not_be_in_final(use: Json) -> None:
    product = {
        "op": "compute",
        "phase": "forward",
        "sub_operator": {"M": 0, "N": 0},
        "reads": ["I[0,0]", "W[0]"],
        "accumulates": "O[0]",
    }
    grid = {"forward": {"M": 1, "N": 1}}
    used = verify_program(program([product, use], grid=grid, final=[["S"]]))
    assert used["completion"].counterexample is None
    lost = verify_program(program([product], grid=grid, final=[["I[0,0]"]]))
    assert only_counterexample(lost) == (
        "O[0]: expected it in final on some rank, or read when it is finished, got neither: list "
        "it where it ends, or give it a home"
    )


@pytest.mark.parametrize("phase", PHASES)
def test_one_phase_alone_is_proved(phase: Any) -> None:
    report = verify_program(lower(parse_sequence("P3x3"), phases=(phase,)))
    assert report.verdict == "proved"


@pytest.mark.parametrize("columns", [(1, 2), (3, 1), (3, 2)])
def test_a_redistribution_is_proved_to_send_every_block_where_it_is_needed(
    columns: tuple[int, int],
) -> None:
    halves, blocks = (list(product(*map(range, grid))) for grid in ((2, 1), columns))
    source = Layout((2, 1), tuple((halves[rank % 2],) for rank in range(6)))
    target = Layout(columns, tuple((blocks[-rank % len(blocks)],) for rank in range(6)))
    report = verify_program(redistribution(source, target))
    assert verdicts(report) == {
        "placement": "proved",
        "alignment": "proved",
        "deadlock-freedom": "proved",
        "races": "proved",
    }


def test_communication_alone_is_asked_only_whether_it_ends_and_races() -> None:
    ring = [
        [isend(1 - rank, "X", "a"), irecv(1 - rank, "Y", "b"), wait("a"), wait("b")]
        for rank in (0, 1)
    ]
    assert verdicts(verify_program(program(*ring))) == {
        "deadlock-freedom": "proved",
        "races": "proved",
    }


def test_without_final_every_output_must_be_finished_on_some_rank() -> None:
    right = msgspec.structs.replace(lower(parse_sequence("N")), final=None)
    assert verify_program(right)["completion"].verdict == "proved"
    cut = tuple(tuple(n for n in rank if not hasattr(n, "reduction")) for rank in right.programs)
    report = verify_program(msgspec.structs.replace(right, programs=cut))
    assert report["completion"].counterexample == (
        "rank 0, O[0,0] at the end: expected forward product (M=0, N=1, K=0) once, got it never: "
        "send it here from rank 1, instruction 0 (forward O[0,0] += I[0,1] * W[1,0])"
    )


def test_an_output_that_is_in_initial_is_summed_onto() -> None:
    once = lower(parse_sequence("K"), phases=("gradient",))
    assert once.initial is not None
    assert once.final is not None
    before = tuple(
        (*blocks, *(b for b in final if b.startswith("dW")))
        for blocks, final in zip(once.initial, once.final, strict=True)
    )
    assert verify_program(msgspec.structs.replace(once, initial=before)).verdict == "proved"


def test_a_block_that_nobody_wrote_is_where_it_is_first_used_if_initial_is_not_given() -> None:
    given = lower(parse_sequence("P2x2"))
    assert verify_program(msgspec.structs.replace(given, initial=None)).verdict == "proved"
    nothing = msgspec.structs.replace(given, initial=((),) * 4)
    assert verify_program(nothing)["placement"].counterexample == (
        "rank 0, instruction 1 (isend I[0,0] -> 1): expected I[0,0] in this rank's memory, "
        "got none there: receive or compute it before, or list it in initial"
    )


def test_one_device_that_swaps_its_order_is_harmless_and_two_are_not() -> None:
    def mesh(*swapped: int) -> Program:
        ranks = []
        for rank in range(4):
            row, column = divmod(rank, 2)
            along, down = row * 2 + 1 - column, (1 - row) * 2 + column
            groups = [
                {"op": "group", "body": [send(along, "A"), recv(along, "A2")]},
                {"op": "group", "body": [send(down, "B"), recv(down, "B2")]},
            ]
            ranks.append(groups[::-1] if rank in swapped else groups)
        return program(*ranks)

    assert verify_program(mesh()).verdict == "proved"
    assert verify_program(mesh(1, 2)).verdict == "refuted"


def test_a_cycle_is_the_shortest_one() -> None:
    ring = [[send((rank + 1) % 3, "X"), recv((rank - 1) % 3, "Y")] for rank in range(3)]
    pair = [[send(4, "X"), recv(4, "Y")], [send(3, "X"), recv(3, "Y")]]
    assert only_counterexample(verify_program(program(*ring, *pair))) == (
        "ranks 3 and 4 wait for one another in a cycle: start both directions of an exchange "
        "together, in a group or by isend and irecv before the waits\n"
        "  rank 3 waits in instruction 0 (send X -> 4) for rank 4 to reach instruction 1 "
        "(recv Y <- 3)\n"
        "  rank 4 waits in instruction 0 (send X -> 3) for rank 3 to reach instruction 1 "
        "(recv Y <- 4)\n"
        "  with buffered sends it would run to its end"
    )


def test_a_rank_that_sends_to_itself_waits_for_itself() -> None:
    assert only_counterexample(verify_program(program([send(0, "X"), recv(0, "Y")]))) == (
        "rank 0 waits for itself: start both directions of an exchange together, in a group or by "
        "isend and irecv before the waits\n"
        "  rank 0 waits in instruction 0 (send X -> 0) for rank 0 to reach instruction 1 "
        "(recv Y <- 0)\n"
        "  with buffered sends it would run to its end"
    )
    together = {"op": "group", "body": [send(0, "X"), recv(0, "Y")]}
    assert verify_program(program([together])).verdict == "proved"


def test_what_only_buffers_save_is_proved_with_a_warning_if_asked_buffered() -> None:
    exchange = program([send(1, "X"), recv(1, "Y")], [send(0, "X"), recv(0, "Y")])
    report = verify_program(exchange, buffered=True)
    assert report.verdict == "proved"
    assert report["deadlock-freedom"].reason == (
        "only because sends are buffered; without that, ranks 0 and 1 wait for one another in a "
        "cycle: start both directions of an exchange together, in a group or by isend and irecv "
        "before the waits\n"
        "  rank 0 waits in instruction 0 (send X -> 1) for rank 1 to reach instruction 1 "
        "(recv Y <- 0)\n"
        "  rank 1 waits in instruction 0 (send X -> 0) for rank 0 to reach instruction 1 "
        "(recv Y <- 1)"
    )
    lowered = verify_program(lower(parse_sequence("P2x2")), buffered=True)
    assert (lowered.verdict, lowered["deadlock-freedom"].reason) == ("proved", None)


def test_buffers_do_not_save_two_receives_that_wait_for_each_other() -> None:
    exchange = program([recv(1, "Y"), send(1, "X")], [recv(0, "Y"), send(0, "X")])
    assert verify_program(exchange, buffered=True).verdict == "refuted"
    assert "buffered" not in only_counterexample(verify_program(exchange))


def test_a_group_whose_order_differs_does_not_meet() -> None:
    gather = {"op": "all_gather", "block": "X", "blocks": ["A", "B"]}
    report = verify_program(program([{**gather, "group": [0, 1]}], [{**gather, "group": [1, 0]}]))
    assert only_counterexample(report) == (
        "rank 1, instruction 0 (all_gather X -> A B over 1,0): expected group 0,1 as in rank 0, "
        "instruction 0 (all_gather X -> A B over 0,1), got 1,0: write the same on all of the "
        "group's ranks"
    )


def test_a_collective_lists_one_block_for_each_rank() -> None:
    gather = {"op": "all_gather", "block": "X", "blocks": ["A"], "group": [0, 1]}
    assert only_counterexample(verify_program(program([gather], [gather]))) == (
        "rank 0, instruction 0 (all_gather X -> A over 0,1): expected 2 blocks, one for each rank "
        "of the group, got 1: list one for each"
    )


def test_a_collective_needs_every_member_and_its_caller() -> None:
    barrier = {"op": "barrier", "group": [0, 1]}
    assert only_counterexample(verify_program(program([barrier], []))) == (
        "rank 0, instruction 0 (barrier over 0,1): expected rank 1 to make the matching call, "
        "got none that is left there: add it, or take the rank out of the group"
    )
    stranger = program([{"op": "barrier", "group": [1]}], [{"op": "barrier", "group": [1]}])
    assert only_counterexample(verify_program(stranger)) == (
        "rank 0, instruction 0 (barrier over 1): expected a group with rank 0 in it, "
        "got one without: add it, or drop the call"
    )


@pytest.mark.parametrize("ends", [[wait("a")], []])
def test_a_request_that_is_posted_again_or_left_is_never_waited_for(ends: list[Json]) -> None:
    posts = [isend(1, "X", "a"), *([isend(1, "Y", "a")] if ends else []), *ends]
    receives = [recv(0, block) for block in ("X", "Y")[: len(posts) - len(ends)]]
    assert only_counterexample(verify_program(program(posts, receives))) == (
        "rank 0, instruction 0 (isend X -> 1): expected a wait for 'a', got none before the "
        "request is posted again or the program ends: add the wait"
    )


def test_two_receives_of_one_group_need_two_blocks() -> None:
    group = {"op": "group", "body": [recv(1, "X"), recv(1, "X")]}
    assert only_counterexample(verify_program(program([group], [send(0, "A"), send(0, "B")]))) == (
        "rank 0, instruction 0 (group recv X <- 1; recv X <- 1): expected X to be left alone while "
        "instruction 0 (recv X <- 1) is in flight, got it written: two messages of one group need "
        "two blocks"
    )


def test_a_block_goes_to_the_host_and_comes_back() -> None:
    def offload(*ops: str) -> Report:
        nodes = [{"op": op, "block": "I[0]"} for op in ops]
        return verify_program(program(nodes, initial=[["I[0]"]], final=[["I[0]"]]))

    assert offload("evict", "fetch").verdict == "proved"
    assert only_counterexample(offload("evict")) == (
        "rank 0, final I[0]: expected it at the end, got it on no rank: send it here"
    )
    assert only_counterexample(offload("fetch")) == (
        "rank 0, instruction 0 (fetch I[0]): expected I[0] in this rank's host memory, "
        "got none there: evict it before"
    )


def test_a_product_reads_its_two_operands_and_nothing_else() -> None:
    compute = {
        "op": "compute",
        "phase": "forward",
        "sub_operator": {"M": 0, "N": 0, "K": 0},
        "reads": ["I[0,0]"],
        "accumulates": "O[0,0]",
    }
    assert only_counterexample(verify_program(program([compute]))) == (
        "rank 0, instruction 0 (forward O[0,0] += I[0,0]): expected to read I[0,0] and W[0,0], and "
        "nothing but these: list these"
    )


def test_the_smallest_sub_operator_is_named() -> None:
    right = lower(parse_sequence("P3x3"), phases=("forward",))
    dropped = [list(rank) for rank in right.programs]
    for rank in (2, 7):
        dropped[rank] = [n for n in dropped[rank] if getattr(n, "phase", None) is None]
    wrong = msgspec.structs.replace(right, programs=tuple(tuple(rank) for rank in dropped))
    assert verify_program(wrong)["coverage"].counterexample == (
        "forward sub-operator (M=0, N=0, K=2): expected one rank to compute it, got none: add it"
    )


def test_a_report_is_refuted_before_unknown_before_proved() -> None:
    results = {v: PropertyResult(v, v, 0.0) for v in ("proved", "unknown", "refuted")}
    proved, unknown, refuted = results.values()
    assert Report.of("x", [proved, unknown, refuted]).verdict == "refuted"
    assert Report.of("x", [proved, unknown]).verdict == "unknown"
    assert Report.of("x", [proved]).verdict == "proved"
    with pytest.raises(KeyError):
        Report.of("x", [proved])["races"]


def test_a_report_is_the_json_that_the_command_prints() -> None:
    report = Report.of("x", [PropertyResult("races", "proved", 0.5)])
    assert msgspec.json.encode(report) == (
        b'{"target":"x","verdict":"proved","properties":[{"name":"races","verdict":"proved",'
        b'"seconds":0.5,"counterexample":null,"reason":null,"details":null,"certified":null,'
        b'"meshes":null}],"scope":null,"certificate":null,"cause":null}'
    )


def test_a_long_cycle_is_named_by_its_first_ranks_and_drawn_whole() -> None:
    ring = [[send((rank + 1) % 12, "X"), recv((rank - 1) % 12, "Y")] for rank in range(12)]
    lines = only_counterexample(verify_program(program(*ring))).splitlines()
    assert lines[0] == (
        "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more wait for one another in a cycle: start both "
        "directions of an exchange together, in a group or by isend and irecv before the waits"
    )
    assert len(lines) == 1 + 12 + 1


def test_every_name_of_the_package_is_loaded_when_it_is_used() -> None:
    package = import_module("primepar.verify")
    assert [getattr(package, name).__name__ for name in package.__all__] == package.__all__
