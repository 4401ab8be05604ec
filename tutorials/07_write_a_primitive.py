# %% [markdown]
# # Write a primitive of your own
#
# Three devices, or thirty. Each has some rows of `I`, and should make the same rows of `O`. That
# is data parallelism, and `W` is replicated. Here each device holds only a part of `W`, and the
# parts go round in a ring while the devices multiply. This tutorial writes that down, proves it,
# breaks it in three places, and trains with it.

# %% Set-up: imports
from pathlib import Path

import numpy as np

import primepar
from primepar import Primitive, where
from primepar.reference.emulator.linear import EmulatedLinear
from primepar.schedule import Linear, Sequence

OUT = Path("out/tutorials")
OUT.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## The map
#
# Write down for one device `r` at step `t` what it multiplies: its rows, `M=r`, with slice `r +
# t` of `N`. So at step 0 each device uses its own slice of `W`, and at each step the next one.
# Leave `backward` and `gradient` out: they follow the same map. Between phases each tensor is
# sharded by rows: that is its *home*.


# %%
class WeightRing(Primitive):
    """Rows of I and O stay; slices of W go round."""

    axes = ("r",)

    def forward(self, r, t, s):
        return dict(M=r, N=(r + t) % s)

    def home(self, tensor, r, s):
        return {"I": dict(M=r), "W": dict(N=r), "O": dict(M=r)}[tensor]


print(primepar.show(WeightRing, side=3, phase="forward").save(OUT / "07_weight_ring.svg"))

# %% [markdown]
# That is the whole of it. Nobody has written what is sent: it follows from the map. What a device
# needs at the next step, and has not got, travels while it multiplies.
#
# ## Is it right?
#
# On three devices a test answers that, and on every number of devices a proof:

# %%
print(primepar.check(WeightRing, side=3).outputs)
print(primepar.verify(WeightRing))

# %% [question]
# At step 2 on three devices, which slice of `W` does device 1 use, and from whom does it come?
#
# Hint: `(r + t) % s`, and who used it at step 1?
#
# Answer: Slice 0, from device 2, which used it at step 1.
ring3 = Sequence.of(WeightRing(), 3)
assert ring3.slices("forward", 1, 2)["N"] == ring3.slices("forward", 2, 1)["N"] == (0,)

# %% [markdown]
# ## Break the offset
#
# A ring in steps of two visits every slice if the number of devices is odd, and half of them if
# it is even.


# %%
class WrongOffset(WeightRing):
    def forward(self, r, t, s):
        return dict(M=r, N=(r + 2 * t) % s)


print(primepar.verify(WrongOffset))
print(primepar.show(WrongOffset, side=2, phase="forward").save(OUT / "07_wrong_offset.svg"))

# %% [markdown]
# Read it from the left: *s=2* is the smallest mesh that is wrong; then the phase and the product;
# then the two places where it is computed. In the picture both are in the row of device 0.
# Coverage is the root. Completion is *not asked*: without all products a sum has no meaning.


# %% [question]
# Steps of three instead of two: on which sides up to 6 is the ring right?
#
# Hint: When do 0, 3, 6, ... modulo the side reach every slice?
#
# Answer: On 1, 2, 4 and 5: on the sides that 3 does not divide.
class StepsOfThree(WeightRing):
    def forward(self, r, t, s):
        return dict(M=r, N=(r + 3 * t) % s)


assert [s for s in range(1, 7) if primepar.check(StepsOfThree, side=s).equal] == [1, 2, 4, 5]

# %% [markdown]
# ## Break the home
#
# The same factor of two in the home of `W`. Products and steps are right now, but on two devices
# both hold slice 0, and slice 1 is held by none. The counterexample names the first product that
# misses its block.


# %%
class WrongHome(WeightRing):
    def home(self, tensor, r, s):
        return {"I": dict(M=r), "W": dict(N=2 * r % s), "O": dict(M=r)}[tensor]


print(primepar.verify(WrongHome))

# %% [markdown]
# ## Break the last step
#
# A device has its own slice already, so that `s - 1` slices have to come. Hence `s - 1` steps?


