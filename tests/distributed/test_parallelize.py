"""`parallelize` on real processes: transformers' classes and a user's own against one process."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import parallel_cases as cases
import pytest
from distributed_ranks import on_ranks
from lowered_steps import shared_folder
from parallel_models import BATCH, POSITIONS, REGIONS, own
from profiles import IS_LONG, long

from primepar.distributed import Region
from primepar.distributed.parallel.layer_plan import boundaries_of
from primepar.operators.averaging import lower_row_average
from primepar.operators.single_operator import lower_linear
from primepar.partition import parse_sequence
from primepar.reference.check import memories
from primepar.reference.emulator.executor import emulate
from primepar.schedule import Linear

PAGE = Path(__file__).resolve().parents[2] / "docs" / "parallelize.md"
MODULES = ("transformers.models.llama.modeling_llama", "transformers.models.gpt2.modeling_gpt2")
GROUPED = {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}
ONE = {"num_hidden_layers": 1}
MODELS: dict[str, tuple[Any, ...]] = {
    "llama P2x2": ("llama", GROUPED | ONE, "P2x2"),
    "gpt2 megatron": ("gpt2", {"n_layer": 1}, "megatron", (), 2, "SGD"),
}
"""Model, changes of its config, plan, regions, steps, optimizer."""
WIDER: dict[str, tuple[Any, ...]] = {
    "llama megatron": ("llama", {}, "megatron", (), 20),
    "llama megatron-sp": ("llama", {}, "megatron-sp"),
    "llama data": ("llama", {}, "data"),
    "llama summa": ("llama", GROUPED, "summa", (), 20),
    "llama P2x2, 20 steps": ("llama", GROUPED, "P2x2", (), 20),
    "llama tied": ("llama", {"tie_word_embeddings": True} | GROUPED, "M2,megatron"),
    "llama of two sequences": ("llama", GROUPED, {"*.self_attn.*": "M2,K2", "*": "P2x2"}),
    "llama of other columns": ("llama", GROUPED, {"lm_head": "N4", "*": "K2,M2"}),
    "gpt2 P2x2": ("gpt2", {}, "P2x2", (), 20),
    "gpt2 M2,megatron": ("gpt2", {}, "M2,megatron"),
    "gpt2 stationary": ("gpt2", {}, "stationary"),
    "gpt2 untied": ("gpt2", {"tie_word_embeddings": False}, "megatron"),
    "gpt2 N4 head": ("gpt2", {"tie_word_embeddings": False}, {"lm_head": "N4", "*": "P2x2"}),
    "gpt2 partly": ("gpt2", {}, {"*.attn.*": None, "lm_head": None, "*": "megatron"}),
    "llama of a plan": ("llama", {}, "plan"),
    "gpt2 of a plan": ("gpt2", {"tie_word_embeddings": False}, "plan"),
    "own M2,megatron": ("own", {}, "M2,megatron", REGIONS),
    "own P2x2": ("own", {}, "P2x2", REGIONS),
    "own without regions": ("own", {}, "P2x2"),
    "own of three sequences": (
        "own",
        {},
        {"blocks.0.qkv": "K2,M2", "*.out": None, "*": "P2x2"},
    ),
}
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "a layer without a sequence": (
        ("own", {}, {"blocks.*": "P2x2"}),
        "PlanError: mix (and 1 others): expected a sequence for every linear layer, the plan has "
        'none: write "mix": "K4", or None to leave it whole on every rank',
    ),
    "a pattern without a layer": (
        ("own", {}, {"blocks.0.fc1x": "K4", "*": "P2x2"}),
        "PlanError: pattern 'blocks.0.fc1x': expected one that matches linear layers of the "
        "module, got none among mix, blocks.0.qkv, blocks.0.out, ...: write blocks.0.fc1",
    ),
    "a pattern of a name inside": (
        ("own", {}, {"fc1": "K4", "*": "P2x2"}),
        "PlanError: pattern 'fc1': expected one that matches linear layers of the module, got none "
        "among mix, blocks.0.qkv, blocks.0.out, ...: write *.fc1",
    ),
    "another number of ranks": (
        ("own", {}, "P3x3"),
        "PlanError: mix: expected a sequence of the mesh's 4 ranks, got 'P3x3' of 9: write "
        "another, or take another mesh",
    ),
    "a mesh of some ranks": (
        ("own", {}, "P2x2", 2),
        "MeshError: mesh: expected all 4 ranks of torch.distributed in their order, got 2: take 4, "
        "or init_device_mesh(device, (4,))",
    ),
    "a tied layer": (
        ("gpt2", {}, {"*": "P2x2"}),
        "PlanError: lm_head: expected a layer with a weight of its own, its weight is also "
        'transformer.wte.weight: write "lm_head": None first, and it stays whole on every rank',
    ),
    "heads that do not divide": (
        ("llama", GROUPED, "megatron"),
        "ShapeError: model.layers.0.self_attn.k_proj: expected a number of heads that its 4 parts "
        "divide, got 2 heads of 8 columns: choose a sequence with fewer slices of K, or None for "
        "all layers of this region",
    ),
    "a size that a sequence does not divide": (
        ("uneven", {"leaving": 33}, "P2x2"),
        "ShapeError: fc2.weight: expected dim 1 to be a multiple of its 2 slices, got 33: pad it "
        "to 34",
    ),
    "output columns that a region does not divide": (
        ("uneven", {"inner": 30}, "megatron", 4, (Region(("fc1",), ("fc2",)),)),
        "ShapeError: fc1: expected output columns that the 4 parts of its region divide, got 30: "
        "pad them to 32, or choose a sequence with fewer slices of K for the layers that enter it",
    ),
    "input columns that a region does not divide": (
        ("uneven", {"leaving": 30}, {"*": "K4"}, 4, (Region(("fc1",), ("fc2",)),)),
        "ShapeError: fc2: expected input columns that the 4 parts of its region divide, got 30: "
        "pad them to 32, or choose a sequence with fewer slices of K for the layers that enter it",
    ),
    "a region of which a part is whole": (
        ("llama", {}, {"*.o_proj": None, "*": "megatron"}),
        "PlanError: model.layers.0.self_attn.o_proj: expected a sequence, as columns are split "
        "between it and model.layers.0.self_attn.q_proj, got None: give both a sequence, or both "
        "None",
    ),
}


MISUSED = {
    "twice": "ConfigError: module: expected one that is not parallelized, got one that is: call "
    "parallelize once",
    "columns": "ShapeError: out: expected an input of 16 columns (1 of 2 parts of 32), got "
    "(2, 4, 32): see Region for where columns are split",
    "dtype": "ConfigError: fc1: expected an input of the weight's torch.float64, got "
    "torch.float32: convert the module to one dtype",
    "other rows": "ShapeError: forward: expected the same rows on ranks 0 and 1, which share them, "
    "got others: give each rank local_rows(module, batch), with one batch on all ranks",
    "an old optimizer": "ConfigError: AdamW: expected the parameters of the parallelized module, "
    "got 7 of 11 of before parallelize, which train nothing: make the optimizer after parallelize",
    "a state of rank 0 alone": "MeshError: full_state_dict: expected all ranks to call it, got "
    "none on rank 1, 2, 3 in 0.5 s: call it on every rank, and save what rank 0 gets",
    "a state with sections of rank 0 alone": "MeshError: state_dict: expected all ranks to call "
    "it, got none on rank 1, 2, 3 in 0.5 s: call it on every rank, and save what rank 0 gets",
    "a copy": "ConfigError: module: expected one that is not parallelized to copy or to pickle, "
    "got one that is: copy it before parallelize, or keep full_state_dict(module)",
    "an evaluation of rank 0 alone": "MeshError: forward without gradients: expected all ranks to "
    "call it, got none on rank 1 in 0.5 s: evaluate and generate on every rank",
    "a folder without a state": "ConfigError: save_pretrained: expected the full state, got none: "
    "call full_state_dict(module) on every rank, and save_pretrained(folder, state_dict=states) on "
    "rank 0",
    "rows": "ShapeError: batch: expected a multiple of 2 sequences, one part for each group of "
    "ranks, got 1: take 2",
    "not parallelized": "ConfigError: Block: expected a parallelized module, got one that is not: "
    "call parallelize first",
    "device": "MeshError: fc2.bias: expected all parameters on one device of the mesh's kind "
    "'cpu', got 'meta': call module.to(device) first",
    "dtypes": "ConfigError: module: expected linear layers of one dtype, got torch.float32, "
    "torch.float64: call module.to(dtype) first",
    "a parameter of a region": "PlanError: scale: expected the same gradient on ranks with the "
    "same rows, got another on rank 1: use it outside of regions, and give these ranks one "
    "torch.manual_seed for dropout",
    "a seed of each rank": "PlanError: 0.weight: expected the same gradient on ranks with the same "
    "rows, got another on rank 1: use it outside of regions, and give these ranks one "
    "torch.manual_seed for dropout",
}
CHECKPOINTED = [("megatron", False), ("megatron", True), *([("P2x2", False)] * IS_LONG)]
HALF = [("megatron", "converted"), ("megatron", "autocast")]
"""Plan of a module whose parameters are converted after `parallelize`, or that runs under it."""
HIDDEN = 32
SENDING = {
    "megatron": ("K4", "N4"),
    "megatron-sp": ("Ks4", "Ns4"),
    "P2x2": ("P2x2", "P2x2"),
}
"""Plan of a block -> the sequences of layers that enter a region, and of those that leave it."""
COUNTED = [*SENDING] if IS_LONG else ["megatron", "P2x2"]
PLACED = {
    "back": True,
    "as torch cuts": True,
    "full": True,
    "moved": True,
    "norm": 0.0,
    "skewed": "PlanError: layout 0:(0, 0) 1:(1, 1) 2:(1, 0) 3:(0, 1): expected one that placements "
    "on a mesh of shape (2, 2) express, got another order of blocks: take device_mesh_of(layout), "
    "which has the ranks in that order",
    "partial": "PlanError: expected placements Shard or Replicate, got P(sum): reduce it first",
    "size": "MeshError: mesh of shape (2, 2): expected the 9 ranks of the layout, got 4: take a "
    "mesh of all of them",
    "several": "PlanError: layout 0:(0,),(2,) 1:(1,),(3,): expected one block on every rank, and "
    "each block on equally many, as DTensor has: take another sequence",
}


def recipe() -> str:
    """The program of the page."""
    (code,) = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return str(code)


@cache
def results() -> dict[tuple[str, str], Any]:
    """Everything that one world of four ranks is asked, on rank 0."""
    pytest.importorskip("transformers")
    asked: dict[tuple[str, str], Any] = {
        ("compared", name): given for name, given in (MODELS | (WIDER if IS_LONG else {})).items()
    }
    asked |= {("refused", name): given for name, (given, _) in REFUSED.items()}
    asked |= {("misused", ""): (), ("placed", ""): ()}
    asked |= {("counted", name): (name,) for name in COUNTED}
    asked |= {("checkpointed", f"{plan} {way}"): (plan, way) for plan, way in CHECKPOINTED}
    asked |= {("in_bfloat16", f"{plan} {way}"): (plan, way) for plan, way in HALF}
    asked |= {("weighted", "M2,megatron"): ("M2,megatron",)}
    asked |= {("states", ""): (), ("recipe", ""): (recipe(),)}
    of_folder = ("states", "recipe")

    def fill(folder: Path) -> list[Any]:
        calls = [
            (work, (*given, str(folder)) if work in of_folder else given)
            for (work, _), given in asked.items()
        ]
        answers: list[Any] = on_ranks(4, cases.several, calls, imported=MODULES)[0]
        return answers

    return dict(zip(asked, shared_folder("parallel", fill)[1], strict=True))


@pytest.mark.parametrize("name", [*MODELS, *(WIDER if IS_LONG else {})])
def test_logits_gradients_and_training_equal_one_process(name: str) -> None:
    errors = results()["compared", name]
    assert max(errors.values()) < 1e-9, errors


@long
def test_other_uses_equal_one_process() -> None:
    """Other optimizers, and generation."""
    kinds = ("SGD", "NAdam", "Adagrad", "RMSprop")
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("optimized", (kind, plan)) for kind in kinds for plan in ("P2x2", "megatron")
    ]
    calls += [("generated", ())]
    *errors, same = on_ranks(4, cases.several, calls, imported=MODULES)[0]
    assert same
    assert max(max(differences.values()) for differences in errors) < 1e-7, errors


@pytest.mark.parametrize(("plan", "reentrant"), CHECKPOINTED)
def test_activations_may_be_computed_again(plan: str, reentrant: bool) -> None:
    errors = results()["checkpointed", f"{plan} {reentrant}"]
    assert max(errors.values()) < 1e-9, errors


@pytest.mark.parametrize(("plan", "way"), HALF)
def test_the_dtype_is_that_of_the_weight_or_of_autocast(plan: str, way: str) -> None:
    dtype, error = results()["in_bfloat16", f"{plan} {way}"]
    assert dtype == "torch.bfloat16"
    assert error < 0.05


def test_labels_that_are_left_out_unequally_are_refused_and_can_be_weighted() -> None:
    error, refusal, by_place, uncounted = results()["weighted", "M2,megatron"]
    assert error < 1e-6
    assert uncounted == "accepted" * 2
    assert by_place == refusal
    assert refusal == (
        "PlanError: labels: expected equally many that are counted in each group of rows, got 6 "
        "and 16: multiply the loss by loss_weight(module, labels), and its mean is that of all "
        "labels"
    )


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_named_in_one_line(name: str) -> None:
    assert results()["refused", name] == REFUSED[name][1]


@pytest.mark.parametrize("name", MISUSED)
def test_wrong_uses_are_named_in_one_line(name: str) -> None:
    assert results()["misused", ""][name] == MISUSED[name]


@pytest.mark.parametrize("plan", COUNTED)
def test_a_block_sends_what_its_programs_predict(plan: str) -> None:
    """Attention and MLP, forward and backward; the programs are run on emulated devices."""
    assert results()["counted", plan] == [(sent, sent) for sent in predicted(*SENDING[plan])]


def test_a_block_under_megatron_sends_the_four_all_reduces_of_its_paper() -> None:
    """Shoeybi et al., figure 4: two in forward and two in backward, of all rows and columns."""
    ring = Fraction(2 * (4 - 1), 4)
    assert predicted(*SENDING["megatron"]) == [4 * ring * BATCH * POSITIONS * HIDDEN] * 4


def test_sequence_parallelism_sends_more_where_all_ranks_have_all_rows() -> None:
    """It gathers again what every rank has: inputs, also for the gradients of weights, and dO."""
    plain, split = (predicted(*SENDING[plan]) for plan in ("megatron", "megatron-sp"))
    assert [more / less for more, less in zip(split, plain, strict=True)] == [Fraction(7, 4)] * 4


def predicted(column: str, row: str) -> list[Fraction]:
    """Elements that each rank sends for a block whose layers have these sequences."""
    bounds = boundaries_of(4, {"qkv": column, "out": row}, {"qkv": column})
    stream, split = bounds.stream, bounds.split
    rows, sent = BATCH * POSITIONS, [Fraction(0)] * 4
    layers = [
        lower_linear(parse_sequence(text), Linear(rows, N, K), source, target=target, turned=True)
        for text, source, target, widths in (
            (column, stream, split, ((HIDDEN, 3 * HIDDEN), (HIDDEN, 4 * HIDDEN))),
            (row, split, stream, ((HIDDEN, HIDDEN), (4 * HIDDEN, HIDDEN))),
        )
        for N, K in widths
    ]
    programs = [program for layer in layers for program in (layer.forward, layer.backward)]
    # Biases of qkv and fc1, of fc2, and the norms' weights and biases: each is averaged over rows.
    vectors = [(split, 3 * HIDDEN // bounds.parts), (split, 4 * HIDDEN // bounds.parts)]
    vectors += [(stream, HIDDEN)] * 5
    averages = [lower_row_average(*vector)[0] for vector in vectors if bounds.row_groups > 1]
    for program in (*programs, *averages):
        run = emulate(program, memories(program))
        sent = [before + more for before, more in zip(sent, run.sent, strict=True)]
    return sent


def test_layouts_are_placements_where_these_exist() -> None:
    assert results()["placed", ""] == PLACED


def test_states_have_ordinary_names_and_pass_between_plans() -> None:
    """One layer has sections, which no DTensor expresses in the ordinary shape."""
    state = results()["states", ""]
    whole = {"blocks.0.qkv.weight", "blocks.0.qkv.bias"}
    linear = {name for name in own(1).state_dict() if "norm" not in name} - {"embed.weight"}
    assert (state["names"], state["shapes"], state["equal"]) == (True, True, [True] * 3)
    assert set(state["sharded"]) == linear - whole


def test_the_recipe_of_the_page_trains() -> None:
    assert len(recipe().splitlines()) <= 30
    printed, shape = results()["recipe", ""]
    assert re.fullmatch(r"loss 5\.\d{3} of the rows of rank 0\n", printed)
    assert shape == (256, 64)


@pytest.mark.parametrize("size", [4] if IS_LONG else [1])
def test_torch_compile_changes_nothing(size: int) -> None:
    backend, plan = ("eager", "P1x1") if size == 1 else ("aot_eager", "P2x2")
    for errors in on_ranks(size, cases.compiled, backend, plan):
        assert max(errors.values()) < 1e-12, errors
