"""How often should the models of local SGD be averaged?

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

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import log2, log10, sqrt

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import BenchRow, BenchRun, Case, Cells, bench
from primepar.api.drawings import method_events
from primepar.partition.local_sgd import LocalSGD, averaging_steps
from primepar.pictures import svg
from primepar.pictures.methods import method_svg

WORKERS, STEPS, RATE = 8, 32, 0.1
START, DEVIATION = 10.0, 1.0
"""w_0, and sigma."""
BETAS = (0.0, 1.0, 2.5)
PERIODS = (1, 2, 4, 8, 16, 32)
RUNS, SEED = 40_000, 2016
INTERVAL = 1.96
"""Standard errors on each side of a mean, for a confidence of 95 %."""


class PeriodRow(BenchRow, frozen=True):
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

    @property
    def title(self) -> str:
        return (
            f"{WORKERS} workers, {STEPS} steps, rate {RATE}, w_0 = {START:g}, sigma = "
            f"{DEVIATION:g}, {RUNS:,} runs, 95 % intervals"
        )

    @property
    def cells(self) -> Cells:
        ratio = 1 + (self.beta * START / DEVIATION) ** 2
        return {
            "beta": self.beta,
            "variance at w_0 : at 0": f"{ratio:,.0f} : 1",
            "period": self.period,
            "error of the mean": f"{self.error:.4f} +- {self.half_width:.4f}",
            "by the recursion": f"{self.formula:.4f}",
            "to H = 1": f"{self.formula / expected_error(self.beta, 1):.3f}",
        }

    @classmethod
    def notes(cls, rows: Sequence[PeriodRow]) -> Iterator[str]:
        """How many intervals have the formula inside."""
        inside = sum(row.inside for row in rows)
        yield f"the recursion is inside of {inside} of {len(rows)} intervals"


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


def measure(number: int, period: int) -> PeriodRow:
    """Run the noise of a number with a period, with random numbers of its own."""
    beta = BETAS[number]
    squares = averaged_models(beta, period, seed=(SEED, number, period)) ** 2
    half_width = INTERVAL * float(squares.std(ddof=1)) / sqrt(RUNS)
    error = float(squares.mean())
    return PeriodRow(beta, period, error, half_width, expected_error(beta, period))


def local_sgd() -> Iterator[Case]:
    for number, beta in enumerate(BETAS):
        for period in PERIODS:
            yield f"beta {beta}, period {period}", partial(measure, number, period)


WIDTH, LEFT, RIGHT, TOP, BOTTOM = 560.0, 70.0, 540.0, 34.0, 290.0


def error_picture(rows: Sequence[PeriodRow]) -> str:
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


def _axes(
    x: Callable[[int], float], y: Callable[[float], float], low: float, high: float
) -> Iterator[str]:
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
    return method_svg(
        "local-sgd", {title: method_events(method) for title, method in PICTURED.items()}
    )


def pictures(run: BenchRun[PeriodRow]) -> dict[str, str]:
    """The errors of all periods, and the schedules of some."""
    return {
        "local-sgd-error.svg": error_picture(run.measured),
        "local-sgd-periods.svg": schedule_picture(),
    }


if __name__ == "__main__":
    bench(local_sgd, pictures=pictures)
