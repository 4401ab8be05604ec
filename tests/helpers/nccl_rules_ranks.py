"""What the ranks of the tests of the backend itself do; all of it in one world of 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import distributed_program
import torch
import torch.distributed as dist
from nccl_rules import LAZY, restart
from nccl_rules.device_stream import DeviceStream

CPU = torch.device("cpu")


def batch(*messages: tuple[str, torch.Tensor, int]) -> Any:
    """Start messages together on the world; ways are "send" and "recv"."""
    world: Any = dist.group.WORLD
    world._start_coalescing(CPU)
    for way, tensor, peer in messages:
        getattr(world, way)([tensor], peer, 0)
    return world._end_coalescing(CPU)


def blocks(*values: float) -> list[torch.Tensor]:
    return [torch.full((2,), float(value)) for value in values]


def batched_ring(rank: int) -> list[float]:
    """A batch of both directions never waits for itself."""
    given, gotten = blocks(rank, -1)
    batch(("send", given, (rank + 1) % 4), ("recv", gotten, (rank - 1) % 4)).wait()
    return gotten.tolist()


def tags_select_nothing(rank: int) -> list[float]:
    """Messages of two ranks match in the order of the calls, whatever their tags."""
    world: Any = dist.group.WORLD
    first, second = blocks(10 * rank, 10 * rank + 1)
    world._start_coalescing(CPU)
    if rank == 0:
        world.send([first], 1, 7)
        world.send([second], 1, 8)
    elif rank == 1:
        world.recv([first], 0, 8)
        world.recv([second], 0, 7)
    else:
        world.send([first], 5 - rank, 0)
        world.recv([second], 5 - rank, 0)
    world._end_coalescing(CPU).wait()
    return [*first.tolist(), *second.tolist()]


def unbatched_ring(rank: int) -> None:
    """Sends outside a batch come before the receives, and nothing is buffered."""
    given, gotten = blocks(rank, -1)
    world: Any = dist.group.WORLD
    works = [world.send([given], (rank + 1) % 4, 0), world.recv([gotten], (rank - 1) % 4, 0)]
    for work in works:
        work.wait()


def a_send_without_a_receive(rank: int) -> None:
    if rank == 0:
        batch(("send", blocks(1)[0], 1)).wait()


def members_that_stay_away(rank: int) -> None:
    group = dist.new_group([0, 1, 2])
    if rank in (0, 2):
        dist.all_reduce(blocks(1)[0], group=group)


def different_collectives(rank: int) -> None:
    if rank == 3:
        dist.broadcast(blocks(1)[0], 0)
    else:
        dist.all_reduce(blocks(1)[0])


def different_sizes(rank: int) -> None:
    dist.all_reduce(torch.zeros(2 + (rank == 2)))


def different_types(rank: int) -> None:
    given = torch.zeros(2, dtype=torch.float64 if rank == 0 else torch.float32)
    if rank < 2:
        batch(("send" if rank == 0 else "recv", given, 1 - rank)).wait()


def a_message_before_a_collective(rank: int) -> None:
    """The stream of rank 0 has the message first, that of rank 1 the sum."""
    given = blocks(rank)[0]
    if rank == 0:
        work = batch(("send", given, 1))
        dist.all_reduce(given)
        work.wait()
    else:
        dist.all_reduce(given)
        if rank == 1:
            batch(("recv", given, 0)).wait()


def a_second_message_with_a_peer(rank: int) -> None:
    """Rank 1 sends c when it has b, which rank 0 sends in a second round, after it has c."""
    a, b, c = blocks(1, 2, 3)
    if rank == 0:
        batch(("send", a, 1), ("send", b, 1), ("recv", c, 1)).wait()
    elif rank == 1:
        for message in (("recv", a, 0), ("recv", b, 0), ("send", c, 0)):
            batch(message).wait()


def a_block_read_early(rank: int) -> list[list[bool]]:
    """Until the wait it is not a number, and a sum in place neither."""
    given, taken = blocks(rank, -1)
    work, summed = batch(("send", given, rank ^ 1), ("recv", taken, rank ^ 1)), blocks(rank)[0]
    seen = [taken.isnan().tolist()]
    work.wait()
    later = dist.all_reduce(summed, async_op=True)
    assert later is not None
    seen.append(summed.isnan().tolist())
    later.wait()
    return [*seen, [*(taken == rank ^ 1).tolist(), *(summed == 6).tolist()]]


def a_block_sent_and_written(rank: int) -> None:
    given, taken = blocks(rank, -1)
    work = batch(("send", given, rank ^ 1), ("recv", taken, rank ^ 1))
    given.fill_(7)
    work.wait()


def a_block_received_and_written(rank: int) -> None:
    taken = blocks(rank)[0]
    work = batch(("send" if rank % 2 else "recv", taken, rank ^ 1))
    if rank % 2 == 0:
        taken.fill_(7)
    work.wait()


def a_host_that_goes_on(rank: int) -> list[object]:
    """A wait holds up what is computed later, not the host; so does a write after it."""
    (given,), taken, values = blocks(rank), [*blocks(-1, -1)], list[torch.Tensor]()
    with DeviceStream() as stream:
        work = batch(("send", given, rank ^ 1), ("recv", taken[0], rank ^ 1))
        values.append(taken[0] * 2)
        work.wait()
        values.append(taken[0] * 2)
        given.fill_(7)
        later = batch(("send", given, rank ^ 1), ("recv", taken[1], rank ^ 1))
        later.wait()
        seen_by_the_host = [block.numpy().tolist() for block in (given, *taken)]
        stream.synchronize()
    got = [*values, *taken]
    return [seen_by_the_host, got[0].isnan().all().item(), [x.tolist() for x in got[1:]]]


def a_number_that_the_host_needs(rank: int) -> float:
    taken = blocks(-1)[0]
    with DeviceStream():
        batch(("send", blocks(rank)[0], rank ^ 1), ("recv", taken, rank ^ 1)).wait()
        return float(taken.sum())


def a_block_written_by_the_stream(rank: int) -> None:
    given, taken = blocks(rank, -1)
    with DeviceStream() as stream:
        work = batch(("send", given, rank ^ 1), ("recv", taken, rank ^ 1))
        given.fill_(7)
        work.wait()
        stream.synchronize()


def strides(rank: int) -> None:
    dist.all_reduce(torch.zeros(4, 4)[:, 1])


def a_type_that_nccl_has_not(rank: int) -> None:
    dist.all_reduce(torch.zeros(2, dtype=torch.int16))


def a_call_that_is_not_modelled(rank: int) -> None:
    dist.gather(torch.zeros(2), [torch.zeros(2)] * 4 if rank == 0 else None)


RIGHT: tuple[Callable[[int], Any], ...] = (
    batched_ring, tags_select_nothing, a_block_read_early,
    a_host_that_goes_on, a_number_that_the_host_needs,
)  # fmt: skip
WRONG: tuple[Callable[[int], Any], ...] = (
    unbatched_ring, a_send_without_a_receive, members_that_stay_away, different_collectives,
    different_sizes, different_types, a_message_before_a_collective,
    a_second_message_with_a_peer, a_block_sent_and_written, a_block_received_and_written,
    a_block_written_by_the_stream, strides,
    a_type_that_nccl_has_not, a_call_that_is_not_modelled,
)  # fmt: skip


def answers() -> dict[str, Any]:
    """What each case returned, or its error; then one program with every instruction."""
    rank = dist.get_rank()
    results: dict[str, Any] = {}
    for case in (*RIGHT, *WRONG):
        try:
            results[case.__name__] = case(rank)
        except (RuntimeError, ValueError) as error:
            results[case.__name__] = str(error)
        restart()
    results["program"] = distributed_program.run_program(True)
    leave_work_behind(rank)
    return results


def leave_work_behind(rank: int) -> None:
    """Nobody sends: the group is destroyed while the message is on its way."""
    if dist.get_backend() != LAZY:
        return  # the last barrier of the world would wait for it in its queue
    group: Any = dist.new_group([0, 1, 2, 3])
    for sends in (True, False):
        group._start_coalescing(CPU)
        if sends:
            group.send([blocks(0)[0]], (rank - 1) % 4, 0)
        group.recv([blocks(0)[0]], (rank + 1) % 4, 0)
        group._end_coalescing(CPU)
