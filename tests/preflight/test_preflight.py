"""Scripts of torch, unmodified: proved. With one line changed: refuted, with that line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from attack_decisions import contradictions
from captured import SCRIPTS, Case, answer
from preflight_cases import (
    BROKEN,
    CHOICES,
    DECIDES,
    FILES,
    NO_CUDA,
    OTHER,
    OWN_READS,
    PROVED,
    RANKS,
    RECEIVING,
    REFUTED,
    SENDING,
    TRAINED,
    USES,
)
from profiles import long


@pytest.mark.parametrize("script", PROVED)
def test_a_script_is_proved_as_it_is(script: str) -> None:
    done = answer(PROVED[script])
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{script}: proved on {RANKS[script][1]} ranks, ")


def test_what_is_asked_of_a_gpu_that_is_not_there_is_listed() -> None:
    assert answer(PROVED["gpu.py"]).out.splitlines()[-1] == (
        "  a GPU is pretended, computed on the CPU: torch.cuda.is_available at gpu.py:12, "
        "torch.accelerator.is_available at gpu.py:13, torch.cuda.device_count at gpu.py:15, "
        "torch.cuda.set_device at gpu.py:17, torch.accelerator.current_accelerator at gpu.py:19, "
        "torch.cuda.current_device at gpu.py:20, tensors at gpu.py:24, "
        "torch.cuda.is_current_stream_capturing at gpu.py:33, torch.cuda.mem_get_info at gpu.py:51"
    )


def test_packages_for_gpus_have_stand_ins_and_kernels_no_numbers() -> None:
    case = PROVED["packages.py"]
    asked = answer(case).out.splitlines()[-1]
    for line, name in enumerate(("transformer_engine", "triton", "", "xformers", "apex"), 7):
        assert f"package {name} at packages.py:{line}" in asked or not name
    leaves = ("    lasting = bool(loss < 9)\n", "    if loss > 9:\n        continue\n")
    done = answer(case._replace(changes=(leaves,)))
    assert done.code == 1
    assert "rank 0 may go the other way at packages.py:54, by a value" in done.out


LARGE = Case("large.py", ("-n", "2", "--shrink"))


def test_large_tensors_are_compared_and_not_computed() -> None:
    done = answer(LARGE)
    assert (done.code, done.err) == (0, "")
    assert (
        "4 parameters equal on ranks 0,1 after step 2, each by the same sum of 2 gradients times "
        in (done.out)
    )
    assert done.out.splitlines()[-1] == (
        "  tensors of more than 65,536 elements have no numbers, from large.py:10 on: what is "
        "decided by them is taken either way"
    )


def test_a_decision_by_numbers_that_are_not_computed_is_taken_either_way() -> None:
    done = answer(
        LARGE._replace(
            changes=(("    lasting = bool(loss < 9)\n", "    if loss > 9:\n        continue\n"),)
        )
    )
    assert done.code == 1
    assert "rank 0 may go the other way at large.py:16, by a value that others computed" in done.out


def test_a_script_with_one_line_changed_is_refuted_with_that_line() -> None:
    done = answer(REFUTED["ring.py"])
    assert (done.code, done.err) == (1, "")
    assert (
        "rank 0 waits in instruction 0 (send x0 -> 1) at ring.py:10 for rank 1 to reach "
        "instruction 1 (recv x1 <- 0) at ring.py:11"
    ) in done.out


WRONG = {
    "no start": "ring.py: expected rank 0 to run to its end, got that it raises AttributeError: "
    "module 'torch.distributed' has no attribute 'init_process_grope' at ring.py:6: correct it "
    "there, or give the script its arguments after its name",
    "gpu": f"ring.py: expected rank 0 to run to its end, got that it raises {NO_CUDA} at "
    "ring.py:16: preflight "
    "has no GPU: leave --device cpu out, or let the script choose the CPU where it needs more of a "
    "GPU than is pretended",
    "endless": "ring.py: expected rank 1 to end within 4 s, got no end at ring.py:17: run fewer "
    "steps, or give more time with --limit",
    "silent": "ring.py: expected a script that communicates through torch.distributed, got no call "
    "on any of 2 ranks: call its training step at the top level",
    "no file": "none.py: expected a script or a program, found none: check the path",
    "no ranks": "--ranks: expected the number of ranks of ring.py, got none: write -n 4 before it",
    "zero ranks": "--ranks: expected a number from 1 to 4096, got 0",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_script_that_cannot_be_captured(name: str) -> None:
    assert answer(OTHER[name]) == (2, "", f"primepar: error: {WRONG[name]}\n")


OTHERWISE = {
    "decides": "ring.py:17: rank 0 takes the shape of index from a value that other ranks "
    "computed, and may do otherwise",
    "any source": "ring.py:13: rank 1 receives from any rank",
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_not_modelled_is_named_and_nothing_is_proved(name: str) -> None:
    done = answer(OTHER[name])
    assert (done.code, done.err) == (3, "")
    assert done.out.startswith("ring.py: unknown\n")
    assert done.out.endswith(f"  modelled          unknown     0.000 s\n      {OTHERWISE[name]}\n")


def test_a_deadlock_before_what_is_not_modelled_is_refuted() -> None:
    done = answer(OTHER["decides late"])
    assert done.code == 1
    assert "rank 3 waits in instruction 0 (send x0 -> 0) at ring.py:10" in done.out
    assert "ring.py:16: rank 0 asks whether a communication is done" in done.out


@pytest.mark.parametrize("name", ["whole numbers", "batch", "collectives", "members alone"])
def test_values_that_are_sent_are_read_and_all_calls_are_recorded(name: str) -> None:
    done = answer(OTHER[name])
    assert (done.code, done.err) == (0, "")


FAULTS = {
    "raises": "rank 2 raises ValueError: no way at ring.py:17: correct it there",
    "exits": "rank 1 raises SystemExit: 3 at ring.py:17: correct it there",
    "dies": "rank 1 ends by signal 11, after its last call at ring.py:14: correct it there",
    "unused": "rank 0 (and 1 more) raises RuntimeError: Expected to have finished reduction in the "
    "prior iteration before starting a new one.",
    "one call more": "rank 1, instruction 0 (all_reduce x0 over 0,1) at ddp.py:11: expected to "
    "meet rank 0, instruction 0 (all_gather x0 -> x1 x2 over 0,1) at ddp.py:13, got another "
    "collective: call them in one order on all of their ranks",
    "members only": "rank 0 creates a group of ranks 0,1 at ring.py:17 and rank 2 creates none as "
    "group 1: let every rank call new_group for every group in one order, members or not, or pass "
    "use_local_synchronization=True",
    "never comes": "rank 0, instruction 2 (broadcast x2@0+0 over 0,1,2,3) at ring.py:19: expected "
    "rank 1 to make the matching call, got none that is left there",
    "in flight": "rank 0, instruction 4 (add x2 += x2) at ring.py:17: expected x2 to be left alone "
    "while instruction 3 (all_reduce x2 over 0,1,2,3, posted) at ring.py:16 is in flight",
    "not awaited": "rank 0, instruction 5 (all_reduce x2 over 0,1) at ring.py:18: expected x2 to "
    "be left alone while instruction 3 (isend x2 -> 1) at ring.py:16 is in flight",
    "groups": "rank 3 waits in instruction 2 (all_reduce x1 over 0,1,2,3) at ring.py:18 for rank 0 "
    "to reach instruction 3 (all_reduce x0 over 0,1,2,3) at ring.py:18",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refuted_with_its_lines(name: str) -> None:
    done = answer(OTHER[name])
    assert done.code == 1
    assert FAULTS[name] in done.out


@pytest.mark.parametrize("name", TRAINED)
def test_a_proof_of_gradients_states_what_it_compared(name: str) -> None:
    case, sentence = TRAINED[name]
    done = answer(case)
    assert (done.code, done.err) == (0, "")
    assert f"\n      {sentence}\n" in done.out


@pytest.mark.parametrize("name", BROKEN)
def test_replicas_that_go_apart_are_refuted_with_their_line(name: str) -> None:
    case, sentence = BROKEN[name]
    done = answer(case)
    assert done.code == 1
    assert f"\n      {sentence}\n" in done.out


@pytest.mark.parametrize("name", DECIDES)
def test_a_decision_is_also_taken_the_other_way(name: str) -> None:
    sentence = DECIDES[name][1]
    done = answer(CHOICES[name])
    assert done.code == int("may go" in sentence)
    assert f"\n      {sentence}" in done.out if sentence else "decisions" not in done.out


@long
def test_a_number_of_other_ranks_is_used_as_every_number() -> None:
    assert answer(USES).code == 0


def test_no_file_is_left_or_changed() -> None:
    """The script itself checks what it reads; `answer` what is on the disk afterwards."""
    assert answer(FILES).code == 0
    assert answer(FILES).err == ""


def test_generated_decisions_are_judged_as_gloo_runs_them(tmp_path: Path) -> None:
    counts, wrong = contradictions(range(14, 16), tmp_path)
    assert counts.keys() == {("refuted", False), ("proved", True)}
    assert wrong == []


def test_what_the_recorder_reads_is_no_decision_of_the_script() -> None:
    assert answer(OWN_READS).code == 0


def test_the_page_shows_the_hang_and_its_repair_as_they_are_printed() -> None:
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "preflight.md").read_text()
    assert (SCRIPTS / "stages.py").read_text() in page
    assert RECEIVING + SENDING in page
    for name, code in (("hangs", 1), ("repaired", 0)):
        done = answer(OTHER[name])
        assert done.code == code
        assert re.sub(r" +\d+\.\d+ s$", "", done.out, flags=re.MULTILINE) in page
