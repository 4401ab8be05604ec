"""The backend with NCCL's rules: what fits together runs, and each kind of mistake is an error."""

from __future__ import annotations

from functools import cache
from typing import Any

import nccl_rules_ranks
import numpy as np
import pytest
from distributed_program import RANKS, expected_blocks
from distributed_ranks import on_ranks
from nccl_rules import EAGER, LAZY

HUNG = "deadlock under the rules of NCCL: no rank can go on"
BACKENDS = (LAZY, EAGER)


@cache
def answers(backend: str) -> list[dict[str, Any]]:
    return on_ranks(RANKS, nccl_rules_ranks.answers, backend=backend)


def results(backend: str, case: str) -> list[Any]:
    """What every rank has of a case."""
    return [answer[case] for answer in answers(backend)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_runs_together_and_tags_select_nothing(backend: str) -> None:
    assert results(backend, "batched_ring") == [[3, 3], [0, 0], [1, 1], [2, 2]]
    first, second, *others = results(backend, "tags_select_nothing")
    assert first == second == [0, 0, 1, 1]
    assert others == [[20, 20, 30, 30], [30, 30, 20, 20]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_instruction_does_what_the_program_defines(backend: str) -> None:
    for result, expected in zip(results(backend, "program"), expected_blocks(), strict=True):
        assert result["blocks"].keys() == {f"{name}[0]" for name in expected}
        for name, block in expected.items():
            np.testing.assert_array_equal(result["blocks"][f"{name}[0]"], block, name)


WHOLE = {
    (LAZY, "unbatched_ring"): [
        HUNG,
        "  rank 0 makes communicator 0(0:1): expected ranks [1] to call it too",
        "  rank 1 makes communicator 0(1:2): expected ranks [2] to call it too",
        "  rank 2 makes communicator 0(2:3): expected ranks [3] to call it too",
        "  rank 3 makes communicator 0(0:3): expected ranks [0] to call it too",
    ],
    (EAGER, "unbatched_ring"): [
        HUNG,
        *(f"  rank {rank} waits for send to {(rank + 1) % 4} of 2 float32" for rank in range(4)),
        *(
            f"  rank {rank}, communicator 0: send to {(rank + 1) % 4} of 2 float32, then 1 more"
            for rank in range(4)
        ),
    ],
}


@pytest.mark.parametrize(("backend", "case"), WHOLE)
def test_messages_outside_a_batch_wait_for_one_another(backend: str, case: str) -> None:
    assert results(backend, case) == ["\n".join(WHOLE[backend, case])] * RANKS


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_deadlock_names_the_head_of_every_stream(backend: str) -> None:
    waits = [
        "  rank 0 waits for send to 1 of 2 float32",
        *(f"  rank {n} has ended" for n in (1, 2, 3)),
    ]
    head = "  rank 0, communicator 0: send to 1 of 2 float32"
    assert results(backend, "a_send_without_a_receive")[0] == "\n".join([HUNG, *waits, head])
    first, second, third, fourth = results(backend, "a_message_before_a_collective")
    assert first == second == third == fourth
    assert first.splitlines()[-4:] == [
        "  rank 0, communicator 0: send to 1 of 2 float32, then 1 more",
        *(
            f"  rank {rank}, communicator 0: all_reduce of 2 float32 sum"
            for rank in (1, 2, 3)
        ),
    ]  # fmt: skip


def test_a_second_message_with_a_peer_waits_for_the_first_round_of_its_batch() -> None:
    for result in results(EAGER, "a_second_message_with_a_peer")[:2]:
        assert result.splitlines()[-2:] == [
            "  rank 0, communicator 0: send to 1 of 2 float32 + recv from 1 of 2 float32",
            "  rank 1, communicator 0: recv from 0 of 2 float32",
        ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_block_in_flight_is_neither_read_nor_written(backend: str) -> None:
    assert results(backend, "a_block_read_early") == [[[True] * 2, [True] * 2, [True] * 4]] * RANKS
    written = "a block of 2 float32 was written before the wait for it"
    assert results(backend, "a_block_sent_and_written") == [written] * RANKS
    assert results(backend, "a_block_written_by_the_stream") == [written] * RANKS
    assert results(backend, "a_block_received_and_written")[::2] == [written] * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wait_holds_up_the_stream_and_not_the_host(backend: str) -> None:
    """The host sees its blocks as they were; before the wait the stream has not a number."""
    for rank, answer in enumerate(results(backend, "a_host_that_goes_on")):
        seen, there = [[float(rank)] * 2, *[[-1.0] * 2] * 2], float(rank ^ 1)
        assert answer == [seen, True, [[2 * there] * 2, [there] * 2, [7.0] * 2]]
    assert results(backend, "a_number_that_the_host_needs") == [2, 0, 6, 4]


def test_a_communicator_is_made_by_all_of_its_members() -> None:
    first = results(LAZY, "members_that_stay_away")[0]
    assert first.splitlines()[0] == HUNG
    assert first.splitlines()[1].endswith(": expected ranks [1] to call it too")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("case", "whole"),
    [
        (
            "different_types",
            "rank 0: send to 1 of 2 float64, but rank 1: recv from 0 of 2 float32",
        ),
        ("strides", "expected a contiguous tensor, got strides (4,)"),
        ("a_type_that_nccl_has_not", "expected a type that NCCL has, got torch.int16"),
        ("a_call_that_is_not_modelled", "expected a collective that is modelled, got another one"),
    ],
)
def test_calls_that_do_not_fit_are_errors(backend: str, case: str, whole: str) -> None:
    assert results(backend, case)[0] == whole


@pytest.mark.parametrize("backend", BACKENDS)
def test_members_that_call_different_collectives_are_an_error(backend: str) -> None:
    cases = {
        "different_collectives": {"all_reduce of 2 float32 sum", "broadcast of 2 float32 root 0"},
        "different_sizes": {"all_reduce of 2 float32 sum", "all_reduce of 3 float32 sum"},
    }
    if backend == LAZY:  # each waits for the others to connect for its kind
        first, *_ = results(backend, "different_collectives")
        alone = "rank 3 makes communicator 0.broadcast: expected ranks [0, 1, 2] to call it too"
        assert first.splitlines()[4] == f"  {alone}"
        del cases["different_collectives"]
    for case, calls in cases.items():
        for error in results(backend, case):
            text = error.partition(": ")[2].replace(" with 0,1,2,3", "")
            assert set(text.split(", and ")) == calls
