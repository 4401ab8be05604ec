"""Plans with stages, micro-batches, shards or recomputation: written from a split, and priced.

Each chunk of a split is planned with layers that are counted from 0, after the addition that its
input comes from; and without its replicas, which are the outermost cut of the rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil

from primepar.errors import PlanError
from primepar.models.config import ModelConfig, flops_per_token
from primepar.models.graph import operators
from primepar.plan.cluster import Cluster
from primepar.plan.cost.linear import Cost
from primepar.plan.pipeline.splits import Pipeline, Split, Splits, StagePart
from primepar.plan.pipeline.stage_cost import (
    EXECUTED,
    ChosenOption,
    Repeated,
    StageCost,
    TrainingOptions,
    repeated,
    seconds_for_parameters,
)
from primepar.plan.pipeline_layout import (
    PipelineLayout,
    layer_of,
    layer_operator,
    layers_by_stage,
    micro_batches,
)
from primepar.plan.plan import Plan, recomputed_words
from primepar.plan.search.explain import (
    Baseline,
    ChosenSequence,
    Explanation,
    explain,
    folded,
    seconds_by_axis,
)
from primepar.plan.search.given_plan import Given
from primepar.plan.search.planner import Planner
from primepar.plan.search.ranked import ComparedPlan, best_for, simulated
from primepar.plan.search.sequence_space import SpaceName
from primepar.plan.simulator.account import MOST_COUNTED, StepAccount, accounting


def split_plan(pipeline: Pipeline, model: ModelConfig) -> Plan:
    """Return the plan of a split under the schedule and the options that its price is for.

    Each chunk is planned with layers that are counted from 0, after the addition that its input
    comes from; and without its replicas, which are the outermost cut of the rows. A split of one
    stage and one micro-batch needs no pipeline. Raises `PlanError` for options that are only
    priced.
    """
    options, (stages, replicas, parts) = pipeline.options, pipeline.split
    if options.only_priced is not None:
        raise PlanError(
            f"expected options that a training step has, to write a plan, got "
            f"{options.only_priced}, which are only priced: leave out -o, or that option"
        )
    layout = PipelineLayout(
        schedule=options.schedule,
        stages=stages,
        micro_batches=pipeline.microbatches,
        chunks=options.chunks if options.chunks > 1 else None,
    )
    return Plan(
        model=model,
        ranks=stages * replicas * parts,
        batch=replicas * pipeline.size * pipeline.microbatches,
        pipeline=layout if stages * pipeline.microbatches > 1 else None,
        sharded_optimizer=options.shard == "optimizer",
        recompute=None if options.recompute == "none" else options.recompute,
        sequences=_sequences(pipeline, model),
    )


def _sequences(pipeline: Pipeline, model: ModelConfig) -> dict[str, str]:
    """The sequences of all operators over the devices of a stage."""
    known = {operator.name for operator in operators(model)}
    sequences: dict[str, str] = {}
    first = 0
    layers = layers_by_stage(model.layers, len(pipeline.stages))
    for stage, count in zip(pipeline.stages, layers, strict=True):
        for chosen in stage.chosen:
            name = _name(chosen.name, first)
            if name in known:
                sequences[name] = _within(pipeline.split.replicas, chosen.candidate.text)
        first += count
    return sequences


def _name(name: str, first: int) -> str:
    """The name in the whole model; what a chunk receives is the `input` of its first layer."""
    if name == "stream":
        return f"blocks.{first}.input"
    layer = layer_of(name)
    return name if layer is None else f"blocks.{first + layer}.{layer_operator(name)}"


def _within(replicas: int, text: str) -> str:
    """The sequence of an operator on all replicas; that of one device has no text.

    Replicas and a first cut of the rows are one cut: `M6,K2` of 3 replicas of `M2,K2`.
    """
    if replicas == 1 and text:
        return text
    first, _, others = text.partition(",")
    if re.fullmatch(r"M\d+", first):
        replicas, text = replicas * int(first[1:]), others
    return ",".join(filter(None, (f"M{replicas}", text)))


def given_pipeline(splits: Splits, plan: Plan, batch: int) -> Pipeline:
    """A plan as chunks of its model on a cluster. Raises `PlanError` where a cut has no price."""
    layout = plan.schedule or micro_batches(1)
    replicas = plan.stage_ranks // (plan.stage_ranks & -plan.stage_ranks)
    split = Split(layout.stages, replicas, plan.stage_ranks // replicas)
    count, first, chunks = len(layout.stage_chunks), 0, []
    options = TrainingOptions(
        shard="optimizer" if plan.sharded_optimizer else "none",
        recompute=plan.recompute or "none",
        schedule=layout.schedule,
        chunks=count // layout.stages,
    )
    size = batch // layout.micro_batches // replicas
    group = splits.group(split, size)
    for number, layers in enumerate(layers_by_stage(plan.model.layers, count)):
        place = StagePart(layers, number == 0, number == count - 1)
        chain = group.chain(replace(plan.model, layers=layers), place)
        names = {operator.name: _name(operator.name, first) for operator in chain}
        if first:  # the addition before the chunk is that at the end of the layer before
            names["stream"] = f"blocks.{first - 1}.add2"
        sequences = {
            name: _inside(plan.sequences[whole], replicas) for name, whole in names.items()
        }
        chunks.append(StageCost(group.given(place, sequences)))
        first += layers
    return Pipeline(splits.cluster, split, size, layout.micro_batches, options, tuple(chunks))


def _inside(text: str, replicas: int) -> str:
    """A sequence inside one of some replicas, which are the outermost cut of its rows."""
    if replicas == 1:
        return text
    first, _, others = text.partition(",")
    cut = re.fullmatch(r"M(\d+)", first)
    if cut is None or int(cut[1]) % replicas:
        raise PlanError(
            f"plan: expected a first cut of the rows, by a multiple of {replicas}, in every "
            f"sequence, as devices of a replica are a power of two, got {text}: write "
            f"M{replicas},... or price it with primepar simulate"
        )
    rest = int(cut[1]) // replicas
    return ",".join(filter(None, (f"M{rest}" if rest > 1 or not others else "", others)))


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
    shard, stages = given.options.shard, given.split.stages
    hidden = sum(chunk.hidden(shard)[1] for chunk in given.chunks) / stages
    waiting = max(0.0, given.seconds + hidden - sum(map(_all, chosen)))
    axes = seconds_by_axis(chosen, waiting)
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
        hidden_sums=hidden,
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
        axes=axes | {"data": max(0.0, axes["data"] - hidden)},
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


def _all(choice: ChosenSequence) -> float:
    return choice.seconds + choice.moving


def price_of(
    plan: Plan,
    cluster: Cluster,
    batch: int,
    dtype: str | None = None,
    space: SpaceName = "paper",
    tick: Callable[[str], object] = str,
) -> Explanation:
    """Explain a plan on a cluster, with what each operator takes more than in the best one.

    A step has `batch` sequences of the model's context. The best is that of a space within the
    memory of a device, where some plan is. A plan with stages, micro-batches, shards or
    recomputation is compared with the best split into these. Raises `ClusterError` for devices or a
    data type that the cluster has not, and `PlanError` for a batch that does not fit the plan.
    """
    plan.check_batch(batch, plan.model.context)
    kind = dtype or next(iter(cluster.rates))
    has_options = plan.schedule is not None or plan.sharded_optimizer
    if has_options or plan.ranks & (plan.ranks - 1):
        splits = Splits(
            plan.model, cluster, plan.ranks, batch, kind, space, choices=EXECUTED, tick=tick,
            posted=True,
        )  # fmt: skip
        return explain_pipeline(splits, plan, batch)

    planner = Planner.of(
        plan.model, cluster, plan.ranks, batch, kind, space, tick=tick, posted=True
    )
    given = Given.with_sequences(planner, plan.sequences).result
    (asked,) = simulated([ComparedPlan("", given)])
    best, *others = best_for(planner)
    return explain(asked, (best, *others), best=best)
