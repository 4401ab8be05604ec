"""A whole training step under a plan as one program: what is in it, and that it is proved."""

from __future__ import annotations

from pathlib import Path

import pytest
from lowered_steps import lower_step
from partitioned_cases import PRESET_MESHES
from step_cases import BATCH, POSITIONS, SMALL, lowered

from primepar.errors import PlanError
from primepar.operators.builder import ProgramBuilder, View, even
from primepar.operators.redistribution import moved, reblocked
from primepar.plan import padded_vocabulary, parameter_places, preset_plan
from primepar.plan.layouts import Way
from primepar.schedule import Layout, Program, load_program, save_program
from primepar.schedule.effects import effects
from primepar.schedule.meaning import Meaning, Place
from primepar.schedule.program import Compute, Cut, Free, Join
from primepar.verify import verify_program

ON_FOUR = [name for name, ranks in PRESET_MESHES if ranks == 4]


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("name", ON_FOUR)
def test_the_step_of_a_preset_is_proved(family: str, name: str) -> None:
    report = verify_program(lowered(name, 4, family))
    assert [result.counterexample or result.reason for result in report.properties] == [None] * 6
    assert report.verdict == "proved"


@pytest.mark.parametrize(("name", "family"), [("3d", "gpt2"), ("M2,stationary", "llama")])
def test_the_step_of_eight_devices_is_proved(name: str, family: str) -> None:
    assert verify_program(lowered(name, 8, family)).verdict == "proved"


def test_the_step_of_one_device_sends_nothing_and_is_proved() -> None:
    program = lowered("data", 1, "bloom")
    kinds = {type(node) for node in program.programs[0]}
    assert kinds == {Compute, Free}
    assert verify_program(program).verdict == "proved"


# Where the parameters are


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("name", ON_FOUR)
def test_what_is_new_ends_where_the_old_was(family: str, name: str) -> None:
    program, config = lowered(name, 4, family), SMALL[family]
    assert program.initial is not None
    assert program.final is not None
    states = {
        f"{parameter}{suffi}" for parameter in config.parameter_shapes for suffi in ("", ".m", ".v")
    }
    for before, after in zip(program.initial, program.final, strict=True):
        given = [block for block in before if block.partition("[")[0] in states]
        assert {block.partition("[")[0] for block in given} == states
        assert {block.partition("[")[0] for block in before} - states == {"tokens", "targets"}
        new = [block.replace("[", ".new[") for block in given]
        assert sorted(after) == sorted([*new, "loss[0]", "gradient.norm[0]"])


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("name", ON_FOUR)
def test_parameters_start_in_the_layouts_of_the_plan(family: str, name: str) -> None:
    plan, program = preset_plan(name, SMALL[family], 4), lowered(name, 4, family)
    for parameter, place in parameter_places(plan).items():
        shape = list(plan.model.parameter_shapes[parameter])
        for shared_table, dim in (("embedding.token", 0), ("head.weight", 1)):
            if parameter == shared_table:
                shape[dim] = padded_vocabulary(plan)
        cuts = even(shape, place.layout.grid)
        for rank, blocks in enumerate(place.layout.held):
            expected = {cell for index in blocks for cell in cells(cuts, index)}
            assert elements(program, rank, parameter) == expected


def cells(cuts: tuple[tuple[int, ...], ...], index: tuple[int, ...]) -> set[tuple[int, ...]]:
    """Every element of a block."""
    covered: set[tuple[int, ...]] = {()}
    for line, inde_of in zip(cuts, index, strict=True):
        covered = {(*cell, i) for cell in covered for i in range(line[inde_of], line[inde_of + 1])}
    return covered


def elements(program: Program, rank: int, tensor: str) -> set[tuple[int, ...]]:
    """Every element of a tensor that a rank starts with."""
    meaning, covered = Meaning(program), set[tuple[int, ...]]()
    assert program.initial is not None
    for block in program.initial[rank]:
        if block.partition("[")[0] == tensor:
            place = meaning.place(block)
            assert place is not None
            covered |= cells(place.box, (0,) * len(place.box))
    return covered


# What the names mean


def test_the_weight_of_a_tied_head_is_the_table_with_its_dims_exchanged() -> None:
    program = lowered("summa", 4, "gpt2")
    assert program.phases is not None
    assert program.phases["head.forward"].reads == ("norm[M,N]", "head/W[K,N]")
    assert program.phases["head.gradient"].writes == "head/dW[K,N]"
    assert Meaning(program).real("head/W") == "embedding.token"
    fan_in = program.phases["embedding.token.fan-in"]
    assert fan_in.reads == ("embedding/dtable[V,K]", "head/dW.home[V,K]")


def test_a_gated_activation_has_two_columns_for_each_of_its_own() -> None:
    meaning = Meaning(lowered("megatron", 4, "llama"))
    assert meaning.place("blocks.0.act[0,1]") == Place("blocks.0.act", ((0, 32), (6, 12)))
    assert meaning.place("blocks.0.act/dI[0,1]") == Place("blocks.0.act/dI", ((0, 32), (12, 24)))
    assert meaning.place("blocks.0.fc1/O[0,1]") == Place("blocks.0.fc1/O", ((0, 32), (12, 24)))


def test_attention_on_parts_of_a_sequence_reads_the_keys_of_the_whole_of_it() -> None:
    program = lower_step(preset_plan("data", SMALL["llama"], 4), 2, 4)
    phases, meaning, name = program.phases or {}, Meaning(program), "blocks.0.attention"
    assert phases[f"{name}.forward"].reads[1] == f"{name}/KV.sequences[M/2,K]"
    assert phases[f"{name}.backward.keys"].writes == f"{name}/dKV[M/2,K]"
    assert phases[f"{name}.backward"].reads[-1] == f"{name}/dKV.own[M,K]"
    boxes = {tensor: meaning.place(f"{name}/{tensor}[1,0]") for tensor in ("KV", "dKV", "dKV.own")}
    assert boxes == {
        "KV": Place(f"{name}/KV", ((2, 4), (0, 32))),
        "dKV": Place(f"{name}/dKV", ((4, 8), (0, 32))),
        "dKV.own": Place(f"{name}/dKV", ((2, 4), (0, 32))),
    }


