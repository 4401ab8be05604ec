"""A whole training step under a plan as one program: what is in it, and that it is proved.

What the program of a step sends and holds is what emulated devices do; all is predicted.

Plans that `primepar plan` wrote go through every command that takes one.
"""

from __future__ import annotations

import json
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import training_cases as cases
from command import run
from distributed_ranks import on_ranks
from hypothesis import HealthCheck, given, settings
from lowered_steps import lower_step, shared_folder
from partitioned_cases import (
    PRESET_MESHES,
    SHAPES,
    drawn_batch,
    drawn_parameters,
    plan_apart,
    planned_steps,
)
from profiles import IS_LONG, few
from step_cases import (
    BATCH,
    POSITIONS,
    SMALL,
    as_planned,
    calls_of_step,
    held_by,
    lowered,
    sent_by,
)

from primepar.errors import PlanError
from primepar.operators.builder import ProgramBuilder, View, even
from primepar.operators.redistribution import moved, reblocked
from primepar.plan import Plan, load_plan, padded_vocabulary, parameter_places, preset_plan
from primepar.plan.layouts import Way
from primepar.plan.search import ranked
from primepar.plan.simulator.account import accounting
from primepar.reference.emulator.model import EmulatedModel
from primepar.schedule import Layout, Program, load_program, save_program
from primepar.schedule.effects import effects
from primepar.schedule.meaning import Meaning, Place
from primepar.schedule.program import Compute, Cut, Free, Join
from primepar.verify import verify_program

ON_FOUR = [name for name, ranks in PRESET_MESHES if ranks == 4]
PAIRS = [
    (name, family)
    for place, name in enumerate(ON_FOUR)
    for number, family in enumerate(SMALL)
    if IS_LONG or (place + number) % 2 == 0
]
"""Every preset with two families, and every family with half of the presets; long, with all."""


@pytest.mark.parametrize(("name", "family"), PAIRS)
def test_the_step_of_a_preset_is_proved(name: str, family: str) -> None:
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


@pytest.mark.parametrize(("name", "family"), PAIRS)
def test_what_is_new_ends_where_the_old_was(name: str, family: str) -> None:
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


@pytest.mark.parametrize(("name", "family"), PAIRS)
def test_parameters_start_in_the_layouts_of_the_plan(name: str, family: str) -> None:
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


RANDOM_PLANS = 6 if IS_LONG else 2
PARTS = [
    ("data", 4, 1), ("data", 4, 2), ("megatron-sp", 4, 1), ("stationary", 4, 1), ("primepar", 4, 1),
    ("3d", 8, 1), ("M2,megatron", 8, 1),
]  # fmt: skip
"""Presets with so few sequences that ranks have parts of one in their attention."""


def assert_counted_alike(plan: Plan, batch: int, positions: int) -> None:
    """What a step sends and holds: predicted, read from the program, counted by the emulator."""
    program, planned = lower_step(plan, batch, positions), as_planned(plan, batch, positions)
    model = EmulatedModel(plan.model, plan, drawn_parameters(plan.model))
    step = model.update(*drawn_batch(plan.model, batch, positions), 0.01)
    assert step.sent == sent_by(calls_of_step(program)) == sent_by(calls_of_step(planned))
    assert step.peak == held_by(program)
    account = accounting(plan, batch, positions, "float32")
    assert [4 * elements for elements in step.peak] == list(account.held)
    assert [ceil(4 * elements) for elements in step.sent] == list(account.sent)
    assert all(map(int.__le__, step.peak, held_by(planned)))


@few
@pytest.mark.parametrize(("mesh", "family"), list(product(PRESET_MESHES, SMALL)))
def test_a_step_sends_and_holds_what_is_predicted(mesh: tuple[str, int], family: str) -> None:
    name, ranks = mesh
    assert_counted_alike(preset_plan(name, SMALL[family], ranks), BATCH, POSITIONS)


@few
@pytest.mark.parametrize(("name", "ranks", "batch"), PARTS)
def test_attention_on_parts_of_a_sequence_sends_the_same(name: str, ranks: int, batch: int) -> None:
    plan = preset_plan(name, SMALL["llama"], ranks)
    assert_counted_alike(plan, batch, POSITIONS)
    before_passes = lower_step(plan, batch, POSITIONS, passes=())
    kinds = {call.kind for calls in calls_of_step(before_passes) for call in calls}
    assert {"AllGather", "ReduceScatter"} <= kinds
    assert verify_program(lower_step(plan, batch, POSITIONS)).verdict == "proved"


