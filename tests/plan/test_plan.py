"""A plan fits its model and its mesh, survives its file, and refuses in one line what does not.

A plan that was searched and written trains as one device does.

Which batches a plan takes, and which ranks share a sequence then.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitioned_cases import SHAPES, difference, step
from plan_cases import GPT2, LLAMA, NAMED, WIDE, changed, small
from planner_cases import TWO_LEVELS, cluster
from step_cases import BATCH, SMALL

import primepar
from primepar.errors import PlanError
from primepar.models.config import GPTConfig, ModelConfig
from primepar.plan import Plan, ends, load_plan, preset_plan, save_plan, sequence_lines
from primepar.plan.cluster import Link
from primepar.plan.plan import schema
from primepar.plan.search.planner import Planner
from primepar.plan.search.search import search
from primepar.plan.search.sequence_space import SpaceName
from primepar.plan.search.within import WithinLimits

SCHEMA = Path(primepar.__file__).parent / "plan" / "plan.schema.json"
LABELS = (
    "B, M, N, K, Ks, Ns, S2x2, S2x3, Sd2x2x2, Sk2x2x2, T2x2x2, C2x2x2, D2x2x2, Cr2x2x2, "
    "G2x2x2, Gi2x2x2, Gw2x2x2, Gr2x2x2, P2x2, Os2x2, Is2x2, Ws2x2, "
    "Ob2x2x2, Ib2x2x2, Wb2x2x2"
)


def refusal(plan: Plan, **sequences: str) -> str:
    """What a plan with other sequences is refused with."""
    with pytest.raises(PlanError) as caught:
        Plan(model=plan.model, ranks=plan.ranks, sequences=changed(plan, **sequences))
    return str(caught.value)


# What fits


def test_a_plan_gives_the_sequence_of_every_operator() -> None:
    plan = small()
    assert [operator.name for operator in plan.operators] == list(plan.sequences)
    assert str(plan.sequence("blocks.0.fc2")) == "N4"
    assert plan.sequence("blocks.0.norm1").ranks == 4


def test_a_sequence_is_read_as_it_is_spelt() -> None:
    plan = small("data", 2)
    other = Plan(model=WIDE, ranks=2, sequences=changed(plan, qkv=" K ", norm1="R"))
    assert str(other.sequence("blocks.0.qkv")) == "K2"
    assert str(other.sequence("blocks.0.norm1")) == "R2"


# What does not


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ({"qkv": "K"}, "expected a sequence for the 4 devices of $.ranks, got 2 in 'K2': their "
         "lengths multiply to the number of devices"),
        ({"qkv": "P900x900"}, "expected a sequence for the 4 devices of $.ranks, got 810000 in "
         "'P900x900': their lengths multiply to the number of devices"),
        ({"qkv": "R4"}, f"sequence 'R4': expected primitives like {LABELS}, got 'R4' (R is for "
         "operators that are not linear, in a plan)"),
        ({"qkv": "Q4"}, f"sequence 'Q4': expected primitives like {LABELS}, got 'Q4'"),
        ({"qkv": "B4"}, "expected no split of B, as rows of all sequences of a batch are one dim "
         "here, got 'B4': write M4 for B4"),
        ({"norm1": "B2,R2"}, "expected no split of B, as rows of all sequences of a batch are one "
         "dim here, got 'B2,R2': write M2 for B2"),
        ({"norm1": "M2,N2"}, "expected no split of N, as this operator sums over no dim, got "
         "'M2,N2': write R2 for N2"),
        ({"act": "Ks2,M2"}, "expected one block of O on every device between phases, as only a "
         "linear operator may leave several, got 2 in 'Ks2,M2': put Ks, Ns, C, Cr or D last"),
        ({"fc1": "K0"}, "ByOutput: expected one positive length per side (s), got (0,)"),
    ],
)  # fmt: skip
def test_a_sequence_that_is_none_for_its_operator_is_refused(
    sequences: dict[str, str], message: str
) -> None:
    (name,) = sequences
    assert refusal(small(), **sequences) == f'$.sequences["blocks.0.{name}"]: {message}'


@pytest.mark.parametrize(
    ("model", "ranks", "sequences", "message"),
    [
        (GPT2, 5, {"proj": "N5"}, '["blocks.0.proj"]: expected N=48 to be a multiple of its 5 '
         "slices in 'N5': take a sequence that cuts N in fewer, or a model with N=50"),
        (GPT2, 5, {"fc1": "K5"}, '["blocks.0.fc1"]: expected K=192 to be a multiple of its 5 '
         "slices in 'K5': take a sequence that cuts K in fewer, or a model with K=195"),
        (GPT2, 5, {"norm2": "K5"}, '["blocks.0.norm2"]: expected hidden=48 to be a multiple of '
         "the 5 slices of the columns in 'K5': take a sequence that cuts them in fewer, or a "
         "model with hidden=50"),
        (GPT2, 5, {"embedding": "K5"}, '["embedding"]: expected hidden=48 to be a multiple of '
         "the 5 slices of the columns in 'K5': take a sequence that cuts them in fewer, or a "
         "model with hidden=50"),
        (GPT2, 8, {"attention": "K8"}, '["blocks.0.attention"]: expected heads=12 to be a multiple '
         "of the 8 slices of the columns in 'K8': take a sequence that cuts them in fewer, or a "
         "model with heads=16"),
        (LLAMA, 2, {"attention": "K2"}, '["blocks.0.attention"]: expected kv_heads=3 to be a '
         "multiple of the 2 slices of the columns in 'K2': take a sequence that cuts them in "
         "fewer, or a model with kv_heads=4"),
        (GPT2, 5, {"act": "K5"}, '["blocks.0.act"]: expected ffn=192 to be a multiple of the 5 '
         "slices of the columns in 'K5': take a sequence that cuts them in fewer, or a model with "
         "ffn=195"),
    ],
)  # fmt: skip
def test_a_size_that_the_slices_do_not_divide_is_refused(
    model: ModelConfig, ranks: int, sequences: dict[str, str], message: str
) -> None:
    assert refusal(small("data", ranks, model), **sequences) == f"$.sequences{message}"


def test_a_plan_names_every_operator_of_its_model() -> None:
    plan = small()
    one = {name: text for name, text in plan.sequences.items() if name != "blocks.0.fc2"}
    with pytest.raises(PlanError) as caught:
        Plan(model=WIDE, ranks=4, sequences=one)
    assert str(caught.value) == (
        "$.sequences: expected a sequence for every operator of the model, got none for "
        'blocks.0.fc2: for example, add "blocks.0.fc2": "M4"'
    )
    with pytest.raises(PlanError) as caught:
        Plan(model=WIDE, ranks=4, sequences={})
    assert str(caught.value) == (
        "$.sequences: expected a sequence for every operator of the model, got none for "
        'embedding and 13 more: for example, add "embedding": "M4"'
    )


@pytest.mark.parametrize(
    ("name", "write"),
    [("blocks.1.qkv", "blocks.0.qkv"), ("embeding", "embedding"), ("?", "one like blocks.0.norm1")],
)
def test_a_plan_names_no_other_operator(name: str, write: str) -> None:
    plan = small()
    message = f"expected an operator of this model of 1 layer, got {name!r}: write {write}"
    with pytest.raises(PlanError) as caught:
        plan.sequence(name)
    assert str(caught.value) == message
    with pytest.raises(PlanError) as caught:
        Plan(model=WIDE, ranks=4, sequences=plan.sequences | {name: "M4"})
    assert str(caught.value) == f"$.sequences: {message}"


def test_another_batch_than_the_planned_is_refused() -> None:
    plan = preset_plan("data", WIDE, 2, batch=4)
    plan.check_batch(4, 4)
    with pytest.raises(PlanError) as caught:
        plan.check_batch(8, 4)
    assert str(caught.value) == (
        "batch: expected 4, as the plan states, got 8: take that, or a plan for this one"
    )


def test_a_plan_for_another_mesh_is_refused() -> None:
    plan = small()
    plan.check_ranks(4)
    with pytest.raises(PlanError) as caught:
        plan.check_ranks(8)
    assert str(caught.value) == (
        "plan: expected 4 devices, as it was made for, got 8: start 4 processes, or make a plan "
        "for 8"
    )


def test_a_plan_for_another_model_is_refused() -> None:
    plan = small(model=GPTConfig(layers=1, hidden=16, heads=4))
    plan.check_model(ModelConfig.of("gpt", layers=1, hidden=16, heads=4, context=128,
                                    vocabulary=256))  # fmt: skip
    with pytest.raises(PlanError) as caught:
        plan.check_model(GPTConfig(layers=1, hidden=32, heads=4))
    assert str(caught.value) == (
        "plan: expected a model with hidden=16, as it was made for, got hidden=32: take that "
        "model, or make a plan for this one"
    )


# Files


@pytest.mark.parametrize("batch", [None, 8])
def test_a_plan_survives_its_file(tmp_path: Path, batch: int | None) -> None:
    plan = preset_plan("tesseract", LLAMA, 1, batch)
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan
    assert list(tmp_path.iterdir()) == [tmp_path / "plan.json"]


def test_the_shipped_schema_is_current() -> None:
    fix = "write it anew: python -m primepar.plan > primepar/plan/plan.schema.json"
    assert json.loads(SCHEMA.read_text()) == schema(), fix


def written(tmp_path: Path, **changes: Any) -> Path:
    """File of a small plan with some of its top fields changed; None takes one away."""
    save_plan(small(), tmp_path / "plan.json")
    fields = json.loads((tmp_path / "plan.json").read_text()) | changes
    kept = {name: value for name, value in fields.items() if value != "gone"}
    (tmp_path / "plan.json").write_text(json.dumps(kept))
    return tmp_path / "plan.json"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": 0}, "Expected `int` >= 1 - at `$.ranks`"),
        ({"recompute": ["norm3"]}, "$.recompute: expected some of norm1, qkv, attention, proj, "
         "add1, norm2, fc1, act, fc2, add2, got 'norm3': write norm2"),
        ({"recompute": ["act", "act"]}, "$.recompute: expected some of norm1, qkv, attention, "
         "proj, add1, norm2, fc1, act, fc2, add2, got 'act' twice: write it once"),
        ({"recompute": ["blocks"]}, "$.recompute: expected some of norm1, qkv, attention, proj, "
         "add1, norm2, fc1, act, fc2, add2, got 'blocks': write one of these"),
        ({"recompute": []}, '$.recompute: expected "full", "selective", or names of operators of a '
         'layer, got []: leave it out, or write ["norm1"]'),
        ({"recompute": "half"}, "Invalid enum value 'half' - at `$.recompute`: write \"full\", "
         '"selective", or names of operators of a layer, as ["norm1"]'),
        ({"ranks": "four"}, "Expected `int`, got `str` - at `$.ranks`"),
        ({"ranks": 5000}, "Expected `int` <= 4096 - at `$.ranks`"),
        ({"ranks": 8}, '$.sequences["embedding"]: expected a sequence for the 8 devices of '
         "$.ranks, got 4 in 'N4': their lengths multiply to the number of devices"),
        ({"batch": 0}, "Expected `int` >= 1 - at `$.batch`"),
        ({"version": 2}, "Invalid enum value 2 - at `$.version`: write 1"),
        ({"format": "plan"}, 'Invalid enum value \'plan\' - at `$.format`: write "primepar-plan"'),
        ({"format": "gone"}, "Object missing required field `format`: write "
         '"format": "primepar-plan"'),
        ({"version": "gone"}, "Object missing required field `version`: write \"version\": 1"),
        ({"model": []}, "Expected `object`, got `array` - at `$.model`"),
        ({"model": "gone"}, "Object missing required field `model`"),
        ({"sequences": {"head": 4}}, "Expected `str`, got `int` - at `$.sequences[...]`"),
        ({"sequences": "gone"}, "Object missing required field `sequences`"),
        ({"devices": 4}, "Object contains unknown field `devices`"),
        ({"model": {"family": "gpt"}}, "Object missing required field `layers` - at `$.model`"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_plan_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert str(caught.value) == f"{path}: {message}"


def test_a_model_that_is_none_is_refused_at_its_place(tmp_path: Path) -> None:
    path = written(tmp_path)
    fields = json.loads(path.read_text())
    fields["model"]["kv_heads"] = 5
    path.write_text(json.dumps(fields))
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert str(caught.value) == (
        f"{path}: $.model: kv_heads: expected a divisor of heads=72, got 5"
    )


MODEL_FIELDS = (
    "family, layers, hidden, heads, kv_heads, head_dim, ffn, context, vocabulary, norm, epsilon, "
    "activation, gated, attention_bias, mlp_bias, positions, rope_theta, embedding_norm, tied, "
    "embedding_dropout, dropout, attention_dropout, priced"
)


@pytest.mark.parametrize(
    ("key", "write"),
    [("layrs", "write layers"), ("atention_dropout", "write attention_dropout"),
     ("notes", "leave it out")],
)  # fmt: skip
def test_an_unknown_key_of_the_model_is_refused(tmp_path: Path, key: str, write: str) -> None:
    path = written(tmp_path)
    fields = json.loads(path.read_text())
    fields["model"][key] = 2
    path.write_text(json.dumps(fields))
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    message = f"$.model: expected one of {MODEL_FIELDS}, got {key!r}: {write}"
    assert str(caught.value) == f"{path}: {message}"


def test_the_schema_asks_for_what_the_reader_asks_for() -> None:
    defined = schema()["$defs"]
    assert isinstance(defined, dict)
    assert defined["Plan"]["required"] == ["format", "version", "model", "ranks", "sequences"]
    assert defined["Plan"]["additionalProperties"] is False
    assert defined["ModelConfig"]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"format": ', "expected JSON, got broken text: Input data was truncated"),
        (b"\xff", "expected JSON in UTF-8, got the byte 0xff at 0: save it as UTF-8"),
        (b'{"model": {"x": ' + b"[" * 100_000, "expected JSON, got it nested too deeply"),
    ],
    ids=["cut", "bytes", "deep"],
)
def test_broken_json_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert str(caught.value) == f"{path}: {message}"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        load_plan(tmp_path / "plan.json")
    assert str(caught.value) == (
        f"{tmp_path}/plan.json: expected a plan file, got no such file or directory"
    )


def test_a_plan_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        save_plan(small(), tmp_path / "none" / "plan.json")
    assert str(caught.value) == (
        f"{tmp_path}/none/plan.json: expected a place to write to, got no such file or directory"
    )
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(PlanError) as caught:
        save_plan(small(), tmp_path / "plan.json")
    assert str(caught.value) == (
        f"{tmp_path}/plan.json: expected a place to write to, got is a directory"
    )
    assert list(tmp_path.iterdir()) == [tmp_path / "plan.json"]


@pytest.mark.parametrize(
    ("family", "space"), list(zip(SHAPES, cycle(["paper", "all"]), strict=False))
)
def test_written_plans_have_the_loss_and_gradients_of_one_device(
    family: str, space: SpaceName, tmp_path: Path
) -> None:
    model = SMALL[family]
    planner = Planner.of(model, TWO_LEVELS, 4, BATCH, None, space)
    within = WithinLimits(planner)
    smallest = within.fastest(within.least_memory)
    assert smallest is not None
    for result in (search(planner), smallest):
        save_plan(result.plan, tmp_path / "plan.json")
        plan = load_plan(tmp_path / "plan.json")
        assert plan == result.plan
        assert difference(plan, BATCH, model.context) < 1e-9


@pytest.mark.parametrize("family", SHAPES)
def test_predicted_bytes_are_those_counted_where_nothing_is_redistributed(family: str) -> None:
    """A vocabulary that is cut evenly has no padding."""
    model = replace(SMALL[family], vocabulary=24)
    a_second = cluster(Link(4, 0.0, 1.0, False), overlap=False)
    result = search(Planner.of(model, a_second, 4, BATCH, None, "paper"))
    assert (
        sum(
            sum(result.planner.redistribution_seconds(name, result.choices))
            for name in result.choices
        )
        == 0
    )
    sent = step(result.plan, BATCH, model.context).sent
    assert result.seconds == pytest.approx(4 * float(max(sent)), rel=1e-12)
    assert len(set(sent)) == 1


NAME = "blocks.0.attention"


@pytest.mark.parametrize(
    ("name", "ranks", "every", "attention"),
    [("megatron", 4, 1, 1), ("megatron-sp", 4, 4, 1), ("summa", 9, 3, 3), ("tesseract", 8, 4, 4),
     ("3d", 8, 4, 4), ("data", 8, 8, 8)],
)  # fmt: skip
def test_a_plan_knows_in_how_many_slices_it_cuts_the_rows(
    name: str, ranks: int, every: int, attention: int
) -> None:
    cuts = small(name, ranks).row_cuts
    assert (cuts.every, cuts.attention) == (every, {"blocks.0.attention": attention})


def test_cuts_of_the_rows_by_two_operators_count_together() -> None:
    plan = small("megatron", 6)
    other = Plan(model=WIDE, ranks=6, sequences=changed(plan, qkv="M3,K2", norm1="M2,R3"))
    assert (plan.row_cuts.every, other.row_cuts.every) == (1, 6)


@pytest.mark.parametrize(
    ("name", "ranks", "positions", "batches"),
    [
        ("megatron", 4, 3, [1, 2, 3, 4, 5, 6, 7, 8]),
        ("megatron-sp", 4, 4, [1, 2, 3, 4, 5, 6, 7, 8]),
        ("megatron-sp", 4, 6, [2, 4, 6, 8]),
        ("data", 4, 4, [1, 2, 4, 8]),
        ("data", 4, 6, [2, 4, 8]),
        ("data", 4, 1, [4, 8]),
        ("data", 6, 1, [6]),
        ("data", 6, 6, [1, 2, 3, 6]),
    ],
)
def test_attention_takes_whole_sequences_or_equal_parts_of_one(
    name: str, ranks: int, positions: int, batches: list[int]
) -> None:
    cuts = small(name, ranks).row_cuts
    assert [b for b in range(1, 9) if cuts.refusal(b, positions) is None] == batches
    assert cuts.smallest_batch(positions) == batches[0]
    small(name, ranks).check_batch(batches[0], positions)


SLICES = "expected a multiple or a divisor of the 4 slices of the rows in blocks.0.attention"


@pytest.mark.parametrize(
    ("batch", "positions", "message"),
    [
        (0, 4, "expected 1 sequence or more, got 0: take 1"),
        (-3, 2, "expected 1 sequence or more, got -3: take 2"),
        (6, 4, f"{SLICES}, got 6: take 8"),
        (3, 3, f"{SLICES}, got 3: take 4"),
        (1, 6, "expected rows in a multiple of 4, as the operators cut them, got 6, 1 x 6 tokens: "
         "take 2"),
        (2, 3, "expected rows in a multiple of 4, as the operators cut them, got 6, 2 x 3 tokens: "
         "take 4"),
    ],
)  # fmt: skip
def test_a_batch_that_cannot_be_cut_is_refused(batch: int, positions: int, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        small("data", 4).check_batch(batch, positions)
    assert str(caught.value) == f"batch: {message}"


def test_a_planned_batch_has_sequences_of_the_context_of_the_model() -> None:
    plan = small("data", 8)
    assert Plan(model=WIDE, ranks=8, batch=2, sequences=plan.sequences).batch == 2
    with pytest.raises(PlanError) as caught:
        Plan(model=WIDE, ranks=8, batch=1, sequences=plan.sequences)
    assert str(caught.value) == (
        "$.batch: expected rows in a multiple of 8, as the operators cut them, got 4, 1 x 4 "
        "tokens: take 2"
    )


# Who shares a sequence


@pytest.mark.parametrize(
    ("attention", "batch", "lines"),
    [
        ("M4", 1, ((0, 1, 2, 3),)),
        ("M4", 2, ((0, 1), (2, 3))),
        ("M4", 4, ((0,), (1,), (2,), (3,))),
        ("M4", 8, ((0,), (1,), (2,), (3,))),
        ("K4", 1, ((0,), (1,), (2,), (3,))),
        ("M2,K2", 1, ((0, 2), (1, 3))),
        ("K2,M2", 1, ((0, 1), (2, 3))),
        ("R2,M2", 1, ((0, 1), (2, 3))),
        ("M2,R2", 1, ((0, 2), (1, 3))),
        ("Is2x2", 1, ((0, 3), (1, 2))),
        ("Ws2x2", 1, ((0, 2), (3, 1))),
    ],
)
def test_a_line_has_the_parts_of_a_sequence_in_their_order(
    attention: str, batch: int, lines: tuple[tuple[int, ...], ...]
) -> None:
    plan = small("data", 4)
    other = Plan(model=WIDE, ranks=4, sequences=changed(plan, attention=attention))
    assert sequence_lines(ends(other, NAME).output, batch) == lines


@given(st.sampled_from(NAMED), st.integers(1, 9))
def test_every_rank_is_in_one_line_with_every_part_of_its_sequence(
    named: tuple[str, int], least: int
) -> None:
    plan = preset_plan(named[0], WIDE, named[1])
    batch = plan.row_cuts.smallest_batch(WIDE.context, least)
    layout = ends(plan, NAME).output
    lines, parts = sequence_lines(layout, batch), max(1, layout.grid[0] // batch)
    assert sorted(rank for line in lines for rank in line) == list(range(plan.ranks))
    for line in lines:
        rows, columns = zip(*(layout.held[rank][0] for rank in line), strict=True)
        assert len(set(columns)) == 1
        assert rows == tuple(range(rows[0], rows[0] + parts))
        assert rows[0] % parts == 0
