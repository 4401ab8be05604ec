"""`python -m benchmarks.local_sgd`: how often should the models of local SGD be averaged?

K workers minimise f(w) = w^2 / 2, each from the same start w_0 and with gradients w + noise. The
noise has mean zero and variance beta^2 w^2 + sigma^2: sigma^2 at the optimum w = 0, and more the
farther w is from it (Zhang et al., arXiv 1606.07365). After T steps the error of the averaged model
is its square. It is measured over many runs, and computed from the recursion of second moments:

    A = E[(mean of w_k)^2]     A <- (1 - lr)^2 A + lr^2 (beta^2 B + sigma^2) / K
    B = E[w_k^2]               B <- ((1 - lr)^2 + lr^2 beta^2) B + lr^2 sigma^2; at averages B <- A

With beta = 0 nothing of A depends on B, so the period does not matter. Else B, which is larger than
A between averages, adds to A.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log2, log10, sqrt
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray

from primepar.cli import main
from primepar.errors import ConfigError
from primepar.files import write_text
from primepar.operators import StepInputs, StepSettings
from primepar.partition.local_sgd import LocalSGD, averaging_steps
from primepar.pictures import svg
from primepar.schedule.events import Event

WORKERS, STEPS, RATE = 8, 32, 0.1
START, DEVIATION = 10.0, 1.0
"""w_0, and sigma."""
BETAS = (0.0, 1.0, 2.5)
PERIODS = (1, 2, 4, 8, 16, 32)
RUNS, SEED = 40_000, 2016
INTERVAL = 1.96
"""Standard errors on each side of a mean, for a confidence of 95 %."""


class PeriodRow(NamedTuple):
    """The error of the averaged model for one noise and one period, and by the recursion."""

    beta: float
    period: int
    error: float
    half_width: float
    """Half of the 95 % confidence interval."""
    formula: float

    @property
    def inside(self) -> bool:
        """Whether the formula is inside of the interval."""
        return abs(self.error - self.formula) <= self.half_width


def averaged_models(
    beta: float, period: int, runs: int = RUNS, seed: tuple[int, ...] = (SEED,)
) -> NDArray[np.float64]:
    """Return the mean of the workers' models after the last step, for every run."""
    generator = np.random.default_rng(seed)
    w = np.full((runs, WORKERS), START)
    averages = set(averaging_steps(STEPS, period))
    for step in range(STEPS):
        noise = np.sqrt(beta**2 * w**2 + DEVIATION**2) * generator.standard_normal(w.shape)
        w -= RATE * (w + noise)
        if step in averages:
            w[:] = w.mean(axis=1, keepdims=True)
    return w[:, 0].copy()


def expected_error(beta: float, period: int) -> float:
    """Return the expected square of the averaged model after the last step."""
    mean = model = START**2
    averages = set(averaging_steps(STEPS, period))
    kept, added = (1 - RATE) ** 2, RATE**2
    for step in range(STEPS):
        variance = beta**2 * model + DEVIATION**2
        mean, model = kept * mean + added * variance / WORKERS, kept * model + added * variance
        if step in averages:
            model = mean
    return mean


def measure() -> list[PeriodRow]:
    """Run every noise with every period, each with random numbers of its own."""
    rows = []
    for number, beta in enumerate(BETAS):
        for period in PERIODS:
            squares = averaged_models(beta, period, seed=(SEED, number, period)) ** 2
            half_width = INTERVAL * float(squares.std(ddof=1)) / sqrt(RUNS)
            formula = expected_error(beta, period)
            rows.append(PeriodRow(beta, period, float(squares.mean()), half_width, formula))
    return rows


def lines(rows: list[PeriodRow]) -> Iterator[str]:
    """The table of all rows, and how many intervals have the formula inside."""
    yield (
        f"{WORKERS} workers, {STEPS} steps, rate {RATE}, w_0 = {START:g}, sigma = {DEVIATION:g}, "
        f"{RUNS:,} runs, 95 % intervals"
    )
    yield "beta  variance at w_0 : at 0  period  error of the mean       by the recursion  to H = 1"
    first = {row.beta: row.formula for row in rows if row.period == 1}
    for row in rows:
        ratio = 1 + (row.beta * START / DEVIATION) ** 2
        measured = f"{row.error:.4f} +- {row.half_width:.4f}"
        yield (
            f"{row.beta:4}  {ratio:15,.0f} : 1      {row.period:6}  {measured:22}  "
            f"{row.formula:16.4f}  {row.formula / first[row.beta]:8.3f}"
        )
    yield f"the recursion is inside of {sum(row.inside for row in rows)} of {len(rows)} intervals"


WIDTH, LEFT, RIGHT, TOP, BOTTOM = 560.0, 70.0, 540.0, 34.0, 290.0


