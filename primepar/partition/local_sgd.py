"""Local SGD: K workers step on their own copies of the model, and average them every H steps.

Source: Stich, arXiv 1805.09767; the choice of the period H: Zhang et al., arXiv 1606.07365;
synchronous steps first (post-local SGD): Lin et al., arXiv 1808.07217.

Each worker has its own rows of every batch. It does H steps of SGD without a message; then all
workers replace their models by the mean. Here the model is one linear layer with half the squared
error as its loss, which is the smallest one that shows the schedule. Its step is three phases on
worker k:

    residual  R = X_k W_k - Y_k
    gradient  G_k = X_k^T R
    update    W_k <- W_k - lr G_k                    local: its own gradient
              W   <- W - lr (1/K) sum_k G_k          warm-up: the mean of all gradients
    average   W   <- (1/K) sum_k W_k                 after every H-th local step, and at the end

H = 1 with plain SGD is synchronous SGD: the mean of W - lr G_k is W - lr times the mean of G_k.
With H = T there is one average, at the end (one-shot averaging). With a `warm_up` of S steps the
first S are synchronous. In the program the model of step t is `model.t`, the same on all workers,
or `local.t[k]` on worker k. So a worker that is left out of an average, or a coefficient other than
1/K, leaves a block that is not the required sum.

Sent per step:    $2 (K - 1) / K$ times the elements of W: in the warm-up every step, then every
                  H-th.
Held per device:  W, its copy and its gradient, 3 N K_out, and the rows of the batches to come.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated

from msgspec import Meta

from primepar.errors import MethodError
from primepar.schedule.expression import Value, where
from primepar.schedule.program import AllReduce, Compute, Free, Instruction, Program
from primepar.schedule.program_method import ProgramMethod
from primepar.schedule.signature import LARGEST, Signature, Template, Tensor

WORKER = "W"
"""The dim of a tensor that numbers the workers."""
SHARED, LOCAL, DATA = "[N,K]", f"[{WORKER},N,K]", f"[{WORKER},M,N]"
RESULT = f"[{WORKER},M,K]"


def next_count(count: Value, period: Value) -> Value:
    """Local steps since the last average, after one more step; 0 means that an average follows.

    Examples:
        >>> [next_count(count, 3) for count in range(3)]
        [1, 2, 0]
    """
    return where(count + 1 < period, count + 1, 0)


def average_share(workers: Value) -> tuple[Value, Value]:
    """Numerator and denominator of what every worker counts in an average.

    Examples:
        >>> average_share(4)
        (1, 4)
    """
    return 1, workers


def averaging_steps(steps: int, period: int, warm_up: int = 0) -> Iterator[int]:
    """Yield the steps, from 0, after which the workers average: every `period` and the last.

    Examples:
        >>> list(averaging_steps(10, 4))
        [3, 7, 9]
    """
    count = 0
    for step in range(warm_up, steps):
        count = next_count(count, period)
        if count == 0 or step == steps - 1:
            yield step


class LocalSGD(ProgramMethod, frozen=True, kw_only=True):
    """K workers, each with its own model; all models are averaged every H steps."""

    name = "local-sgd"
    workers: Annotated[int, Meta(ge=1, le=256)] = 4
    period: Annotated[int, Meta(ge=1, le=LARGEST)] = 4
    steps: Annotated[int, Meta(ge=1, le=1024)] = 8
    warm_up: Annotated[int, Meta(ge=0, le=1024)] = 0
    rows: Annotated[int, Meta(ge=1, le=4096)] = 2
    inputs: Annotated[int, Meta(ge=1, le=4096)] = 2
    outputs: Annotated[int, Meta(ge=1, le=4096)] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warm_up > self.steps:
            raise MethodError(
                f"local-sgd: expected a warm_up of at most {self.steps} steps, the whole run, got "
                f"{self.warm_up}: write warm_up={self.steps}, or more steps"
            )

    def program(self) -> Program:
        """Return the steps of all workers: synchronous ones, then local ones with averages."""
        run = LocalSteps(self.workers, self.rows, self.inputs, self.outputs)
        averages = set(self.averages)
        for step in range(self.steps):
            run.step(step, synchronous=step < self.warm_up)
            if step in averages:
                run.average(step)
        return run.program(self.steps, self.sent)

    @property
    def averages(self) -> tuple[int, ...]:
        """The steps, from 0, after which the models are averaged."""
        return tuple(averaging_steps(self.steps, self.period, self.warm_up))

    @property
    def sent(self) -> Fraction:
        """Elements that each worker sends: a ring all-reduce of W for every average."""
        average = Fraction(2 * (self.workers - 1) * self.inputs * self.outputs, self.workers)
        return average * (self.warm_up + len(self.averages))

    @property
    def held(self) -> int:
        """The largest number of elements on a worker, in the first step: all batches are there."""
        W, batch, result = (
            self.inputs * self.outputs,
            self.rows * self.inputs,
            self.rows * self.outputs,
        )
        data = self.steps * (batch + result)
        return data + W + max(result, W, 2 * W - batch - result)

    def facts(self) -> dict[str, str]:
        """Return when the workers average, and what each of them sends."""
        steps = ", ".join(str(step + 1) for step in self.averages)
        return {
            "averages of the models": f"{len(self.averages)}, after step {steps or 'none'}",
            "averages of the gradients": str(self.warm_up),
            "elements sent per step and worker": str(self.sent / self.steps),
            "elements of W": str(self.inputs * self.outputs),
        }


@dataclass
class LocalSteps:
    """Writes the steps of all workers, one after another, into one program.

    `rows`, `inputs` and `outputs` are the sizes of one worker's batch and of W.
    """

    workers: int
    rows: int
    inputs: int
    outputs: int
    programs: list[list[Instruction]] = field(init=False)
    phases: dict[str, Signature] = field(default_factory=dict)
    grid: dict[str, dict[str, int]] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    batches: list[str] = field(default_factory=list)
    shared: bool = True
    """Whether all workers have the same model now."""

    def __post_init__(self) -> None:
        self.programs = [[] for _ in range(self.workers)]
        self._declare(f"model.0{SHARED}")

    def model(self, step: int) -> str:
        """The template of the model before a step."""
        return f"model.{step}{SHARED}" if self.shared else f"local.{step}{LOCAL}"

    def step(self, step: int, synchronous: bool) -> None:
        """One step of every worker; a synchronous one takes the mean of the gradients."""
        before, batch, target = self.model(step), f"x.{step}{DATA}", f"y.{step}{RESULT}"
        residual, gradient = f"residual.{step}{RESULT}", f"gradient.{step}{LOCAL}"
        self.batches += [batch, target]
        for template in (batch, target):
            self._declare(template)
        self._compute(step, "regression.residual", [batch, before, target], residual)
        self._free([target])
        self._compute(step, "regression.gradient", [batch, residual], gradient)
        self._free([batch, residual])
        if synchronous:
            mean = f"mean.{step}{SHARED}"
            self._average(step, gradient, mean)
            gradient = mean
        else:
            self.shared = False
        self._compute(step, "sgd.update", [before, gradient], self.model(step + 1))
        self._free([before, gradient])

    def average(self, step: int) -> None:
        """All workers replace their models after a step by the mean of them."""
        local, self.shared = self.model(step + 1), True
        self._average(step, local, self.model(step + 1))

    def _average(self, step: int, read: str, write: str) -> None:
        """One all-reduce of every worker's part, with coefficient 1 / workers."""
        share = Fraction(*average_share(self.workers))
        self._compute(step, "workers.average", [read], write, share)
        self._free([read])
        everyone = tuple(range(self.workers))
        for worker, program in enumerate(self.programs):
            block = self._block(write, worker)
            program.append(AllReduce(everyone, block=block, scale=str(share)))

    def _compute(
        self, step: int, kernel: str, reads: list[str], write: str, scale: Fraction = Fraction(1)
    ) -> None:
        """Every worker computes its part of a phase."""
        phase = f"{step}.{kernel.partition('.')[2]}"
        self._declare(write)
        self.phases[phase] = Signature(tuple(reads), write, kernel=kernel, scale=str(scale))
        self.grid[phase] = {WORKER: self.workers, "M": 1, "N": 1, "K": 1}
        for worker, program in enumerate(self.programs):
            names = tuple(self._block(read, worker) for read in reads)
            slices = {**dict.fromkeys(self.grid[phase], 0), WORKER: worker}
            program.append(Compute(names, self._block(write, worker), phase, slices))

    def _free(self, templates: list[str]) -> None:
        for worker, program in enumerate(self.programs):
            program += [Free(self._block(template, worker)) for template in templates]

    def _declare(self, template: str) -> None:
        """Cut a tensor by its template: every dim but that of the workers is whole."""
        sizes = {"M": self.rows, "N": self.inputs, "K": self.outputs}
        parsed = Template.parse(template)
        workers = tuple(range(self.workers + 1))
        self.tensors[parsed.tensor] = Tensor(
            tuple(workers if dim == WORKER else (0, sizes[dim]) for dim, _ in parsed.entries)
        )

    def _block(self, template: str, worker: int) -> str:
        return Template.parse(template).block({WORKER: worker, "M": 0, "N": 0, "K": 0})

    def program(self, last: int, sent: Fraction) -> Program:
        """The finished program, which ends with the model before step `last`."""
        workers = range(self.workers)
        begin = [f"model.0{SHARED}", *self.batches]
        return Program(
            format="primepar-program",
            version=1,
            ranks=self.workers,
            programs=tuple(map(tuple, self.programs)),
            grid=self.grid,
            initial=tuple(tuple(self._block(name, worker) for name in begin) for worker in workers),
            final=tuple((self._block(self.model(last), worker),) for worker in workers),
            phases=self.phases,
            tensors=self.tensors,
            traffic=(str(sent) if sent.denominator > 1 else int(sent),) * self.workers,
        )