# %%
class WrongLastStep(WeightRing):
    def steps(self, s):
        return where(s == 1, 1, s - 1)


print(primepar.verify(WrongLastStep))
print(primepar.show(WrongLastStep, side=3, phase="forward").save(OUT / "07_wrong_last_step.svg"))

# %% [markdown]
# One step too few: `s` products, of which only the first needs no transfer. In the picture of
# three devices each row has two products where there should be three.
#
# All three are fixed by what `WeightRing` has. The first and the second would have passed
# on any odd number of devices:

# %%
for primitive in (WrongOffset, WrongHome):
    print(primitive.__name__, [primepar.check(primitive, side=s).equal for s in (3, 5)])

# %% [markdown]
# ## What does it send, and what does it hold?
#
# It is compared with plain data parallelism, `M`, which replicates `W` and all-reduces its
# gradient. Elements per device in one training step:

# %%
shape = Linear(M=24, N=24, K=24)
print(f"{'devices':8} {'ring sends':>11} {'holds':>7}   {'M sends':>8} {'holds':>7}")
for side in (2, 4, 8):
    ring = primepar.check(WeightRing, side=side, shape=shape)
    plain = primepar.check(f"M{side}", shape=shape)
    print(f"{side:<8} {ring.sent[0]:>11g} {max(ring.peak):>7}   "
          f"{plain.sent[0]:>8g} {max(plain.peak):>7}")  # fmt: skip

# %% [markdown]
# The ring sends half as much again. In forward and in backward each device receives the slices of
# `W` that it does not hold, and gradient scatters the sums of `dW`; an all-reduce is two such
# rounds. In return, what it holds shrinks with the number of devices. ZeRO and FSDP make the same
# trade.

# %% [question]
# On 16 devices, how much more than `M` does the ring send?
#
# Hint: Read the table: does the ratio depend on the number of devices?
#
# Answer: Half as much again, as on 2, 4 and 8.
sides = [
    (
        primepar.check(WeightRing, side=s, shape=shape).sent[0],
        primepar.check(f"M{s}", shape=shape).sent[0],
    )
    for s in (2, 4, 8)
]
assert all(ring == 1.5 * plain for ring, plain in sides)

# %% [markdown]
# ## Train it
#
# Four emulated devices fit a linear map, and so does one device with NumPy, to compare. The
# blocks stay on the devices between forward and backward.


# %%
def fit(operator, forward, backward, steps=5):
    """Squared errors of a linear map that learns another one, step by step, and its weight."""
    rng = np.random.default_rng(0)
    I_MN = rng.standard_normal((operator.M, operator.N))
    wanted_MK = I_MN @ rng.standard_normal((operator.N, operator.K))
    W_NK, errors = np.zeros((operator.N, operator.K)), []
    for _ in range(steps):
        dO_MK = (forward(I_MN, W_NK) - wanted_MK) / operator.M
        errors.append(np.square(dO_MK).sum())
        W_NK = W_NK - 0.5 * backward(I_MN, dO_MK)
    return errors, W_NK


operator = Linear(M=8, N=8, K=4)
linear = EmulatedLinear(Sequence.of(WeightRing(), 4), operator)
four, weight = fit(operator, linear.forward, lambda I_MN, dO_MK: linear.backward(dO_MK)[1])
one, expected = fit(operator, np.matmul, lambda I_MN, dO_MK: I_MN.T @ dO_MK)
for step in range(5):
    print(f"step {step}  four devices {four[step]:.6f}  one device {one[step]:.6f}")
assert np.allclose(weight, expected, rtol=1e-12, atol=1e-12)

# %% [markdown]
# ## Your turn
#
# Let the weight stay, and the rows go round. Write your answer into
# `tutorials/exercises/07_rows_go_round.py`, and run it:
#
# ```sh
# python tutorials/exercises/07_rows_go_round.py
# primepar exercise 7
# ```
#
# The second command shows a primitive that passes every test on four devices and fails on nine.
