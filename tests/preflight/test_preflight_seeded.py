"""Seeded scripts: no right one is refuted, and no broken one proved."""

from __future__ import annotations

import pytest
from profiles import IS_LONG

from benchmarks.preflight_scoreboard import SeededScript, answer, seeded_scripts

SHORT = (
    "a step that one rank leaves out after the sum",
    "a shape of one's own data",
    "gathers objects and takes the other's",
    "parts of an all-to-all that differ",
    "two networks of which one is not wrapped",
    "a row-parallel bias that every rank adds",
    "a row-parallel bias that is divided, and whose gradients are not summed",
    "a row-parallel sum of detached parts",
    "memory that runs out on one rank",
    "an error that is logged and raised",
    "parameters by the order of a set",
    "Join, with uneven inputs",
    "dion#74: a gather whose gradients are summed once too often",
    "a pipeline whose second stage zeroes its gradients for each micro-batch",
    "Muon whose updates another rank sends",
    "a patience over data of one's own",
    "DTensor layers and a bias outside of them, of other data",
    "DiLoCo of which some parameters are not averaged",
)
"""Titles in the short profile: what was judged wrongly once."""


SENTENCES = {
    "a row-parallel bias that every rank adds": (
        "        dist.all_reduce(x)",
        "rank 0, instruction 0 (all_reduce x0 over 0,1) {}: expected what ranks 0,1 all have, "
        "computed of parameter 3, to count once in the sum of their parts, got it 2 times: add it "
        "after the sum, or on one rank alone\n",
    ),
    "a row-parallel bias that is divided, and whose gradients are not summed": (
        "        dist.all_reduce(x)",
        "rank 0, instruction 2 (all_reduce x1 over 0,1) {}: expected the gradient of parameter 3 "
        "to be summed over ranks 0,1, as each adds 1/2 of what is computed of it, got that of one "
        "part alone: sum it, or add what all have after the sum\n",
    ),
    "memory that runs out on one rank": (
        "    return torch.randn(*(size or (4, 8)), generator=draw)",
        "rank 0 may go the other way {}, by memory that runs out on it alone, which it catches: "
        "let all ranks decide alike, by an all_reduce of the flag before\n",
    ),
    "parameters by the order of a set": (
        "    for name in names:",
        "rank 0 may go the other way {}, by the order of a set, as each process hashes with a seed "
        "of its own: sort it\n",
    ),
}
"""Title of a broken script -> a line that is named, and what is printed."""


def scripts() -> list[SeededScript]:
    """The scripts of the profile."""
    return [one for one in seeded_scripts() if IS_LONG or one.title in SHORT]


def test_verdicts_of_seeded_scripts_are_right() -> None:
    given = list(map(answer, scripts()))
    assert [one.script.title for one in given if one.is_false] == []
    unknown = {one.script.title for one in given if one.verdict == "unknown"}
    assert unknown <= UNKNOWN
    broken = [one for one in given if one.verdict == "refuted"]
    assert [one.script.title for one in broken if not one.names_its_lines] == []


@pytest.mark.parametrize("title", SENTENCES)
def test_what_is_wrong_is_named_with_its_line(title: str) -> None:
    line, sentence = SENTENCES[title]
    (script,) = (one for one in seeded_scripts() if one.title == title and not one.right)
    number = 1 + script.text.splitlines().index(line)
    assert sentence.format(f"at train.py:{number}") in answer(script).why


def test_there_are_right_and_broken_scripts_and_short_ones() -> None:
    every = list(seeded_scripts())
    assert len([one for one in every if one.right]) >= 70
    assert len([one for one in every if not one.right]) >= 55
    assert {one.title for one in scripts()} >= set(SHORT)


UNKNOWN = {
    "a pipeline whose second stage zeroes its gradients for each micro-batch",
    "a flat shard that is gathered before its update",
    "Muon whose updates another rank sends",
    "neighbours average their parameters",
    "a residual that every rank adds",
    "a row-parallel bias that is divided, and whose gradients are not summed",
    "a residual that is divided before the gradients are summed",
    "ranks that average in other steps",
    "momentum of an earlier run on rank 0 alone",
    "a pipeline of two whose stages are trained in data parallel",
    "raises in a library after a wrong turn",
    "a number that a library makes plain",
    "a large tensor by which both ends decide",
    "tensor parallel columns without the sum of their input's gradient",
    "transformers#34198: a loss divided by one's own tokens",
    "Megatron-LM#1446: stages that clip by their own norm",
    "accelerate#1050: clipping before the reduction",
    "a tied embedding whose gradients are not summed",
}
"""Titles of which one script, or both, are not decided."""
