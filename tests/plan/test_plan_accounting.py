"""What a plan sends and holds by its account is what simulated and emulated devices count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

import pytest
from hypothesis import HealthCheck, given, settings
from lowered_steps import lower_step
from msgspec.structs import replace as replaced
from partitioned_cases import SHAPES, planned_steps
from planner_cases import cluster
from profiles import IS_LONG

from primepar.errors import PlanError
from primepar.operators.step_options import StepOptions
from primepar.plan import Plan, preset_plan
from primepar.plan.cluster import BYTES, Link, load_cluster
from primepar.plan.kernels import BlockBytes, step_options
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import Given
from primepar.plan.search.search import search
from primepar.plan.simulator import account as account_module
from primepar.plan.simulator.account import (
    Shortened,
    ShortRun,
    StepAccount,
    accounting,
)
from primepar.plan.simulator.step import simulate_step
from primepar.plan.simulator.work import sent
from primepar.reference.check import memories
from primepar.reference.emulator.executor import emulate
from primepar.schedule.ledger import peak
from primepar.schedule.program import (
    AllReduce,
    AllToAll,
    Broadcast,
    Compute,
    Free,
    ISend,
    Program,
    Reduce,
)

RANDOM_PLANS = 60 if IS_LONG else 2
WAYS: dict[str, dict[str, object]] = {
    "plain": {},
    "sharded": {"sharded_optimizer": True},
    "selective": {"recompute": "selective"},
    "full": {"recompute": "full"},
    "operators": {"recompute": ("norm1", "attention", "fc1")},
}
FEW = [
    ("gpt2", "1f1b:2x2,megatron", 4, 2, "plain", "bfloat16"),
    ("gpt2", "data", 2, 5, "sharded", "bfloat16"),
    ("llama", "megatron-sp", 2, 4, "operators", "bfloat16"),
    ("opt", "zb-h1:2x2,data", 4, 2, "selective", "float32"),
]
PRESETS = [
    ("megatron", 2), ("data", 2), ("megatron-sp", 4), ("primepar", 4), ("summa", 4),
    ("M2,megatron", 4), ("stationary", 4), ("tesseract", 8), ("1f1b:2x4,megatron", 4),
    ("gpipe:2x3,primepar", 8), ("interleaved-1f1b:2x4,M2,megatron", 8), ("zb-h1:2x4,data", 4),
]  # fmt: skip
ALL = [(family, name, ranks, 9, way, dtype) for family in ("gpt2", "llama") for name, ranks in
       PRESETS for way in WAYS for dtype in ("float32", "bfloat16")]  # fmt: skip


def plan_of(family: str, name: str, ranks: int, layers: int, way: str) -> Plan:
    model = replace(SHAPES[family], layers=layers)
    return replaced(preset_plan(name, model, ranks), **WAYS[way])


def counted(program: Program, dtype: str) -> StepAccount:
    """The account of a whole program, all layers of it."""
    size = BlockBytes(program, dtype)
    return StepAccount(
        tuple(
            ceil(sum(sent(node, rank, size) for node in nodes))
            for rank, nodes in enumerate(program.programs)
        ),
        tuple(peak(program, rank, size) for rank in range(program.ranks)),
    )


@pytest.mark.parametrize(("family", "name", "ranks", "layers", "way", "dtype"),
                         ALL if IS_LONG else FEW)  # fmt: skip
def test_it_is_what_simulated_and_emulated_devices_count(
    family: str, name: str, ranks: int, layers: int, way: str, dtype: str
) -> None:
    plan = plan_of(family, name, ranks, layers, way)
    batch = plan.row_cuts.smallest_batch(4)
    account = accounting(plan, batch, 4, dtype)
    program = lower_step(plan, batch, 4, options=step_options(dtype))
    simulated = simulate_step(plan, batch, 4, load_cluster("h200-8"), dtype, program=program)
    assert account == StepAccount(tuple(map(ceil, simulated.sent)), tuple(simulated.peak))
    emulated = emulate(program, memories(program))
    assert account.held == tuple(emulated.held(BYTES[dtype], max(4, BYTES[dtype])))
    if dtype == "float32":
        assert account.sent == tuple(ceil(4 * elements) for elements in emulated.sent)


@settings(max_examples=RANDOM_PLANS, suppress_health_check=list(HealthCheck))
@given(planned_steps())
def test_of_any_plan_it_is_that_of_its_program(planned: tuple[Plan, int, int]) -> None:
    """Also without wide sums in `test_plan_step_sent`."""
    program = lower_step(*planned, options=step_options("bfloat16"))
    assert accounting(*planned, "bfloat16") == counted(program, "bfloat16")


def test_equal_layers_are_lowered_once_and_others_are_not() -> None:
    """Also where the first layers differ from the others, so that there are two runs."""
    plan = plan_of("gpt2", "megatron", 2, 10, "plain")
    first = preset_plan("data", plan.model, 2).sequences
    mixed = plan.sequences | {
        name: text
        for name, text in first.items()
        if name.startswith(tuple(f"blocks.{layer}." for layer in range(5)))
    }
    assert Shortened.of(plan).runs == (ShortRun(0, left_out=6),)
    plan = replaced(plan, sequences=mixed)
    shortened = Shortened.of(plan)
    assert shortened.runs == (ShortRun(0, left_out=1), ShortRun(4, left_out=1))
    assert shortened.plan.model.layers == 8
    assert accounting(plan, 4, 4, "bfloat16") == counted(
        lower_step(plan, 4, 4, options=step_options("bfloat16")), "bfloat16"
    )


def test_what_holds_far_too_much_is_not_counted_with_all_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, layers = plan_of("gpt2", "data", 2, 6, "plain"), list[int]()

    def unsure(short: Shortened, program: Program, dtype: str) -> tuple[StepAccount, bool]:
        layers.append(short.plan.model.layers)
        return StepAccount((0, 0), (100, 100)), not short.runs

    monkeypatch.setattr(account_module, "account_of", unsure)
    for bound in (95, 80):
        accounting(plan, 2, 4, "float32", bound)
    assert layers == [4, 6, 4]


def test_what_the_search_adds_up_is_no_less() -> None:
    """All that is kept is counted at once there, so that it bounds what a device holds."""
    for family, name, dtype in (("gpt2", "v100-8x4", "float32"), ("llama", "h200-8", "bfloat16")):
        model = replace(SHAPES[family], layers=3, context=32)
        result = search(Planner.of(model, load_cluster(name), 2, 4, dtype, "paper"))
        assert result.account is not None
        assert max(result.held) <= result.memory, (family, dtype)


def test_on_many_devices_a_result_has_the_bound_and_nothing_counted() -> None:
    """Where no program is lowered."""
    on = cluster(Link(128, 0.0, 1.0, False))
    model = replace(SHAPES["llama"], layers=1)
    planner = Planner.of(model, on, 128, 128, "bfloat16", "paper")
    plan = preset_plan("data", model, 128)
    result = Given.with_sequences(planner, plan.sequences).result
    assert result.account is None
    assert result.held == (ceil(result.memory),) * 128
    assert result.sent == ()


@pytest.mark.parametrize("spoil", ["a free less", "a message more", "a block wider"])
def test_a_program_that_holds_or_sends_more_is_seen(spoil: str) -> None:
    plan = plan_of("gpt2", "M2,megatron", 4, 1, "plain")
    program = lower_step(plan, 4, 4, options=StepOptions())
    account = counted(program, "bfloat16")
    nodes = list(program.programs[1])
    spoilt = program
    if spoil == "a free less":
        kept = tuple(node for node in nodes if not isinstance(node, Free))
        spoilt = replaced(program, programs=(program.programs[0], kept, *program.programs[2:]))
    elif spoil == "a message more":
        reduction = next(node for node in nodes if isinstance(node, AllReduce))
        lists = (program.programs[0], (reduction, *nodes), *program.programs[2:])
        spoilt = replaced(program, programs=lists)
    else:
        tensors = dict(program.tensors or {})
        table = "embedding.token"
        tensors[table] = replaced(tensors[table], wide=True)
        spoilt = replaced(program, tensors=tensors)
    other = counted(spoilt, "bfloat16")
    assert (other.sent[1] > account.sent[1]) == (spoil == "a message more")
    assert (other.held[1] > account.held[1]) == (spoil != "a message more")


def _calls() -> Iterator[tuple[object, int, int]]:
    """Instructions with a rank and the bytes that it sends; a block has 12 bytes."""
    yield ISend(1, "x", request="r"), 0, 12
    yield Compute(("x",), "y"), 0, 0
    yield AllReduce((0, 1, 2), block="x", also=("y",)), 1, 32
    chain = Broadcast((2, 0, 1), block="x", root=0)
    yield from ((chain, rank, amount) for rank, amount in ((0, 12), (1, 12), (2, 0)))
    to_root = Reduce((2, 0, 1), block="x", root=0)
    yield from ((to_root, rank, amount) for rank, amount in ((0, 0), (1, 12), (2, 12)))
    yield AllToAll((0, 1, 2), blocks=("a", "b", "c"), into=("d", "e", "f")), 2, 24


def test_a_ring_and_a_chain_send_what_their_hops_carry() -> None:
    for node, rank, amount in _calls():
        assert sent(node, rank, lambda _: 12) == amount, (node, rank)  # type: ignore[arg-type]


def test_a_batch_that_the_plan_does_not_divide_has_no_account() -> None:
    with pytest.raises(PlanError) as caught:
        accounting(preset_plan("data", SHAPES["opt"], 8), 3, 4, "float32")
    assert str(caught.value) == (
        "batch: expected a multiple or a divisor of the 8 slices of the rows in "
        "blocks.0.attention, got 3: take 4"
    )
