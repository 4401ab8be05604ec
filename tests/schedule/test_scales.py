"""Scales of sums: read from a file, followed exactly by every reader, kept by the passes."""

from __future__ import annotations

import json
from copy import deepcopy
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attack_scales import decide
from oracle.explore import explore
from phase_programs import RIGHT, built
from profiles import draws
from scaled_programs import scaled_program
from step_cases import refuted

from primepar.certify.program import certify_program
from primepar.errors import ProgramError
from primepar.passes import PASSES, apply
from primepar.pictures.space_time import grid_text, space_time
from primepar.reference import check_program
from primepar.schedule import Program, load_program, save_program
from primepar.schedule.program import Compute
from primepar.schedule.signature import coefficient
from primepar.verify import verify_program
from primepar.verify.certificate.program import certificate

Json = dict[str, Any]
AVERAGE = Path(__file__).parents[2] / "docs" / "examples" / "average.json"
SEEDS = range(draws(150))


def average() -> Json:
    """Four ranks average their losses: signature and all-reduce have scale 1/4."""
    fields: Json = json.loads(AVERAGE.read_text())
    return fields


def with_scale(op: str, scale: str | None) -> Json:
    """The average with another scale on all instructions of a kind, or with none."""
    fields = average()
    for nodes in fields["programs"]:
        for node in nodes:
            if node["op"] == op:
                node.pop("scale", None)
                node.update({"scale": scale} if scale else {})
    return fields


def verdicts(program: Program) -> tuple[str, bool, bool]:
    """Of the proofs, of the explorer, and of the emulator against one device."""
    proved = verify_program(program)
    certify_program(certificate(program, proved), program)
    return proved.verdict, not explore(program).failed, check_program(program).equal


# Files


@pytest.mark.parametrize("text", ["1/4", "3", "2/3", "999999999999999999/1000000000000000"])
def test_a_scale_survives_its_file_and_is_exact(tmp_path: Path, text: str) -> None:
    text = str(Fraction(text))
    program = built(with_scale("compute", text))
    save_program(program, tmp_path / "p.json")
    loaded = load_program(tmp_path / "p.json")
    node = loaded.programs[0][0]
    assert isinstance(node, Compute)
    assert (loaded, node.scale_value) == (program, Fraction(text))
    assert isinstance(node.scale_value, int) == ("/" not in text)


def test_a_scale_of_1_is_not_written() -> None:
    assert b"scale" not in msgspec.json.encode(Compute(("a",), "b", scale="1"))


def with_maximum() -> Json:
    fields = RIGHT["heads"]()
    assert fields["phases"]["largest"]["reduction"] == "max"
    return fields


def in_signature() -> Json:
    fields = with_maximum()
    fields["phases"]["largest"]["scale"] = "1/2"
    return fields


def on_collective() -> Json:
    fields = with_maximum()
    fields["programs"][0][4]["scale"] = "1/2"
    return fields


def on_product() -> Json:
    fields = with_maximum()
    fields["programs"][0][1]["scale"] = "1/2"
    return fields


def on_addition() -> Json:
    fields = with_maximum()
    node = {"op": "compute", "reads": ["s[0]"], "accumulates": "top[0]", "scale": "1/2"}
    fields["programs"][1].append(node)
    return fields


NOT_OF_A_MAXIMUM = (
    "expected no scale with reduction max, got 1/2: scale what is computed from the result"
)
POSITIVE = (
    "expected a scale that is a positive number or fraction of at most 18 digits each, such as "
    "'1/64', got {0!r} - at `$.programs[0][0]`"
)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (with_scale("compute", "0"), POSITIVE.format("0")),
        (with_scale("compute", "-1/2"), POSITIVE.format("-1/2")),
        (with_scale("compute", "0.5"), POSITIVE.format("0.5")),
        (with_scale("compute", "1/0"), POSITIVE.format("1/0")),
        (with_scale("compute", "1" * 19), POSITIVE.format("1" * 19)),
        (with_scale("all_reduce", "2/4"),
         "expected a scale in lowest terms, got '2/4': write '1/2' - at `$.programs[0][1]`"),
        (with_scale("compute", "4/1"),
         "expected a scale in lowest terms, got '4/1': write '4' - at `$.programs[0][0]`"),
        (in_signature(), f"{NOT_OF_A_MAXIMUM} - at `$.phases[...]`"),
        (on_collective(), f"{NOT_OF_A_MAXIMUM} - at `$.programs[0][4]`"),
        (on_product(), f"{NOT_OF_A_MAXIMUM} in programs[0][1]"),
        (on_addition(), f"{NOT_OF_A_MAXIMUM} in programs[1][19]"),
    ],
)  # fmt: skip
def test_a_scale_that_is_none_is_refused(tmp_path: Path, fields: Json, message: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(fields))
    with pytest.raises(ProgramError) as caught:
        load_program(path)
    assert " ".join(str(caught.value).split()) == f"{path}: {message}"