def error_picture(rows: list[PeriodRow]) -> str:
    """SVG of the errors against the period: intervals as measured, lines by the recursion."""
    values = [row.formula for row in rows] + [row.error + row.half_width for row in rows]
    low, high = log10(min(values)) - 0.05, log10(max(values)) + 0.05

    def x(period: int) -> float:
        return LEFT + 20 + (RIGHT - LEFT - 60) * log2(period) / log2(PERIODS[-1])

    def y(error: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (log10(error) - low) / (high - low)

    title = "Squared error of the averaged model"
    body = [svg.text(title, 4, 16, font_weight=600), *_axes(x, y, 10**low, 10**high)]
    for place, beta in enumerate(BETAS):
        colour = svg.under_white((0.58, 0.33, 0.05)[place])
        some = [row for row in rows if row.beta == beta]
        path = " ".join(
            f"{'M' if place == 0 else 'L'}{x(row.period):.1f} {y(row.formula):.1f}"
            for place, row in enumerate(some)
        )
        body.append(svg.element("path", d=path, fill="none", stroke=colour, stroke_width=1.6))
        for row in some:
            ends = [y(row.error - row.half_width), y(row.error + row.half_width)]
            tip = svg.title(f"beta {beta}, period {row.period}: {row.error:.4f}")
            body.append(svg.element("line", tip, x1=x(row.period), x2=x(row.period), y1=ends[0],
                                    y2=ends[1], stroke=colour, stroke_width=5))  # fmt: skip
        body.append(svg.element("rect", x=LEFT + 150 * place, y=BOTTOM + 44, width=10, height=10,
                                fill=colour))  # fmt: skip
        body.append(svg.text(f"beta = {beta:g}", LEFT + 16 + 150 * place, BOTTOM + 53))
    return svg.picture(WIDTH, BOTTOM + 66, body, title)


def _axes(x: object, y: object, low: float, high: float) -> Iterator[str]:
    assert callable(x)
    assert callable(y)
    for period in PERIODS:
        yield svg.text(str(period), x(period), BOTTOM + 16, text_anchor="middle", font_size=11)
    yield svg.text("steps between averages", (LEFT + RIGHT) / 2, BOTTOM + 34, text_anchor="middle")
    for error in (0.1, 0.12, 0.14, 0.16, 0.18, 0.2, 0.22, 0.24, 0.26, 0.28, 0.3):
        if low <= error <= high:
            line = y(error)
            yield svg.element("line", x1=LEFT, y1=line, x2=RIGHT, y2=line, stroke=svg.GREY,
                              stroke_opacity=0.25)  # fmt: skip
            yield svg.text(f"{error:g}", LEFT - 8, line + 4, text_anchor="end", font_size=11)


PICTURED = {
    "H = 1, an average after every step": LocalSGD(period=1),
    "H = 4": LocalSGD(period=4),
    "H = 8, all steps: one average at the end": LocalSGD(period=8),
    "H = 3 after two synchronous steps (post-local SGD)": LocalSGD(period=3, warm_up=2),
}


def schedule_picture() -> str:
    """SVG of the emulated events of several periods."""
    from primepar.pictures.methods import method_svg

    runs = {title: emulated_events(method) for title, method in PICTURED.items()}
    return method_svg("local-sgd", runs)


def emulated_events(method: LocalSGD) -> list[Event]:
    """The events of a method's program on emulated devices."""
    from primepar.models import GPTConfig
    from primepar.reference.emulator.executor import emulate
    from primepar.reference.kernels import StepKernels
    from primepar.schedule.effects import initial_blocks

    program = method.program()
    kernels = StepKernels(StepSettings(GPTConfig(), 1, 1), StepInputs(rate=RATE))
    memories = [
        {name: np.ones(_shape(name, method)) for name in names} for names in initial_blocks(program)
    ]
    return emulate(program, memories, kernels=kernels).events


def _shape(block: str, method: LocalSGD) -> tuple[int, ...]:
    rows, columns, results = method.rows, method.inputs, method.outputs
    return {"m": (columns, results), "x": (1, rows, columns), "y": (1, rows, results)}[block[0]]


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog="Example: python -m benchmarks.local_sgd --output docs/images")
def bench_local_sgd(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Write the two pictures there."),
    ] = None,
) -> None:
    """Measure the error of the averaged model for several periods and noises."""
    if output is not None and not output.is_dir():
        raise ConfigError(f"--output: expected a folder that is there, got {output}: make it first")
    rows = measure()
    typer.echo("\n".join(lines(rows)))
    if output is not None:
        write_text(output / "local-sgd-error.svg", error_picture(rows))
        write_text(output / "local-sgd-periods.svg", schedule_picture())


if __name__ == "__main__":
    main(app, "python -m benchmarks.local_sgd")
