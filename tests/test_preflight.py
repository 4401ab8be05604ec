"""Scripts of torch, unmodified: proved. With one line changed: refuted, with that line."""

from __future__ import annotations

import pytest
from captured import Case, captured
from command import Done

PROVED = {
    "ring.py": Case("ring.py"),
    "mlp.py": Case("mlp.py"),
    "llama.py": Case("llama.py"),
    "fsdp.py": Case("fsdp.py"),
    "pipeline.py": Case("pipeline.py"),
}
NORM = "norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()"


def swapped(line: str, indent: str = "    ") -> tuple[tuple[str, str]]:
    """A line, moved from before the branch for rank 0 into it."""
    branch = "if mesh.get_rank() == 0:\n"
    return ((f"{indent}{line}\n{indent}{branch}", f"{indent}{branch}{indent}    {line}\n"),)


REFUTED = {
    "ring.py": Case("ring.py", changes=(("rank % 2 == 0", "rank >= 0"),)),
    "mlp.py": Case("mlp.py", changes=swapped("weight = model[0].weight.full_tensor()")),
    "llama.py": Case("llama.py", changes=swapped(NORM, indent="")),
    "fsdp.py": Case("fsdp.py", changes=swapped(NORM)),
    "pipeline.py": Case(
        "pipeline.py", changes=(('["1f1b"]\n', '["1f1b" if rank < 3 else "gpipe"]\n'),)
    ),
}
CASES = (*PROVED.values(), *REFUTED.values())


def answer(case: Case) -> Done:
    """What the command prints for a case."""
    return captured(CASES)[CASES.index(case)]


@pytest.mark.parametrize("script", PROVED)
def test_a_script_is_proved_as_it_is(script: str) -> None:
    done = answer(PROVED[script])
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{script}: proved on 4 ranks, ")


LINES = {
    "ring.py": "rank 0 waits in instruction 0 (send x0 -> 1) at ring.py:10 for rank 1 to reach "
    "instruction 1 (recv x1 <- 0) at ring.py:11",
    "mlp.py": "rank 1, instruction 7 (all_reduce x5 over 0,1,2,3) at mlp.py:20: expected to meet "
    "rank 0, instruction 7 (all_gather x1 -> x11.0 x11.1 x11.2 x11.3 over 0,1,2,3) at mlp.py:25",
    "llama.py": "rank 1, instruction 79 (all_reduce x69 over 0,1,2,3) at llama.py:89: expected "
    "count 21 as in rank 0, instruction 79 (all_reduce x97 over 0,1,2,3) at llama.py:87",
    "fsdp.py": "rank 1, instruction 9 (all_gather x8@552+552 -> x8.0 x8.1 x8.2 x8.3 over 0,1,2,3) "
    "at fsdp.py:19: expected to meet rank 0, instruction 9 (all_reduce x8 over 0,1,2,3) at "
    "fsdp.py:22",
    "pipeline.py": "rank 3 waits in instruction 9 (recv x8 <- 2) at pipeline.py:20 for rank 2 to "
    "reach instruction 29 (isend x18 -> 3) at pipeline.py:23",
}
"""What each refutation prints, with the changed line."""


@pytest.mark.parametrize("script", REFUTED)
def test_a_script_with_one_line_changed_is_refuted_with_that_line(script: str) -> None:
    done = answer(REFUTED[script])
    assert (done.code, done.err) == (1, "")
    assert LINES[script] in done.out