def test_a_numeral_of_another_script_is_no_scale() -> None:
    with pytest.raises(ValueError, match="positive number or fraction"):
        coefficient("\N{ARABIC-INDIC DIGIT ONE}")


# Proofs


def test_an_average_is_right_for_every_reader() -> None:
    assert verdicts(built(average())) == ("proved", True, True)


def test_the_scale_may_stand_on_the_products_or_on_both() -> None:
    on_products = with_scale("all_reduce", None)
    for nodes in on_products["programs"]:
        nodes[0]["scale"] = "1/4"
    assert verdicts(built(on_products)) == ("proved", True, True)
    for nodes in on_products["programs"]:
        nodes[0]["scale"], nodes[1]["scale"] = "3", "1/12"
    assert verdicts(built(on_products)) == ("proved", True, True)


@pytest.mark.parametrize(
    ("scale", "got", "cause"),
    [
        ("1/16", "1/16 times", "scale 1/4 is applied twice, so leave one out"),
        (None, "once", "no scale is applied, so write scale 1/4 once"),
        ("1/2", "1/2 times", "it is added twice, or is a mean over 2 instead of 4"),
        ("1/3", "1/3 times", "it is a mean over 3 instead of 4"),
        ("1/8", "1/8 times", "it is a mean over 8 instead of 4"),
        ("2/3", "2/3 times", "the scales on its way make 2/3, so multiply one of them by 3/8"),
        ("4", "4 times", "the scales on its way make 4, so multiply one of them by 1/16"),
    ],
)
def test_a_wrong_scale_is_refuted_with_both_coefficients(
    scale: str | None, got: str, cause: str
) -> None:
    program = built(with_scale("all_reduce", scale))
    times = f"{scale} * " if scale else ""
    first = (
        "rank 0, instruction 1 (all_reduce" if scale else "rank 0, instruction 0 (mean loss[0] +="
    )
    rest = f" {times}loss[0] over 0,1,2,3)" if scale else " losses[0])"
    assert refuted(program) == {
        "completion": "rank 0, final loss[0]: expected each mean product 1/4 times, got each "
        f"{got}: {cause}: see {first}{rest}"
    }
    assert explore(program).failed == {"completion"}
    often = "once" if got == "once" else got
    assert check_program(program).message in (
        f"device 0: at the end expected mean M=0 1/4 times in loss[0], got it {often}",
        f"device 3, programs[3][1]: expected mean M=0 1/4 times in a sum, got it {often}",
    )


def test_a_mean_that_is_added_again_names_the_last_sum() -> None:
    fields = average()
    for nodes in fields["programs"]:
        nodes.append({"op": "all_reduce", "group": [0, 1, 2, 3], "block": "loss[0]"})
    assert refuted(built(fields)) == {
        "completion": "rank 0, final loss[0]: expected each mean product 1/4 times, got each "
        "once: it is added 4 times after its scale, so add it once: see rank 0, instruction 2 "
        "(all_reduce loss[0] over 0,1,2,3)"
    }


def test_a_member_with_another_scale_is_refuted() -> None:
    fields = average()
    fields["programs"][2][1]["scale"] = "1/2"
    assert refuted(built(fields))["deadlock-freedom"] == (
        "rank 2, instruction 1 (all_reduce 1/2 * loss[0] over 0,1,2,3): expected scale 1/4 as in "
        "rank 0, instruction 1 (all_reduce 1/4 * loss[0] over 0,1,2,3), got 1/2: write the same on "
        "all of the group's ranks"
    )
    assert "deadlock-freedom" in explore(built(fields)).failed
    assert check_program(built(fields)).message == (
        "device 2, programs[2][1]: expected all_reduce over 0,1,2,3 reduction=sum scale=1/4 as on "
        "device 0, got all_reduce over 0,1,2,3 reduction=sum scale=1/2: call collectives in one "
        "order on every member"
    )