def test_ranks_that_do_the_same_are_copies() -> None:
    program = lowered("M2,megatron", 4, "opt")
    assert program.grid is not None
    assert program.grid["blocks.0.norm1.forward"] == {"M": 2, "K": 1, "R": 2}
    assert program.grid["blocks.0.norm1.weight.update"] == {"K": 1, "R": 4}
    assert program.grid["blocks.0.act.forward"] == {"M": 2, "K": 2}
    assert program.grid["loss.forward"] == {"M": 2, "R": 2}


def test_a_gradient_of_two_parts_is_added_in_a_phase_of_its_own() -> None:
    phases = lowered("primepar", 4, "bloom").phases or {}
    assert [name for name in phases if name.endswith("fan-in")] == [
        "blocks.0.add1.fan-in", "embedding.norm.fan-in", "embedding.token.fan-in",
    ]  # fmt: skip


def test_a_step_is_a_program_file(tmp_path: Path) -> None:
    program = lowered("megatron-sp", 4, "gpt2")
    save_program(program, tmp_path / "step.json")
    assert load_program(tmp_path / "step.json") == program


# What is live


@pytest.mark.parametrize("name", ON_FOUR)
def test_at_the_end_a_rank_has_what_it_must_and_nothing_else(name: str) -> None:
    program = lowered(name, 4, "gpt2")
    ends = zip(program.initial or (), program.programs, program.final or (), strict=True)
    for rank, (before, instructions, after) in enumerate(ends):
        live = set(before)
        for node in instructions:
            if isinstance(node, Free):
                live.remove(node.block)
            else:
                live.update(effects(node, rank).writes)
        assert live == set(after)


# Blocks


def view_of(draft: ProgramBuilder, grid: tuple[int, int], *held: tuple[int, int]) -> View:
    return draft.new("x", even((4, 4), grid), [[index] for index in held], ("M", "K"))


def test_a_view_in_the_same_blocks_is_the_same() -> None:
    draft = ProgramBuilder(1)
    view = view_of(draft, (1, 1), (0, 0))
    assert reblocked(draft, view, view.cuts, "y") is view
    assert draft.programs == [[]]


def test_a_copy_gets_blocks_of_its_own() -> None:
    draft = ProgramBuilder(1)
    view = view_of(draft, (1, 1), (0, 0))
    assert reblocked(draft, view, view.cuts, "y", copy=True).name == "y"
    assert draft.programs == [[Cut("x[0,0]", ("y[0,0]",))]]
    assert draft.tensors["y"].of == "x"


def test_blocks_that_overlap_are_cut_and_joined() -> None:
    draft = ProgramBuilder(1)
    view = draft.new("x", even((4, 4), (2, 1)), [[(0, 0), (1, 0)]], ("M", "K"))
    result = reblocked(draft, view, even((4, 4), (1, 2)), "y")
    assert draft.programs[0] == [
        Cut("x[0,0]", ("y.parts[0,0]", "y.parts[0,1]")),
        Cut("x[1,0]", ("y.parts[1,0]", "y.parts[1,1]")),
        Join(("y.parts[0,0]", "y.parts[1,0]"), "y[0,0]"),
        Join(("y.parts[0,1]", "y.parts[1,1]"), "y[0,1]"),
    ]
    assert result.held == (((0, 0), (0, 1)),)
    assert [draft.tensors[name].of for name in ("y.parts", "y")] == ["x", "x"]


@pytest.mark.parametrize("shared", [False, True])
def test_what_others_need_stays_when_it_moves(shared: bool) -> None:
    rows = Layout((2, 1), (((0, 0),), ((1, 0),)))
    turned = Layout((2, 1), (((1, 0),), ((0, 0),)))
    draft = ProgramBuilder(2)
    view = view_of(draft, (2, 1), (0, 0), (1, 0))
    result = moved(draft, view, Way(rows, turned), view.cuts, "y", shared=shared)
    assert result.name == ("y" if shared else "x")
    assert result.held == turned.held
    freed_there = [node.block for node in draft.programs[0] if isinstance(node, Free)]
    assert freed_there == [f"{result.name}[0,0]"]


# What is refused


@pytest.mark.parametrize(
    ("batch", "positions", "message"),
    [
        (
            6, 4, "batch: expected a multiple or a divisor of the 4 slices of the rows in "
            "blocks.0.attention, got 6: take 8",
        ),
        (BATCH, 5, "positions: expected 1 to context=4, got 5: cut the sequences"),
        (BATCH, 0, "positions: expected 1 to context=4, got 0: cut the sequences"),
    ],
)  # fmt: skip
def test_a_step_that_does_not_fit_is_refused(batch: int, positions: int, message: str) -> None:
    with pytest.raises(PlanError) as error:
        lower_step(preset_plan("data", SMALL["opt"], 4), batch, positions)
    assert str(error.value) == message


def test_a_step_of_fewer_positions_has_fewer_rows() -> None:
    plan = preset_plan("data", SMALL["opt"], 1)
    half, whole = (
        Meaning(lower_step(plan, 2, positions)) for positions in (POSITIONS // 2, POSITIONS)
    )
    assert (half.elements("norm[0,0]"), whole.elements("norm[0,0]")) == (64, 128)