@pytest.mark.parametrize(("family", "ranks"), [("llama", 4), *([("gpt2", 16)] if IS_LONG else [])])
def test_linear_operators_that_leave_blocks_apart_send_the_same(family: str, ranks: int) -> None:
    plan = plan_apart(SHAPES[family], ranks)
    batch = plan.row_cuts.smallest_batch(POSITIONS)
    assert_counted_alike(plan, batch, POSITIONS)
    assert verify_program(lower_step(plan, batch, POSITIONS)).verdict == "proved"


@settings(max_examples=RANDOM_PLANS, suppress_health_check=list(HealthCheck))
@given(planned_steps())
def test_under_any_plan_a_step_is_proved_and_sends_the_same(planned: tuple[Plan, int, int]) -> None:
    assert_counted_alike(*planned)
    assert verify_program(lower_step(*planned)).verdict == "proved"


def test_one_call_less_is_seen() -> None:
    program = lowered("data", 4, "gpt2")
    everyone = calls_of_step(program)
    assert sent_by([calls[:-1] for calls in everyone]) != sent_by(everyone)


CONFIG = {
    "model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 4, "n_positions": 16,
    "vocab_size": 257, "activation_function": "gelu_new", "tie_word_embeddings": False,
}  # fmt: skip
ASKED, STEPS = cases.BATCH, 3


SPACES = ("paper", "all")


@pytest.fixture(scope="module")
def plans() -> dict[str, Path]:
    """Plans of four devices, one from a search in each space."""
    written: dict[str, Path] = shared_folder("searched", search_both)[1]
    return written


def search_both(folder: Path) -> dict[str, Path]:
    model, written = folder / "config.json", {}
    model.write_text(json.dumps(CONFIG))
    asked = ("plan", str(model), "--cluster", "h200-8", "--devices", "4", "--batch", str(ASKED))
    for space in SPACES:
        path = written[space] = folder / f"{space}.json"
        with patch.object(ranked, "MOST_SIMULATED", 0):
            done = run(*asked, "--dtype", "float32", "--space", space, "-o", str(path))
        assert (done.code, done.err) == (0, "")
    return written


@pytest.fixture(params=SPACES)
def written(request: pytest.FixtureRequest, plans: dict[str, Path]) -> Path:
    return plans[request.param]


def test_it_is_shown_with_its_sequences(written: Path) -> None:
    done = run("show", str(written))
    assert (done.code, done.err) == (0, "")
    assert all(text in done.out for text in set(load_plan(written).sequences.values()))


def test_its_step_is_proved(written: Path) -> None:
    done = run("verify", str(written), "--json")
    assert (done.code, json.loads(done.out)["verdict"]) == (0, "proved")


def test_its_step_is_simulated(written: Path) -> None:
    done = run("simulate", str(written), "--cluster", "h200-8", "--dtype", "float32", "--json")
    report = json.loads(done.out)
    assert (done.code, report["ranks"], report["fits"]) == (0, 4, True)
    assert report["step"] == {"batch": ASKED, "positions": 16, "layers_left_out": 0,
                            "tokens_per_second": ASKED * 16 / report["seconds"]}  # fmt: skip


def four_ranks(folder: Path, plans: dict[str, Path]) -> list[Any]:
    """Train under each plan on this rank, in float64."""
    return [cases.train(folder / space, plan=str(path), steps=STEPS, evaluate_every=0)
            for space, path in plans.items()]  # fmt: skip


def test_they_train_as_one_process_does(plans: dict[str, Path], tmp_path: Path) -> None:
    plan, alone = plans["paper"], tmp_path / "alone.json"
    one = {"ranks": 1, "sequences": dict.fromkeys(load_plan(plan).sequences, "")}
    alone.write_text(json.dumps(json.loads(plan.read_text()) | one))
    assert cases.train(tmp_path / "one", plan=str(alone), steps=STEPS, evaluate_every=0) == 0
    assert on_ranks(4, four_ranks, tmp_path, plans) == [[0, 0]] * 4
    expected = cases.losses(tmp_path / "one")
    assert list(expected) == [1, 2, 3]
    for space in SPACES:
        assert cases.losses(tmp_path / space) == pytest.approx(expected, rel=1e-12)
