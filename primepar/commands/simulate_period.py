"""`primepar simulate PLAN --average-every H`: what it prints of local SGD on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from primepar.api.resolve_target import Target
from primepar.commands.amounts import amount
from primepar.commands.plan_targets import TrainingStep, refuse_for_plan
from primepar.errors import TargetError
from primepar.plan import Plan
from primepar.plan.cluster import Cluster
from primepar.plan.simulator.step import PeriodSimulation


def refuse_with_period(target: str, resolved: Target, options: Mapping[str, object]) -> None:
    """Raise `TargetError` for a target that is no plan, or for an option that needs one program."""
    if not isinstance(resolved, Plan):
        raise TargetError(
            f"--average-every: expected a plan, whose replicas are averaged, got {target}: leave "
            "--average-every out"
        )
    if options["--output"] is not None:
        raise TargetError(
            "--output: expected none together with --average-every, which simulates two programs, "
            f"got {options['--output']}: leave one of the two out"
        )
    refuse_for_plan(target, {name: options[name] for name in ("--side", "--shape")})


def period_summary(
    target: str, cluster: Cluster, dtype: str, run: PeriodSimulation, step: TrainingStep
) -> dict[str, object]:
    """What `--json` prints: seconds and bytes, of a step with its share of an average."""
    return {
        "target": target,
        "cluster": cluster.name,
        "dtype": dtype,
        "step": {"batch": step.batch, "positions": step.positions,
                 "tokens_per_second": step.batch * step.positions / run.seconds},
        "replicas": run.replicas,
        "period": run.period,
        "seconds": run.seconds,
        "sent": float(run.sent),
        "local_step": {"seconds": run.local.seconds, "sent": float(max(run.local.sent))},
        "average": {"seconds": run.average.seconds, "sent": float(max(run.average.sent))},
    }  # fmt: skip


def period_lines(
    target: str, cluster: Cluster, dtype: str, run: PeriodSimulation, step: TrainingStep
) -> Iterator[str]:
    """The same as text."""
    devices = len(run.local.peak)
    yield f"{target} on {devices} devices of {cluster.name}, {dtype}, {step}"
    every = "step" if run.period == 1 else f"{run.period} steps"
    yield f"  {run.replicas} replicas, averaged after every {every}"
    for name, part in (("local step", run.local), ("average", run.average)):
        sent = amount(float(max(part.sent)), "B")
        yield f"  {name:10} {amount(part.seconds, 's')}, {sent} sent per device"
    yield f"  per step   {amount(run.seconds, 's')}, {amount(float(run.sent), 'B')} sent per device"
    yield f"  tokens     {step.batch * step.positions / run.seconds:.4g} per second"
