"""What no schedule of a linear operator can send less than, in words per device.

Every word that crosses a link counts once, and the amounts are means over the devices. Products are
classical, each phase has equal work on every device, and there is one copy of inputs before and of
outputs after. The proofs are in docs/lower-bounds.md.

One product: Al Daas et al., SPAA 2022, Theorem 3. With little memory: Smith et al., 2017, arXiv
1702.02017.
A training step: ours, since three times the bound of a product is none. A device may keep I, W and
dO between phases, and then sends less than three products do. With P devices, V = MNK / P and

    u, v, w = MN / P, NK / P, MK / P

a device needs A u of I, B v of W and C w of dO. It makes a u of dI, b v of dW and c w of O. The
inequality of Loomis and Whitney for forward, backward and gradient is

    A B c >= P,  a B C >= P,  A b C >= P,  all at least 1,

and the device moves (A + a) u + (B + b) v + (C + c) w - 2 (u + v + w) words or more. The minimum
is a geometric program. A solver approaches it from above, which is no bound. Here it is approached
from below: any multipliers of the three inequalities give a lower bound (weak duality), whether
they are the best ones or not.

For example, the cube M = N = K has 9/2 2^(1/3) V^(2/3) - 2 (u + v + w), where all-stash on a
cubic grid sends 6 V^(2/3) - 2 (u + v + w).
"""

from __future__ import annotations

from math import exp, log, sqrt

from primepar.schedule.movement import Movement

CUBE = 4096
"""Elements along each dim of a product where none is named."""
ROUNDING = 1e-13
"""What a sum of a hundred numbers can be too large by, in relation to the largest of them."""


def one_product(M: int, N: int, K: int, devices: int) -> float:
    """Words per device of O = I W, with any memory: Al Daas et al., SPAA 2022, Theorem 3."""
    shares = _shares(M, N, K, devices)
    return _less(_three(shares, devices), sum(shares))


def training_step(
    M: int,
    N: int,
    K: int,
    devices: int,
    memory: float | None = None,
    kept: float | None = None,
) -> float:
    """Words per device of forward, backward and gradient of one linear operator.

    `memory` is the most words that a device ever holds, `kept` the most of I and W that it holds
    between forward and backward: at least one copy, (MN + NK) / devices.
    """
    u, v, w = shares = _shares(M, N, K, devices)
    bounds = [_less(_joint(shares, devices), 2 * sum(shares))]
    if kept is not None:
        # What a device does not keep, backward and gradient fetch again.
        again = _three((2 * u, 2 * v, w), devices)
        both = _three(shares, devices) + again
        bounds.append(_less(both, 2 * sum(shares) + max(kept, u + v)))
    if memory is not None:
        products = M * N * K / devices
        together = 3 * sqrt(3) * products / sqrt(memory) - 2 * memory
        apart = 3 * (2 * products / sqrt(memory) - 2 * memory)
        # dO arrives from the next operator: w words that a device holds and did not receive.
        bounds.append(_less(max(together, apart), sum(shares) + w))
    return max(bounds)


def starts_replicated(movement: Movement) -> tuple[str, ...]:
    """Operands of which the devices hold more than one copy at the start; no bound is about them.

    For data parallelism that is W, which every device has.
    """
    reads = (("forward", "I"), ("forward", "W"), ("gradient", "dO"))
    starts = {tensor: movement.start(phase, tensor) for phase, tensor in reads}
    return tuple(
        tensor
        for tensor, held in starts.items()
        if sum(map(len, held)) > len(frozenset().union(*held))
    )


def _shares(M: int, N: int, K: int, devices: int) -> tuple[float, float, float]:
    return M * N / devices, N * K / devices, M * K / devices


def _less(words: float, held: float) -> float:
    """What is left of the words that a device needs, rounded down."""
    return max(0.0, words - held - ROUNDING * (abs(words) + held))


def _three(shares: tuple[float, float, float], devices: int) -> float:
    """The least of x u + y v + z w with x y z >= P, all at least 1."""
    first, second, third = sorted(shares, reverse=True)
    # Each case is an optimum with other factors at 1: the smallest tensor alone is gathered, then
    # two of them on a grid of two axes, then all three on a cube.
    if third * devices <= second:
        return first + second + third * devices
    if second * third * devices <= first * first:
        return first + 2 * sqrt(second * third * devices)
    return 3 * float((first * second * third * devices) ** (1 / 3))


def _joint(shares: tuple[float, float, float], devices: int) -> float:
    """A lower bound of (A + a) u + (B + b) v + (C + c) w, within rounding of its minimum."""
    u, v, w = sorted(shares, reverse=True)
    products = sqrt(u * v * w * devices)
    pair, whole, some = sqrt(v * w * devices), w * devices, sqrt(products * sqrt(u) / 2)
    kept = min(max(v - whole, 0.0), whole)
    part = _root((u + v) / whole)
    sums = whole * part * part
    # Multipliers of a B C >= P, A b C >= P and A B c >= P, best where at their minimum
    candidates = (
        (kept, whole - kept, whole),  # the smallest tensor alone is gathered
        (0.0, pair, pair),  # the two smaller ones are, on a grid of two axes
        (v / part - sums, u / part - sums, sums),  # only c takes part in the sums of its phase
        (pair - some, some, some),  # all but a are more than 1
        ((products / 2) ** (2 / 3),) * 3,  # all are more than 1, as in the cube
    )
    return max(_dual((u, v, w), devices, multipliers) for multipliers in candidates)


def _root(value: float) -> float:
    """The positive root of 2 x^3 + x^2 = value, nearly."""
    x = max(1.0, value)
    for _ in range(60):
        x -= (2 * x**3 + x**2 - value) / (6 * x**2 + 2 * x)
    return x


def _dual(
    shares: tuple[float, float, float], devices: int, multipliers: tuple[float, float, float]
) -> float:
    """The least Lagrangian of the geometric program in logarithms, of multipliers made positive.

    A variable e^y with weight c and pull s has the term c e^y - s y, least at y = log(s / c) within
    0 <= y <= log P. No variable needs more than P.
    """
    one, two, three = (max(multiplier, 0.0) for multiplier in multipliers)
    pulls = (two + three, one + three, one + two, one, two, three)
    least, size = (one + two + three) * log(devices), 0.0
    # Weak duality: for any multipliers the sum of the least terms is at most the minimum, so an
    # inexact choice gives a smaller bound, and never a wrong one.
    for pull, share in zip(pulls, (*shares, *shares), strict=True):
        y = min(log(max(pull / share, 1.0)), log(devices))
        least += share * exp(y) - pull * y
        size += share * exp(y) + pull * y
    return least - ROUNDING * size
