"""A backend of torch.distributed on CPUs that has the rules of NCCL, to run programs under them.

What the real one does, with its sources (read, as no GPU was at hand):

- A communicator has one stream per rank. Operations on it run one after another, in the order of
  the calls; the host goes on (torch, ProcessGroupNCCL.cpp, `collective` and `pointToPoint`).
- `Work.wait` makes the stream of the computation wait. What is called later waits for that stream
  (`syncStream`), so that a wait holds up all that comes after it, but not the host: see
  `device_stream`. Memory may be read and filled at any time before it: here it is filled at the
  wait, with not a number before, and a block that was written in between is an error.
- There are no tags. Messages of two ranks on a communicator match in the order of the calls.
- `batch_isend_irecv` is `_start_coalescing`, the calls, `_end_coalescing`: ncclGroupStart and
  ncclGroupEnd. The messages of a group do not block each other, and the group ends when all have
  ended (NCCL user guide, "Point-to-point communication"). But a second message with a peer in one
  direction uses the same connection, and begins when the first round of messages has ended
  (`addWorkBatchToPlan` in its `src/enqueue.cc`; seen on an H200).
- A send ends only after its receive has begun: nothing here is buffered. NCCL does buffer small
  messages, but promises none of it.
- A send or receive outside a group runs on a communicator of the two ranks, made at the first one
  (`getKeySendRecv`). If a device was bound at the start (`device_id`), it runs on the communicator
  of the process group instead (`eagerInit_`). Both are here: see `rules_group`.
- The first operation on a communicator makes it, and needs all members (`ncclCommInitRank`). The
  first message of two ranks in one direction makes their connection, and holds up both hosts until
  both are there (`ncclTransportP2pSetup`, within `ncclGroupEnd`; NVIDIA/nccl 783).
- Streams of several communicators share the hardware queues of a GPU, in turn. In a queue each
  operation waits for the one before it, on whatever communicator. There may be any number.
- Tensors are contiguous (`check_gpu_single_tensor`). A barrier is an all-reduce.
- Members that call different collectives, or other sizes or types, get wrong data or hang. Here
  that is an error which names both calls.

A thread of rank 0 keeps all streams: see `streams`. It knows what every rank waits for. When all
of them wait and nothing can run, it ends the run with an error that names the head of every stream.
Importing this package registers the backends.
"""

from nccl_rules.rules_group import EAGER, LAZY, SHARED, restart

__all__ = ["EAGER", "LAZY", "SHARED", "restart"]
