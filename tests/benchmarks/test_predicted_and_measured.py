"""The benchmark of predicted and measured steps: the draw, measured steps, scores, the page."""

from __future__ import annotations

import pytest
import ranking_cases as cases
from distributed_ranks import on_ranks

from benchmarks import predicted_and_measured as bench
from benchmarks.executor.machine import MachineLoad
from benchmarks.ranking.draw import MODELS, base_plans, drawn
from benchmarks.ranking.measure import StepTimes
from benchmarks.ranking.report import plan_rows, score_row, text_lines
from benchmarks.ranking.results import ModelRanking, RankedPlan, RankingRun
from benchmarks.ranking.scores import (
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
    here, there = (bench.planner_of(model, load_cluster(name)) for name in ("cpu-gloo-4", "h200-8"))
    plans = drawn(model, here, 12, seed=1)
    assert plans == drawn(model, there, 12, seed=1)
    assert plans != drawn(model, here, 12, seed=2)
    assert len({tuple(given.plan.sequences.values()) for given in plans}) == 12
    times = StepTimes([1.0], [2.0])
    predicted = [bench.ranked(there, given, times).predicted for given in plans[:3]]
    fastest = bench.ranked(there, bench.named(model, there)[0], times)
    assert min(predicted) >= fastest.predicted > 0


def test_a_plan_is_a_preset_or_a_preset_with_changes() -> None:
    model = MODELS[0]
    planner, bases = bench.planner_of(model, load_cluster("h200-8")), dict(base_plans(model))
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
    """Two models of two plans on two ranks: two steps of each count, none takes no time."""
    answers = on_ranks(2, cases.measured)
    assert answers[0] == answers[1]
    assert [len(model) for model in answers[0]] == [2, 1]
    for wall, cpu in (times for model in answers[0] for times in model):
        assert len(wall) == len(cpu) == 2
        assert min(*wall, *cpu) > 0


@pytest.mark.parametrize(
    ("measured", "tau"), [((1.0, 2.0, 3.0), 1.0), ((3.0, 2.0, 1.0), -1.0), ((1.0, 3.0, 2.0), 1 / 3)]
)
def test_kendalls_tau(measured: tuple[float, ...], tau: float) -> None:
    assert kendall((4.0, 5.0, 6.0), measured) == pytest.approx(tau)


def test_the_interval_of_tau_is_wide_for_few_plans_and_none_for_one_order() -> None:
    same = tau_interval(range(8), range(8))
    assert (same.tau, same.low, same.high) == (1.0, 1.0, 1.0)
    predicted = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    few = tau_interval(predicted, [2.0, 1.0, 3.0, 5.0, 4.0, 6.0])
    many = tau_interval(predicted * 5, [2.0, 1.0, 3.0, 5.0, 4.0, 6.0] * 5)
    assert few.tau == pytest.approx(11 / 15)
    assert few.low < few.tau < few.high
    assert many.high - many.low < few.high - few.low


def test_regret_and_errors_next_to_those_of_a_constant() -> None:
    predicted, measured = [1.0, 2.0, 4.0], [2.0, 1.6, 4.0]
    assert regret(least(predicted), measured) == pytest.approx(0.25)
    assert regret(least(measured), measured) == 0
    assert blind_regret(measured) == pytest.approx(7.6 / 3 / 1.6 - 1)
    assert error(predicted, measured) == pytest.approx(0.25)
    assert constant_error(measured) == pytest.approx(0.2)


def ranking(*predicted: float) -> ModelRanking:
    """Three named plans and two drawn ones, measured as 100, 80 and 120, 60 and 90 ms."""
    walls = (0.1, 0.08, 0.12, 0.06, 0.09)
    names = ("the planner's", "megatron", "M2,megatron", "data", "summa, 50% changed")
    rows = [RankedPlan(name, {}, seconds, seconds, StepTimes([wall, wall + 0.02, wall], [0.1] * 3))
            for name, seconds, wall in zip(names, predicted, walls, strict=True)]  # fmt: skip
    return ModelRanking("a GPT", 1000, 64, rows[:3], rows[3:])


def test_a_planner_that_is_wrong_is_stated_to_miss_its_targets() -> None:
    right, wrong = ranking(0.05, 0.08, 0.12, 0.06, 0.09), ranking(0.05, 0.08, 0.12, 0.09, 0.06)
    assert score_row(right) == ["a GPT", "+1.00 (+1.00 to +1.00)",
                                "+1.00 (+1.00 to +1.00)", "+0.00", "+1.00", "0%", "67%", "0%",
                                "25%", "0%", "17%", "missed"]  # fmt: skip
    assert score_row(wrong) == ["a GPT", "-1.00 (-1.00 to -1.00)",
                                "-1.00 (-1.00 to -1.00)", "+0.00", "+1.00", "50%", "67%", "0%",
                                "25%", "42%", "17%", "missed"]  # fmt: skip
    assert plan_rows(right)[0] == ["data", "60.0", "2", "60.0", "2", "60.0", "1", "100.0"]


def test_the_page_has_every_plan_and_states_the_load() -> None:
    load = MachineLoad("2026-01-01", "a machine", {"torch": "2"}, 2, 100.0, 150.0, 100.0, 3.0)
    run = RankingRun(load, "# a profile", True, 7, 3, [ranking(0.05, 0.08, 0.12, 0.06, 0.09)])
    text = page(run)
    assert "The machine was loaded, so times are no evidence for or against a target." in text
    for name in ("the planner's", "megatron", "M2,megatron", "data", "summa, 50% changed"):
        assert text.count(f"\n| {name} | ") == 1
    assert "```toml\n# a profile\n```" in text
    line = "a GPT: the planner's plan takes 1.25 of plain Megatron's time; predicted was 0.62."
    assert line in text
    assert line in list(text_lines(run))


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        (("--rounds", "1"), "--rounds: expected 2 or more, got 1"),
        (("--plans", "1"), "--plans: expected 2 or more, got 1"),
        (("--cluster", "none.toml"), "[Errno 2] No such file or directory: 'none.toml'"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    options: tuple[str, ...],
    refusal: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["predicted_and_measured", *options])
    with pytest.raises(SystemExit) as refused:
        bench.main()
    assert refused.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"predicted_and_measured: error: {refusal}"
