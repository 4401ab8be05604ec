"""Cases of ranks that wait for one another: what each calls is right, and the order is not."""

from __future__ import annotations

from primepar.preflight.cases.public_case import PAIR, program, public_case
from primepar.schedule import Program
from primepar.schedule.program import (
    AllGather,
    Alloc,
    AllReduce,
    Barrier,
    Instruction,
    Recv,
    ReduceScatter,
    Send,
)


@public_case("deadlock-freedom", "vllm-project/vllm#43547")
def step_without_tokens(fixed: bool) -> Program:
    """A rank without work returns before the collective of the step.

    Two data-parallel ranks agree on the size of every step by an all-reduce, and then run the
    experts. At the first step rank 1 has no tokens and returns at once. Its next all-reduce answers
    the first of rank 0, so that rank 0 is one call ahead until the last one, which nobody answers.
    The fix is a dummy step: a rank without tokens makes all calls of it.

    A collective that depends on what a rank has to do is a hang that waits for unequal ranks. Take
    part with nothing, or agree on leaving it out by a call that all ranks make.
    """

    def step(number: int) -> tuple[Instruction, ...]:
        size, parts = f"size {number}", (f"expert {number} part 0", f"expert {number} part 1")
        return AllReduce(PAIR, block=size), ReduceScatter(PAIR, blocks=parts, block=f"out {number}")

    busy = (*step(0), *step(1))
    return program([busy, busy if fixed else step(1)])


@public_case("deadlock-freedom", "meta-pytorch/torchrec#4149")
def two_groups_swapped(fixed: bool) -> Program:
    """Calls of two process groups in another order on some ranks.

    A mesh of 2 x 2 has a group for each row, which shards, and one for each column, which
    replicates. Ranks 1 and 2 call the row's collective first, ranks 0 and 3 the column's. Each
    waits for a neighbour that is in its other group, around the mesh. In the thread the ranks
    diverged at an implicit synchronization with the device.

    Different groups have no order of their own, so each rank must have the same one. One diverging
    rank is not always a cycle, which is why such a program may run for days.
    """

    def calls(rank: int) -> tuple[Instruction, ...]:
        row, column = rank // 2 * 2, rank % 2
        shard = AllReduce((row, row + 1), communicator="shard", block="activations")
        replicate = AllReduce((column, column + 2), communicator="replicate", block="gradients")
        diverged = rank in (0, 3) and not fixed
        return (replicate, shard) if diverged else (shard, replicate)

    return program(map(calls, range(4)))


@public_case("deadlock-freedom", "pytorch/pytorch#172668")
def receives_deferred(fixed: bool) -> Program:
    """Both ranks send before they post the receive that the other waits for.

    Two ranks hold two stages each. To keep a pending receive from blocking the device, receives
    were moved to just before the computation that needs them. Then each rank sends to the other
    first, and the send of one waits for the receive of the other. The fixed program lets one of the
    two receive first.

    A receive that is posted late makes the sender wait, also for all that it does afterwards. Of
    two neighbours that exchange, one must receive first, or both must post at once.
    """
    first = (Send(1, "F1 of stage 0"), Recv(1, "F0 of stage 2"))
    second = (Send(0, "F0 of stage 2"), Recv(0, "F1 of stage 0"))
    return program([first, second[::-1] if fixed else second])


@public_case("deadlock-freedom", "pytorch/pytorch#178815", "pytorch/pytorch#172668")
def parity_is_not_enough(fixed: bool) -> Program:
    """Odd ranks receive first, and the pipeline still hangs.

    The first repair of the case before swapped send and receive on odd ranks. The thread shows that
    rank 1 then sends a gradient before it receives the next activations, and that rank 0 sends
    these activations before it receives the gradient. The later pull request orders by pairs: the
    lower rank receives what was deferred before it sends to the higher one.

    An order that fits one exchange need not fit two that overlap. Order the messages of a pair as a
    whole, not send by send.
    """
    backward = Recv(1, "B0 of stage 2")
    forward = Send(1, "F2 of stage 0")
    deferred = (backward, forward) if fixed else (forward, backward)
    lower = (Send(1, "F1 of stage 2"), *deferred, Recv(1, "B1 of stage 2"))
    higher = (
        Recv(0, "F1 of stage 2"),
        Send(0, "B0 of stage 2"),
        Recv(0, "F2 of stage 0"),
        Send(0, "B1 of stage 2"),
    )
    return program([lower, higher])


