"""Cases of sums with a wrong coefficient: a mean over the wrong count, or a term added twice."""

from __future__ import annotations

from primepar.preflight.cases.public_case import PAIR, phase, program, public_case
from primepar.schedule import Program
from primepar.schedule.program import AllReduce, Instruction


def _terms_with_one_on_all_ranks(work: str, term: str, total: str, once: bool) -> Program:
    """Each rank adds the term of its own; rank 0, or both ranks, add a third one, and all sum."""
    terms = phase(work, f"{term}[T] -> {total}[0]", T=3)

    def calls(rank: int) -> tuple[Instruction, ...]:
        shared = (terms(T=2),) if rank == 0 or not once else ()
        return terms(T=rank), *shared, AllReduce(PAIR, block=f"{total}[0]")

    return program(map(calls, PAIR), [terms], final=[(f"{total}[0]",)] * 2)


@public_case("completion", "EleutherAI/gpt-neox#1259", "EleutherAI/gpt-neox#1257")
def norm_averaged(fixed: bool) -> Program:
    """The gradient of a norm is averaged over tensor-parallel ranks instead of summed.

    Under sequence parallelism two ranks have half of the rows each. A hook reduced the gradients of
    the norms by a mean, as between replicas. But each rank has other rows of one sample, so the
    gradient is the sum. The copies stay equal, the norms only learn too slowly.

    Ranks with other samples of a mean loss average, ranks with other parts of one sample sum.
    Replicas that agree do not show which of the two is right.
    """
    gradient = phase("gradient", "x[M] dy[M] -> norm.grad[0]", M=2)
    reduce = AllReduce(PAIR, block="norm.grad[0]", scale="1" if fixed else "1/2")
    lists = [(gradient(M=rank), reduce) for rank in PAIR]
    return program(lists, [gradient], final=[("norm.grad[0]",)] * 2)


@public_case("completion", "pytorch/torchtitan#4332")
def bias_gradient_divided(fixed: bool) -> Program:
    """The gradient of a row-parallel bias is too small by the number of ranks.

    Each rank adds its share of the bias to its partial output, the bias divided by the number of
    ranks. The sum has then one bias. But autograd divides the gradient in the same way, and the
    gradient of the output is whole on each rank. As the bias is replicated, nothing sums these
    shares. The fixed program has scale 1 in backward.

    A factor that is right in a partial output is wrong in the gradient of a replica. Scale in
    forward alone, or sum the gradients of the shares.
    """
    bias = phase("bias gradient", "dy[0] -> bias.grad[0]", R=2)
    lists = [(bias("1" if fixed else "1/2", R=rank),) for rank in PAIR]
    return program(lists, [bias], final=[("bias.grad[0]",)] * 2)


@public_case("coverage", "Wenyueh/MinivLLM#80", "huggingface/text-generation-inference#1036")
def bias_added_by_every_rank(fixed: bool) -> Program:
    """A row-parallel layer adds its bias on each rank, and then sums over the ranks.

    Each rank multiplies its columns of the input by its rows of the weight, and the all-reduce
    makes the output of these parts. The bias was added before it, so the output has one for each
    rank. The terms 0 and 1 are the products of the ranks, term 2 is the bias. In the fixed program
    rank 0 alone adds it.

    What is added to a partial sum is added as often as there are parts. Add after the sum, or on
    one rank.
    """
    return _terms_with_one_on_all_ranks("output", "term", "y", fixed)


@public_case("completion", "pytorch/torchtitan#2106")
def whole_gradient_reduced(fixed: bool) -> Program:
    """A gradient that is whole on every rank is summed over the ranks.

    A partial output of a row-parallel layer plus a replicated bias is partial again. Its gradient
    was taken to be partial too, so that backward reduces it. But the gradient of a sum is the same
    for each of its parts: it is whole on each rank, and the all-reduce multiplies it by their
    number.

    The gradient of a partial sum is replicated, and that of a replicated tensor may be partial. The
    placements of forward and backward are dual, not equal.
    """
    output = phase("output gradient", "loss[0] -> dy[0]", R=2)
    weight = phase("weight gradient", "x[N] dy[0] -> w.grad[N]", N=2)
    sums = () if fixed else (AllReduce(PAIR, block="dy[0]"),)
    lists = [(output(R=rank), *sums, weight(N=rank)) for rank in PAIR]
    ends = [(f"w.grad[{rank}]",) for rank in PAIR]
    return program(lists, [output, weight], final=ends)


