"""The program of a pipeline: one linear layer in every chunk of the model, on integers or not.

Stage s is rank s. Micro-batch k is row block k of every activation, so that the whole step is the
dense step of all rows: x.i is the input of layer i, dx.i its gradient, w.i and dw.i its weight.

    F  x.{i+1}[k] += x.i[k] w.i            forward
    B  dx.i[k]    += dx.{i+1}[k] w.i^T     backward
    W  dw.i       += x.i[k]^T dx.{i+1}[k]  gradient, summed over the micro-batches

After the last layer comes the gradient of a loss, the element-wise product with its target. What a
stage keeps of a micro-batch from F to W is x.i[k], its stash. The batch is there at the start: its
rows on the stage of the first layer, its targets on that of the last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from primepar.partition.pipeline.actions import Action
from primepar.partition.pipeline.dependencies import (
    ChunkMessage,
    PipelineOrders,
    PlacedMessage,
    placed_messages,
)
from primepar.schedule.operators import block_name
from primepar.schedule.program import Compute, Free, Instruction, IRecv, ISend, Program, Wait
from primepar.schedule.signature import Signature, Tensor

PHASE_OF = {"F": "forward", "B": "backward", "W": "gradient"}
LOSS = "loss"


def pipeline_program(pipeline: PipelineOrders, rows: int, width: int) -> Program:
    """The program of one training step; each micro-batch has `rows` rows, a layer `width` columns.

    The outputs are the gradients of the weights on their stages, and that of the input.
    """
    last, first = pipeline.stage(pipeline.layers - 1), pipeline.stage(0)
    inputs: list[list[str]] = [[] for _ in range(pipeline.stages)]
    outputs: list[list[str]] = [[] for _ in range(pipeline.stages)]
    for layer in range(pipeline.layers):
        inputs[pipeline.stage(layer)].append(f"w.{layer}[0,0]")
        outputs[pipeline.stage(layer)] += [f"w.{layer}[0,0]", f"dw.{layer}[0,0]"]
    for micro_batch in range(pipeline.micro_batches):
        inputs[first].append(_rows("x", 0, micro_batch))
        inputs[last].append(f"target[{micro_batch},0]")
        outputs[first].append(_rows("dx", 0, micro_batch))
    messages = placed_messages(pipeline)
    stages = [_Stage(pipeline, stage, messages) for stage in range(pipeline.stages)]
    return Program(
        format="primepar-program",
        version=1,
        ranks=pipeline.stages,
        programs=tuple(tuple(stage.instructions()) for stage in stages),
        grid={name: {"M": pipeline.micro_batches, "N": 1, "K": 1} for name in _phases(pipeline)},
        initial=tuple(map(tuple, inputs)),
        final=tuple(map(tuple, outputs)),
        phases=_phases(pipeline),
        tensors=_tensors(pipeline, rows, width),
    )


def _rows(tensor: str, layer: int, micro_batch: int) -> str:
    return block_name(f"{tensor}.{layer}", (micro_batch, 0))


def _phases(pipeline: PipelineOrders) -> dict[str, Signature]:
    last = pipeline.layers
    phases = {LOSS: Signature((f"x.{last}[M,N]", "target[M,N]"), f"dx.{last}[M,N]")}
    for layer in range(last):
        x, w, dy = f"x.{layer}[M,N]", f"w.{layer}[N,K]", f"dx.{layer + 1}[M,K]"
        signatures = {
            "forward": ((x, w), f"x.{layer + 1}[M,K]"),
            "backward": ((dy, w), f"dx.{layer}[M,N]"),
            "gradient": ((x, dy), f"dw.{layer}[N,K]"),
        }
        for phase, (reads, writes) in signatures.items():
            phases[f"layer{layer}.{phase}"] = Signature(reads, writes, kernel=f"linear.{phase}")
    return phases


def _tensors(pipeline: PipelineOrders, rows: int, width: int) -> dict[str, Tensor]:
    cuts = tuple(rows * number for number in range(pipeline.micro_batches + 1))
    by_rows, whole = Tensor((cuts, (0, width))), Tensor(((0, width), (0, width)))
    tensors = {"target": by_rows}
    for layer in range(pipeline.layers + 1):
        tensors |= {f"x.{layer}": by_rows, f"dx.{layer}": by_rows}
    for layer in range(pipeline.layers):
        tensors |= {f"w.{layer}": whole, f"dw.{layer}": whole}
    return tensors


class _Stage:
    """The instructions of one stage, action by action."""

    def __init__(
        self, pipeline: PipelineOrders, stage: int, messages: Iterable[PlacedMessage]
    ) -> None:
        self.pipeline, self.number = pipeline, stage
        self.order = pipeline.orders[stage]
        self.sends: dict[int, list[ChunkMessage]] = defaultdict(list)
        self.needs: dict[int, list[ChunkMessage]] = defaultdict(list)
        self.posts: dict[int, list[ChunkMessage]] = defaultdict(list)
        self.ends: dict[int, list[ChunkMessage]] = defaultdict(list)
        for message, posted, ended in messages:
            if message.source.stage == stage:
                self.sends[message.source.place].append(message)
                self.ends[ended].append(message)
            if message.destination.stage == stage:
                self.needs[message.destination.place].append(message)
                self.posts[posted].append(message)

    def instructions(self) -> Iterator[Instruction]:
        """The instructions of the stage, in order."""
        for place, action in enumerate(self.order):
            for message in self.posts[place]:
                peer, request = message.source.stage, f"receive {message.block}"
                yield IRecv(peer, message.block, request=request)
            for message in self.needs[place]:
                yield Wait(f"receive {message.block}")
            yield from self._sent(place)
            yield from self._computed(action)
            for message in self.sends[place]:
                peer, request = message.destination.stage, f"send {message.block}"
                yield ISend(peer, message.block, request=request)
            if action.kind == "W":
                layer = self.pipeline.layer(self.number, action)
                yield Free(_rows("x", layer, action.micro_batch))
                yield Free(_rows("dx", layer + 1, action.micro_batch))
        yield from self._sent(len(self.order))

    def _sent(self, place: int) -> Iterator[Instruction]:
        """End sends, and free what was sent."""
        for message in self.ends[place]:
            yield Wait(f"send {message.block}")
            yield Free(message.block)

    def _computed(self, action: Action) -> Iterator[Instruction]:
        layer, micro_batch = self.pipeline.layer(self.number, action), action.micro_batch
        x, y = (_rows("x", number, micro_batch) for number in (layer, layer + 1))
        dx, dy = (_rows("dx", number, micro_batch) for number in (layer, layer + 1))
        reads, written = {
            "F": ((x, f"w.{layer}[0,0]"), y),
            "B": ((dy, f"w.{layer}[0,0]"), dx),
            "W": ((x, dy), f"dw.{layer}[0,0]"),
        }[action.kind]
        slices = {"M": micro_batch, "N": 0, "K": 0}
        yield Compute(reads, written, f"layer{layer}.{PHASE_OF[action.kind]}", slices)
        if action.kind == "F" and layer + 1 == self.pipeline.layers:
            target = f"target[{micro_batch},0]"
            yield Compute((y, target), dy, LOSS, slices)
            yield from (Free(y), Free(target))
