"""The price of a plan with stages, micro-batches, shards or recomputation, operator by operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from primepar.models.config import flops_per_token
from primepar.plan.accounting.account import MOST_COUNTED, StepAccount, accounting
from primepar.plan.cost.linear import Cost
from primepar.plan.pipeline.computed_again import Repeated, repeated
from primepar.plan.pipeline.given_pipeline import given_pipeline
from primepar.plan.pipeline.pipeline_cost import Pipeline
from primepar.plan.pipeline.sharded_seconds import seconds_for_parameters
from primepar.plan.pipeline.splits import Splits
from primepar.plan.pipeline.stage import ChosenOption
from primepar.plan.plan import Plan, recomputed_words
from primepar.plan.search.axes import seconds_by_axis
from primepar.plan.search.explain import Baseline, ChosenSequence, Explanation, folded

MOST_PASSES_COUNTED = 512
"""Most layers times micro-batches for which the step's program is lowered and counted."""


def explain_pipeline(splits: Splits, plan: Plan, batch: int) -> Explanation:
    """Explain a plan next to the best split of the same devices. Raises what pricing raises."""
    given = given_pipeline(splits, plan, batch)
    fastest = splits.ranked()[0]
    model, cluster = plan.model, splits.cluster
    chosen = list(_choices(given))
    total = {choice.operator: _all(choice) for choice in _choices(fastest)}
    compared = [
        replace(
            choice,
            sequence=plan.sequences.get(choice.operator, choice.sequence),
            more=_all(choice) - total.get(choice.operator, 0.0),
        )
        for choice in chosen
    ]
    account = _account(plan, batch, splits.dtype)
    held = (ceil(given.memory),) * plan.ranks if account is None else account.held
    speed, peak = batch * model.context / given.seconds, cluster.rate(splits.dtype).peak
    fullest = max(given.stage_bytes, key=sum)
    terms = {term: sum(choice.terms[term] for choice in chosen) for term in Cost._fields}
    moving = sum(choice.moving for choice in chosen)
    split, fits = fastest.split, fastest.memory <= cluster.memory
    name = f"{split.stages} x {split.replicas} x {split.parts}"
    waiting = max(0.0, given.seconds - sum(map(_all, chosen)))
    return Explanation(
        model=model.family,
        cluster=cluster.name,
        devices=plan.ranks,
        batch=batch,
        positions=model.context,
        dtype=splits.dtype,
        space=splits.space,
        seconds=given.seconds,
        priced=given.seconds,
        simulated=False,
        hidden_sums=0.0,
        tokens_per_second=speed,
        mfu=speed * flops_per_token(model) / (plan.ranks * peak),
        peak=peak,
        terms=terms | fullest._asdict(),
        moving=moving,
        memory=given.memory,
        limit=cluster.memory,
        fits=max(held) <= cluster.memory,
        held=held,
        counted=account is not None,
        gap=0.0,
        sent=() if account is None else account.sent,
        baseline=None,
        best=Baseline(name, fastest.seconds, fastest.memory, fits),
        stages=_stages(given),
        waiting=waiting,
        choices=tuple(folded(compared)),
        axes=seconds_by_axis(chosen, waiting),
        only_priced=model.priced.what if model.priced else None,
    )


def _account(plan: Plan, batch: int, dtype: str) -> StepAccount | None:
    """What is counted in the step's program; None where that would be large."""
    passes = plan.model.layers * plan.micro_batches
    if plan.ranks > MOST_COUNTED or passes > MOST_PASSES_COUNTED:
        return None
    return accounting(plan, batch, plan.model.context, dtype)


def _stages(given: Pipeline) -> str:
    options = given.options
    shards = ", optimizer states in shards" if options.shard == "optimizer" else ""
    again = (
        "" if options.recompute == "none" else f", recompute {recomputed_words(options.recompute)}"
    )
    return (
        f"{options.schedule} of {given.split.stages} x {given.microbatches} stages x micro-batches"
        f"{shards}{again}: times are means over stages"
    )


def _choices(given: Pipeline) -> Iterator[ChosenSequence]:
    """The operators of all chunks. What is received from another stage moves to the first."""
    first = 0
    for chunk, received in zip(given.chunks, (0.0, *given.boundaries), strict=True):
        runs = repeated(chunk.stage.operators, given.options.recompute)
        for chosen in chunk.stage.chosen:
            yield _choice(given, runs, chosen, first, received)
            received = 0.0
        first += sum(count for _, count in chunk.layers)


def _choice(
    given: Pipeline,
    runs: Repeated,
    chosen: ChosenOption,
    first: int,
    received: float,
) -> ChosenSequence:
    cost, options = chosen.cost, given.options
    again, moves = (chosen.name in names for names in (runs.again, runs.received))
    sends = again and runs.sends
    often, once = seconds_for_parameters(cost._asdict(), options.shard)
    update = cost.update if options.shard == "none" else cost.shard_update
    times, stages = given.microbatches, given.split.stages
    messages = cost.communication + often + sends * cost.forward_communication
    states = cost.states
    if options.shard != "none" and cost.parameters:
        states *= cost.shard / cost.parameters
    priced = cost._replace(
        compute=times * (cost.compute + again * cost.forward) / stages,
        communication=times * messages / stages,
        reduction=(once - update) / stages,
        update=update / stages,
        states=states,
    )
    moved = chosen.forward + chosen.backward + received + moves * chosen.forward
    return ChosenSequence(
        operator=_name(chosen.name, first),
        layers=1,
        sequence=chosen.candidate.text,
        terms=priced._asdict(),
        seconds=priced.compute + priced.communication + priced.reduction + priced.update,
        moving=times * moved / stages,
        kept=priced.parameters + priced.gradients + priced.states + priced.stash,
    )


def _name(name: str, first: int) -> str:
    """The name in the whole model; what a chunk receives is the `input` of its first layer."""
    if name == "stream":
        return f"blocks.{first}.input"
    block, _, rest = name.partition(".")
    if block != "blocks":
        return name
    number, _, operator = rest.partition(".")
    return f"blocks.{first + int(number)}.{operator}"


def _all(choice: ChosenSequence) -> float:
    return choice.seconds + choice.moving