@public_case("deadlock-freedom", "NVIDIA/Megatron-LM#5100")
def shapes_in_one_order(fixed: bool) -> Program:
    """Every stage sends the shapes of its tensors first.

    With variable sequence lengths the stages of a pipeline exchange shapes before the data. All
    stages had the same order, first the messages with the stage before and then with the one after,
    sends first, where the data had one order for even and one for odd stages. With four stages the
    first training step hangs. The program executes the calls in order, as on one stream.

    If all ranks send first, nobody receives. The neighbours of a chain need two orders, such as
    even and odd.
    """

    def calls(rank: int) -> tuple[Instruction, ...]:
        before = (Send(rank - 1, f"dy {rank - 1}"), Recv(rank - 1, f"x {rank}")) if rank else ()
        after = (Send(rank + 1, f"x {rank + 1}"), Recv(rank + 1, f"dy {rank}")) if rank < 3 else ()
        if not fixed:
            return (*before, *after)
        if rank % 2 == 0:
            return (*after[:1], *before[::-1], *after[1:])
        return (*before[1:], *after, *before[:1])

    return program(map(calls, range(4)))


@public_case("deadlock-freedom", "tdrussell/diffusion-pipe#409")
def labels_before_activations(fixed: bool) -> Program:
    """The first stage sends the labels to the last one before it sends what the labels are for.

    The last of three stages needs the labels for the loss. The first sends them straight to it, and
    waits. The last stage waits for the activations of the stage between, which waits for those of
    the first. The fixed program sends the activations first.

    A shortcut around the stages joins their order of waiting. Send on it what the receiver asks for
    last.
    """
    labels, activations = Send(2, "labels"), Send(1, "x 1")
    first = (activations, labels) if fixed else (labels, activations)
    return program([first, (Recv(0, "x 1"), Send(2, "x 2")), (Recv(1, "x 2"), Recv(0, "labels"))])


@public_case("deadlock-freedom", "NVIDIA/Megatron-LM#1444")
def stage_without_experts(fixed: bool) -> Program:
    """An all-reduce over all stages, which a stage without experts does not call.

    The losses of the routers are summed over the stages of a pipeline, to be printed. The first
    stage has dense layers alone, so it has no such loss and skips the call. The other stages wait
    for it. The fixed program adds zeros, as the thread expects.

    Whether a rank calls a collective must not follow from the layers that it holds. A rank without
    a term adds zero.
    """
    stages = (0, 1, 2)
    logged = AllReduce(stages, block="router losses")
    dense = (Alloc("router losses"), logged) if fixed else ()
    return program([dense, (logged,), (logged,)])


@public_case("deadlock-freedom", "starVLA/starVLA#460")
def state_on_rank_0(fixed: bool) -> Program:
    """Only rank 0 collects the state for the checkpoint, though collecting is a collective.

    Under ZeRO-3 each rank holds a part of the parameters, and their whole is an all-gather. The
    trainer asks for it on rank 0, which is to write the file, while the others go on to a barrier.
    The fixed program lets all ranks gather, and one write.

    A function with a collective inside belongs outside of `if rank == 0`. Let only the writing
    depend on the rank.
    """
    gather = AllGather(PAIR, block="part", blocks=("part 0", "part 1"))
    others = (gather,) if fixed else ()
    return program([(gather, Barrier(PAIR)), (*others, Barrier(PAIR))])
