"""Cases of sums that lack terms: a gradient that is summed over too few ranks, or never."""

from __future__ import annotations

from msgspec.structs import replace

from primepar.partition.tesseract import Tesseract
from primepar.preflight.cases.public_case import PAIR, phase, program, public_case
from primepar.schedule import Program, Sequence, lower
from primepar.schedule.program import AllReduce, Instruction, Reduce


@public_case("completion", "NVIDIA/Megatron-LM#1446")
def final_norm_not_summed(fixed: bool) -> Program:
    """The gradient of the final norm differs between tensor-parallel ranks.

    Under sequence parallelism a norm sees the rows of its rank alone. Its weight is replicated, so
    its gradient is the sum over the ranks. In the thread this sum was not made for the final norm,
    and the copies of its weight went apart. The fixed program sums before the update.

    A replicated weight with divided rows has a partial gradient on every rank. Compare the
    gradients of replicas before the first update, not the losses.
    """
    gradient = phase("gradient", "x[M] dy[M] -> norm.grad[0]", M=2)
    update = phase("update", "norm[0] norm.grad[0] -> new[0]", R=2)
    sums = (AllReduce(PAIR, block="norm.grad[0]"),) if fixed else ()
    lists = [(gradient(M=rank), *sums, update(R=rank)) for rank in PAIR]
    return program(lists, [gradient, update], final=[("new[0]",)] * 2)


@public_case("completion", "pytorch/torchtitan#2387", "pytorch/torchtitan#4054")
def router_gradient_not_reduced(fixed: bool) -> Program:
    """The router of a mixture of experts learns from the experts of its rank alone.

    The experts are divided over tensor-parallel ranks, the router is replicated. So the gradient of
    the router's scores is a sum over the ranks. The tensors were made local without stating that
    their gradients are partial, and nothing reduced them. The copies of the router differ after one
    step. The second thread shows the same for all weights below the experts.

    Where a replicated tensor enters a divided region, its gradient leaves it as a partial sum.
    State the placement of the gradient at every such boundary, not of the value alone.
    """
    scores = phase("score gradient", "dy[0] expert[E] -> dscores[0]", E=2)
    router = phase("router gradient", "x[0] dscores[0] -> router.grad[0]", R=2)
    sums = (AllReduce(PAIR, block="dscores[0]"),) if fixed else ()
    lists = [(scores(E=rank), *sums, router(R=rank)) for rank in PAIR]
    return program(lists, [scores, router], final=[("router.grad[0]",)] * 2)


@public_case("completion", "pytorch/torchtitan#3412")
def partial_labelled_replicated(fixed: bool) -> Program:
    """The gradient of a chunked loss is partial, and its label states that it is whole.

    The vocabulary is divided over two ranks, so each has a partial gradient of the hidden states.
    The loss is computed in chunks, whose gradients are collected in one buffer. The buffer took its
    placement from the activations, which are replicated. So the backward of the decoder used one
    part as the whole. The fixed program reduces each chunk first.

    A label is a claim about data on other ranks, and no local test can refute it. Take the
    placement of a gradient from the gradient.
    """
    loss = phase("loss gradient", "logits[C,V] head[V] -> dx[C]", C=2, V=2)
    decoder = phase("decoder gradient", "x[C] dx[C] -> w.grad[K]", C=2, K=2)

    def calls(rank: int) -> list[Instruction]:
        listed: list[Instruction] = [loss(C=chunk, V=rank) for chunk in PAIR]
        listed += [AllReduce(PAIR, block=f"dx[{chunk}]") for chunk in PAIR if fixed]
        return [*listed, *(decoder(C=chunk, K=rank) for chunk in PAIR)]

    ends = [(f"w.grad[{rank}]",) for rank in PAIR]
    return program(map(calls, PAIR), [loss, decoder], final=ends)


@public_case("completion", "NVIDIA/Megatron-LM#844")
def tied_embeddings_after_the_scatter(fixed: bool) -> Program:
    """Tied embeddings are summed over the stages after they were scattered over the replicas.

    First and last stage share the embedding, so its gradient is a sum over both stages and a mean
    over two replicas. The distributed optimizer scatters the mean over replicas, and leaves it on
    one of them: on another one for each stage, as the weight is in another part of the buffer. The
    all-reduce over the stages then adds a mean of one stage and a part of the other. In the fixed
    program the stages are summed first.

    A reduce-scatter leaves a partial sum on all ranks but one. What must be summed over two groups
    is summed over the second only where the first has left a whole.
    """
    stages, owners = ((0, 2), (1, 3)), (1, 2)
    gradient = phase("gradient", "x[P,D] -> wte.grad[0]", scale="1/2", P=2, D=2)

    def calls(rank: int) -> tuple[Instruction, ...]:
        stage, replica = divmod(rank, 2)
        over_stages = AllReduce(stages[replica], block="wte.grad[0]")
        replicas = (2 * stage, 2 * stage + 1)
        scattered = Reduce(replicas, block="wte.grad[0]", root=owners[stage], scale="1/2")
        sums = (over_stages, scattered) if fixed else (scattered, over_stages)
        return gradient(P=stage, D=replica), *sums

    ends = [("wte.grad[0]",) * (rank in owners) for rank in range(4)]
    return program(map(calls, range(4)), [gradient], final=ends)


@public_case(
    "completion",
    "hpcaitech/ColossalAI:colossalai/legacy/nn/layer/parallel_2p5d/_operation.py",
)
def depth_not_summed(fixed: bool) -> Program:
    """In 2.5D the weight's gradient is summed over the columns, and not over the depth.

    Each layer of a 2.5D mesh runs SUMMA on its own rows with a copy of the weight, so that the
    gradient is a sum over the layers too. The function of this file that multiplies for the
    gradient reduces it over one group, the columns of its layer. We have read that file alone, and
    not run it. The program is that of our `tesseract` on 2 x 2 x 2 ranks without its sums over
    depth.

    Every axis that divides the rows and not the weight adds a sum to the weight's gradient. Depth 1
    hides it, so test depth 2.
    """
    lowered = lower(Sequence.of(Tesseract(), 2, 2))
    if fixed:
        return lowered

    def depth(instruction: Instruction) -> bool:
        return isinstance(instruction, AllReduce) and instruction.block.startswith("dW")

    kept = (tuple(node for node in nodes if not depth(node)) for nodes in lowered.programs)
    return replace(lowered, programs=tuple(kept))


@public_case("coverage", "modelscope/ms-swift#9947")
def shard_without_gradient(fixed: bool) -> Program:
    """An all-reduce that autograd does not see leaves a shard of the logits without a gradient.

    The vocabulary is divided over two ranks. The logit of the target is on one of them, and a plain
    all-reduce gives it to both, which is right in forward. Backward does not pass through that
    call, so only the rank that owns the target computes a gradient of its logits. Every shard needs
    one, as each is part of the softmax.

    A collective in forward has one in backward, which must be written too. Equal losses prove
    nothing about gradients.
    """
    loss = phase("loss", "logits[V] -> log_sum[0]", V=2)
    gradient = phase("gradient", "logits[V] log_sum[0] -> dlogits[V]", V=2)

    def calls(rank: int) -> tuple[Instruction, ...]:
        backward = (gradient(V=rank),) if fixed or rank == 0 else ()
        return loss(V=rank), AllReduce(PAIR, block="log_sum[0]"), *backward

    return program(map(calls, PAIR), [loss, gradient])
