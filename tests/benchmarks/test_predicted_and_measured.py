"""The benchmark of predicted and measured steps: the draw, measured steps, scores, the page."""

from __future__ import annotations

import pytest
import ranking_cases as cases
from distributed_ranks import on_ranks

from benchmarks import predicted_and_measured as benchmark
from benchmarks.bench import BenchRun, MachineLoad, text
from benchmarks.predicted_and_measured import (
    MODELS,
    ProfileRow,
    RankedPlan,
    RankingScores,
    StepTimes,
    base_plans,
    drawn,
    scored,
)
from benchmarks.scores import (
    blind_regret,
    constant_error,
    error,
    kendall,
    least,
    regret,
    tau_interval,
)
from docs.render_ranking import page
from primepar.plan.cluster import load_cluster


def test_the_draw_is_the_same_for_a_seed_and_looks_at_no_time() -> None:
    """The same plans on clusters that differ in every time, all different, all priced."""
    model = MODELS[1]
    here, there = (
        benchmark.planner_of(model, load_cluster(name)) for name in ("cpu-gloo-4", "h200-8")
    )
    plans = drawn(model, here, 6, seed=1)
    assert plans == drawn(model, there, 6, seed=1)
    assert plans != drawn(model, here, 6, seed=2)
    assert len({tuple(given.plan.sequences.values()) for given in plans}) == 6
    times = StepTimes([1.0], [2.0])
    predicted = [benchmark.ranked(there, model.name, given, times).predicted for given in plans[:2]]
    fastest = benchmark.ranked(there, model.name, benchmark.named(model, there)[0], times)
    assert min(predicted) >= fastest.predicted > 0


def test_a_plan_is_a_preset_or_a_preset_with_changes() -> None:
    model = MODELS[0]
    planner, bases = benchmark.planner_of(model, load_cluster("h200-8")), dict(base_plans(model))
    assert {"megatron", "M2,megatron", "summa", "primepar", "data"} <= set(bases)
    options = {
        operator.name: [option.text for option in planner.catalogue.options(operator).candidates]
        for operator in planner.operators
    }
    for given in drawn(model, planner, 12, seed=1):
        name, _, changed = given.name.partition(", ")
        base, sequences = bases[name].sequences, given.plan.sequences
        outside = {operator for operator, text in base.items() if text not in options[operator]}
        different = {operator for operator, text in sequences.items() if text != base[operator]}
        assert all(sequences[operator] in options[operator] for operator in different)
        assert different <= outside or changed.endswith("% changed")


def test_steps_of_plans_alternate() -> None:
    """Two plans on two ranks: two steps of each count, none takes no time."""
    answers = on_ranks(2, cases.measured)
    assert answers[0] == answers[1]
    assert len(answers[0]) == 2
    for wall, cpu in answers[0]:
        assert len(wall) == len(cpu) == 2
        assert min(*wall, *cpu) > 0


@pytest.mark.parametrize(
    ("measured", "tau"), [((1.0, 2.0, 3.0), 1.0), ((3.0, 2.0, 1.0), -1.0), ((1.0, 3.0, 2.0), 1 / 3)]
)
def test_kendalls_tau(measured: tuple[float, ...], tau: float) -> None:
    assert kendall((4.0, 5.0, 6.0), measured) == pytest.approx(tau)


def test_the_interval_of_tau_is_wide_for_few_plans_and_none_for_one_order() -> None:
    same = tau_interval(range(8), range(8))
    assert (same.value, same.low, same.high) == (1.0, 1.0, 1.0)
    predicted = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    few = tau_interval(predicted, [2.0, 1.0, 3.0, 5.0, 4.0, 6.0])
    many = tau_interval(predicted * 5, [2.0, 1.0, 3.0, 5.0, 4.0, 6.0] * 5)
    assert few.value == pytest.approx(11 / 15)
    assert few.low < few.value < few.high
    assert many.high - many.low < few.high - few.low


def test_regret_and_errors_next_to_those_of_a_constant() -> None:
    predicted, measured = [1.0, 2.0, 4.0], [2.0, 1.6, 4.0]
    assert regret(least(predicted), measured) == pytest.approx(0.25)
    assert regret(least(measured), measured) == 0
    assert blind_regret(measured) == pytest.approx(7.6 / 3 / 1.6 - 1)
    assert error(predicted, measured) == pytest.approx(0.25)
    assert constant_error(measured) == pytest.approx(0.2)


def ranking(*predicted: float) -> tuple[list[RankedPlan], RankingScores]:
    """Three named plans and two drawn ones, measured as 100, 80 and 120, 60 and 90 ms."""
    walls = (0.1, 0.08, 0.12, 0.06, 0.09)
    names = ("the planner's", "megatron", "M2,megatron", "data", "summa, 50% changed")
    plans = [RankedPlan("GPT", name, {}, seconds, seconds,
                        StepTimes([wall, wall + 0.02, wall], [0.1] * 3))
             for name, seconds, wall in zip(names, predicted, walls, strict=True)]  # fmt: skip
    *placed, scores = scored(MODELS[0], plans)
    assert isinstance(scores, RankingScores)
    return [plan for plan in placed if isinstance(plan, RankedPlan)], scores


def test_a_planner_that_is_wrong_is_stated_to_miss_its_targets() -> None:
    (plans, right), (_, wrong) = (ranking(0.05, 0.08, 0.12, 0.06, 0.09),
                                  ranking(0.05, 0.08, 0.12, 0.09, 0.06))  # fmt: skip
    assert [*right.cells.values()] == ["GPT", "+1.00 (+1.00 to +1.00)",
                                       "+1.00 (+1.00 to +1.00)", "+0.00", "+1.00", "0%", "67%",
                                       "0%", "25%", "0%", "17%", "missed"]  # fmt: skip
    assert [*wrong.cells.values()] == ["GPT", "-1.00 (-1.00 to -1.00)",
                                       "-1.00 (-1.00 to -1.00)", "+0.00", "+1.00", "50%", "67%",
                                       "0%", "25%", "42%", "17%", "missed"]  # fmt: skip
    assert [*plans[0].cells.values()] == ["data", "60.0 #2", "60.0 #2", "60.0 #1", "100.0"]


def test_the_page_has_every_plan_and_states_the_load() -> None:
    load = MachineLoad("2026-01-01", "a machine", {"torch": "2"}, 2, 100.0, 150.0, 100.0, 3.0)
    plans, scores = ranking(0.05, 0.08, 0.12, 0.06, 0.09)
    rows: list[ProfileRow | RankedPlan | RankingScores] = [
        ProfileRow("# a profile", True), *plans, scores,
    ]  # fmt: skip
    printed = page(BenchRun({"seed": 7}, load, {"all models": [rows]}))
    assert "The machine was loaded, so times are no evidence for or against a target." in printed
    for name in ("the planner's", "megatron", "M2,megatron", "data", "summa, 50% changed"):
        assert printed.count(f"\n| {name} | ") == 1
    assert "```toml\n# a profile\n```" in printed
    line = "GPT: the planner's plan takes 1.25 of plain Megatron's time; predicted was 0.62."
    assert line in printed
    assert line in text(rows).splitlines()