@public_case("completion", "deepspeedai/DeepSpeed#5248")
def sequence_ranks_not_counted(fixed: bool) -> Program:
    """Under Ulysses the gradient is too large by the number of sequence-parallel ranks.

    Four ranks are two replicas with two parts of the sequence each. Every rank has the mean loss of
    its part. The reduction over all four divides by the number of replicas alone, so the result is
    a sum over the parts, where the loss is their mean.

    Count what the loss of a rank is a mean of, and divide by that. A mesh with a new axis needs
    every such count again.
    """
    ranks = (0, 1, 2, 3)
    gradient = phase("gradient", "x[D,S] -> grad[0]", scale="1/4", D=2, S=2)
    reduce = AllReduce(ranks, block="grad[0]", scale="1/4" if fixed else "1/2")
    lists = [(gradient(D=rank // 2, S=rank % 2), reduce) for rank in ranks]
    return program(lists, [gradient], final=[("grad[0]",)] * 4)


@public_case("completion", "meta-pytorch/torchtune#2172")
def tokens_divided_twice(fixed: bool) -> Program:
    """The loss is divided by all tokens, and the gradients by the ranks as well.

    Two ranks have two tokens and one. Each divides its loss by three, the tokens of all ranks, so
    that the sum of the gradients is right. But sharded data parallelism averages gradients, which
    halves them. The thread multiplies the loss by the number of ranks, so that the mean is the sum.

    One place must define the denominator. A library that averages has a factor that the loss has to
    undo.
    """
    gradient = phase("gradient", "token[T] -> grad[0]", scale="1/3", T=3)
    reduce = AllReduce(PAIR, block="grad[0]", scale="1/2")

    def calls(*tokens: int) -> list[Instruction]:
        return [*(gradient("2/3" if fixed else "1/3", T=token) for token in tokens), reduce]

    return program([calls(0, 1), calls(2)], [gradient], final=[("grad[0]",)] * 2)


@public_case("completion", "ml-explore/mlx-lm#1413", "huggingface/transformers#24725")
def mean_of_unequal_means(fixed: bool) -> Program:
    """The mean of the micro-batches' means is not the mean of the tokens.

    Two micro-batches have one token and three. Each gives the mean gradient of its tokens, and the
    step is the mean of both. So the first token counts three times as much as each of the others.
    The fixed program weighs every token alike, as one large batch does.

    A mean of means is right for equal counts alone. Add up sums and divide once.
    """
    gradient = phase("gradient", "token[T] -> grad[0]", scale="1/4", T=4)
    short, long = ("1/4", "1/4") if fixed else ("1/2", "1/6")
    works = (gradient(short if token == 0 else long, T=token) for token in range(4))
    return program([works], [gradient], final=[("grad[0]",)])


@public_case("coverage", "NVIDIA-NeMo/RL#3788")
def replicas_counted_in_the_norm(fixed: bool) -> Program:
    """The norm of all gradients counts replicated ones once for each rank.

    To clip, each of two tensor-parallel ranks adds up the squares of its gradients, and an
    all-reduce sums both. This is right for weights that are divided. The gradient of a norm layer
    is the same on both, and counts twice: it is gradient 2 of the program. The larger norm clips
    more than was asked for. In the fixed program rank 0 alone adds what is replicated.

    A sum over ranks must know of each term whether it is a part or a copy. Count copies once.
    """
    return _terms_with_one_on_all_ranks("squares", "grad", "total", fixed)


@public_case("coverage", "NVIDIA/Megatron-LM#7452")
def gathered_logits_as_a_shard(fixed: bool) -> Program:
    """A loss for divided logits is given all of them, on every rank.

    The cross entropy of a divided vocabulary adds up the exponentials of its shard, and sums over
    the ranks. If the logits were gathered before, every rank has the whole vocabulary, and each
    exponential counts once for each rank. The loss is then too large by the logarithm of their
    number. This is the second entry of the thread's list, whose author has not verified all by
    hand. The structure is ours.

    A function that reduces over ranks has a contract on the placement of its input. Check it at the
    call, since shapes alone may fit.
    """
    exponentials = phase("exponentials", "logits[V] -> total[0]", V=2)

    def calls(rank: int) -> list[Instruction]:
        shard = (rank,) if fixed else PAIR
        return [*(exponentials(V=part) for part in shard), AllReduce(PAIR, block="total[0]")]

    return program(map(calls, PAIR), [exponentials], final=[("total[0]",)] * 2)