def test_an_average_of_equal_blocks_changes_nothing() -> None:
    """Also of data from before the program, and of a maximum."""
    fields = RIGHT["heads"]()
    for block in ("top[0]", "key[0,0]"):
        call = {"op": "all_reduce", "group": [0, 1], "block": block, "scale": "1/2"}
        for nodes in fields["programs"]:
            nodes.append(call)
    assert verdicts(built(fields)) == ("proved", True, True)
    for nodes in fields["programs"]:
        nodes[-1] = {**nodes[-1], "scale": "1/3"}
    assert "alignment" in refuted(built(fields))


def test_sums_of_scaled_sums_multiply() -> None:
    """Half of a half of both halves of each product: 1/4 in each of two copies, added."""
    fields = average()
    fields["phases"]["mean"]["scale"] = "1/2"
    for nodes in fields["programs"]:
        nodes[1]["scale"] = "1/2"
        nodes += [
            {"op": "compute", "reads": ["loss[0]", "loss[0]"], "accumulates": "x", "scale": "1/4"},
            {"op": "free", "block": "loss[0]"},
            {"op": "compute", "reads": ["x"], "accumulates": "loss[0]"},
            {"op": "compute", "reads": ["x"], "accumulates": "loss[0]", "scale": "1"},
        ]
    assert verdicts(built(fields)) == ("proved", True, True)


def test_a_denominator_without_an_inverse_is_refused_by_the_emulator() -> None:
    fields = with_scale("all_reduce", "1/1048573")
    fields["phases"]["mean"]["scale"] = "1/1048573"
    assert verify_program(built(fields)).verdict == "proved"
    with pytest.raises(ProgramError) as caught:
        check_program(built(fields))
    assert str(caught.value) == (
        "expected a scale whose denominator is no multiple of 1048573 for stand-ins, got "
        "1/1048573: check a program of another size"
    )


def test_a_scale_is_shown() -> None:
    for nodes in (fields := average())["programs"]:
        nodes[0]["scale"] = "3"
    text = grid_text(space_time(built(fields), "average"))
    assert "loss[0] += 3 * losses[0]\n" in text
    assert "all_reduce 1/4 * loss[0] over 0,1,2,3\n" in text


# Generated programs


def test_all_readers_agree_on_generated_programs_with_scales() -> None:
    results = [decide(seed) for seed in SEEDS]
    assert [result.note for result in results if result.is_wrong] == []
    assert {"proved", "refuted"} <= {result.rows["with scales"] for result in results}


def test_a_pass_makes_no_wrong_scale_right_and_no_right_one_wrong() -> None:
    seen = {"proved": 0, "refuted": 0}
    for seed in SEEDS:
        program = scaled_program(seed)
        before = verify_program(program).verdict
        if before != "unknown" and program.memory is None and program.final is not None:
            assert verify_program(apply(program, tuple(PASSES))).verdict == before, seed
            seen[before] += 1
    assert min(seen.values()) > len(SEEDS) / 20


def test_products_and_reductions_of_different_scales_are_not_merged() -> None:
    fields = two_products()
    assert merged(fields) == 1
    fields["programs"][0][1]["scale"] = "1/2"
    assert merged(fields) == 2


def two_products() -> Json:
    """One rank multiplies two slices of rows."""
    head = {"format": "primepar-program", "version": 1, "ranks": 1}
    return {
        **head,
        "grid": {"forward": {"M": 2, "N": 1, "K": 1}},
        "shape": {"M": 4, "N": 2, "K": 2},
        "initial": [["I[0,0]", "I[1,0]", "W[0,0]"]],
        "final": [["O[0,0]", "O[1,0]"]],
        "programs": [
            [
                {"op": "compute", "phase": "forward", "reads": [f"I[{m},0]", "W[0,0]"],
                 "accumulates": f"O[{m},0]", "sub_operator": {"M": m, "N": 0, "K": 0}}
                for m in (0, 1)
            ]
        ],
    }  # fmt: skip


def merged(fields: Json) -> int:
    """The number of products after the passes."""
    program = apply(built(deepcopy(fields)), tuple(PASSES))
    return sum(isinstance(node, Compute) for node in program.programs[0])
