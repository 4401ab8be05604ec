"""Seeded scripts: no right one is refuted, and no broken one proved."""

from __future__ import annotations

from profiles import IS_LONG

from benchmarks.preflight_scoreboard import SeededScript, answer, seeded_scripts

SHORT = (
    "a step that one rank leaves out after the sum",
    "a shape of one's own data",
    "gathers objects and takes the other's",
    "parts of an all-to-all that differ",
    "two networks of which one is not wrapped",
    "a row-parallel bias that every rank adds",
    "Join, with uneven inputs",
    "dion#74: a gather whose gradients are summed once too often",
)
"""Titles in the short profile: what was judged wrongly once."""


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


def test_a_bias_that_every_rank_adds_is_named_with_its_sum() -> None:
    title = "a row-parallel bias that every rank adds"
    (script,) = (one for one in seeded_scripts() if one.title == title and not one.right)
    line = 1 + script.text.splitlines().index("        dist.all_reduce(x)")
    assert (
        f"rank 0, instruction 4 (all_reduce x2 over 0,1) at train.py:{line}: expected what ranks "
        "0,1 all have, computed of parameter 3, to count once in the sum of their parts, got it 2 "
        "times: add it after the sum, on one rank alone, or divided by 2\n"
    ) in answer(script).why


def test_there_are_right_and_broken_scripts_and_short_ones() -> None:
    every = list(seeded_scripts())
    assert len([one for one in every if one.right]) >= 70
    assert len([one for one in every if not one.right]) >= 55
    assert {one.title for one in scripts()} >= set(SHORT)


UNKNOWN = {
    "a residual that every rank adds",
    "ranks that average in other steps",
    "momentum of an earlier run on rank 0 alone",
    "FSDP2 with a device mesh of two axes",
    "a pipeline of two whose stages are trained in data parallel",
    "raises after a wrong turn",
    "raises in a library after a wrong turn",
    "a number that a library makes plain",
    "a large tensor by which both ends decide",
    "tensor parallel columns without the sum of their input's gradient",
    "transformers#34198: a loss divided by one's own tokens; question",
}
"""Titles of which one script, or both, are not decided."""
