# %% [markdown]
# # Time as a dimension: from Cannon to PrimePar
#
# Splitting a product by dims left us with two prices: tensors that every device holds whole,
# and sums that have to be added up over the network before anybody can go on. Here is a
# schedule of four devices that has neither. It takes two steps instead of one. Follow one
# block, for example `I[0,1]`, from left to right: who has it, and when?

# %% Set-up: imports
from pathlib import Path

import numpy as np

import primepar
from primepar import Primitive
from primepar.partition import PrimePar, parse_sequence
from primepar.reference import emulate, scatter
from primepar.schedule import (
    Linear,
    Movement,
    Sequence,
    program_text,
    redistribution,
)
from primepar.schedule.ledger import sent_by_ranks
from primepar.schedule.lowering import layout
from primepar.schedule.program import ISend

OUT = Path("out/tutorials")
OUT.mkdir(parents=True, exist_ok=True)

# %%
two = parse_sequence("P2x2")
print(primepar.show(two, phase="forward").save(OUT / "03_forward.svg"))

# %% [markdown]
# ## Why steps
#
# Put the devices on a square mesh of side `s` and cut `M`, `N` and `K` into `s` slices each.
# That makes `s * s` devices and `s * s * s` sub-operators. If every device is to do its share,
# one at a time, it takes `s` steps. Then device and step together, `(r, c, t)`, have as many
# values as `(m, n, k)`, and a schedule is a one-to-one map between the two. Time is a third
# dimension to split along, in addition to the two of the mesh.
#
# The obvious such map leaves device `(r, c)` its tile of `O` and lets it walk along `N`:


# %%
class Walk(Primitive):
    axes = ("r", "c")

    def forward(self, r, c, t, s):
        return dict(M=r, N=t, K=c)


def table(sequence, phase, dim):
    """The slice that every device works on, one mesh for each step."""
    rank_at = {place: rank for rank, place in enumerate(sequence.coordinates)}
    steps, side = range(sequence.steps), range(sequence.axis_lengths[0])
    print(f"{dim}:  " + "   ".join(f"step {t}" for t in steps))
    for r in side:
        meshes = (
            " ".join(str(*sequence.slices(phase, rank_at[r, c], t)[dim]) for c in side)
            for t in steps
        )
        print(f"r={r}  " + "    ".join(meshes))


table(Sequence.of(Walk(), 3), "forward", "N")

# %% [markdown]
# No sum is spread over devices any more: each tile of `O` stays where it is and gets one term
# at every step. But at each step a whole row of devices needs the same block of `I`, and a
# whole column the same block of `W`. How many different blocks are in use at one step?


# %%
def in_use(primitive, side):
    movement = Movement(Sequence.of(primitive, side))
    for tensor in ("I", "W"):
        held = movement.held("forward", tensor, 0)
        different = len(frozenset().union(*held))
        print(f"{tensor}: {len(held)} devices read {different} different blocks")


in_use(Walk(), 3)

# %% [question]
# Sixteen devices on a square: how many steps does a phase have, and how many sub-operators are
# there?
#
# Hint: What is `s`?
#
# Answer: `s = 4`, so 4 steps and 64 sub-operators: each of the 16 devices does 4.
square = Sequence.of(Walk(), 4)
assert (square.ranks, square.steps, square.ranks * square.steps) == (16, 4, 64)

# %% [markdown]
# ## The skew
#
# Cannon (1969) starts every device at another place of the walk: device `(r, c)` begins at
# slice `r + c`.


# %%
class Cannon(Primitive):
    axes = ("r", "c")

    def forward(self, r, c, t, s):
        return dict(M=r, N=(r + c + t) % s, K=c)


cannon = Sequence.of(Cannon(), 3)
table(cannon, "forward", "N")
print()
in_use(Cannon(), 3)

# %% [markdown]
# Each column of numbers is a column of the mesh. In every row and in every column each slice
# now occurs once. So at every step each block of `I` and of `W` is in use on exactly one
# device: nothing is held twice.
#
# And the block that a device needs next is one that a neighbour has just used. Nobody has to
# write that: it follows from the map. These are the hops while step 0 computes, for the devices
# of the first row:

# %%
hops = Movement(cannon).phases["forward"].operands[0]
for hop in hops:
    if cannon.coordinates[hop.target][0] == 0:
        source, target = cannon.coordinates[hop.source], cannon.coordinates[hop.target]
        print(f"{target} gets {hop.tensor}{list(hop.index)} from {source}")

# %% [markdown]
# `I` comes from the right, `W` from below. Each device sends one block of each and receives one
# of each, around the rings of the mesh.

# %% [question]
# With Cannon's map on nine devices, which slice of `N` does device (1, 2) use at step 1?
#
# Hint: `(r + c + t) % s`.
#
# Answer: Slice 1, as 1 + 2 + 1 is 4, and 4 % 3 is 1.
assert cannon.slices("forward", cannon.coordinates.index((1, 2)), 1)["N"] == (1,)

# %% [markdown]
# ## While it computes
#
# A block that is needed at step `t + 1` has been with its owner since step `t` at the latest,
# so it can travel *while step `t` computes*. The program of a device has this order: post the
# transfers, multiply, wait for the transfers, free what was used.

# %%
print(program_text(primepar.lower(two, phase="forward")).partition("\n\n")[0])

# %% [markdown]
# For a moment a device has two blocks of a tensor: the one it multiplies and the one that
# arrives. That is **double buffering**, and two buffers are enough for any number of steps.
#
# ## Three products
#
# A training step has three products, and they share their operands: `I` is used in forward and
# again in gradient, `W` in forward and backward, `dO` in backward and gradient. Each phase
# begins where the last one left these tensors. Does Cannon's map do for all three? We ask the
# prover, which looks at every side of the mesh at once:

# %%
print(primepar.verify(Cannon))

# %% [markdown]
# It does not. The gradient of `W` ends one place away from the block of `W` that it belongs to,
# so no device could update its weights.
#
# ## PrimePar's answer
#
# PrimePar (Wang et al., ASPLOS 2024, equations 4 to 6) gives each phase a walk of its own,
# along another dim each time: `N` in forward, `K` in backward, `M` in gradient. So the output
# of each phase can stay. The three are laid out such that each begins where another ended.
# Watch where the tensors are at the last step of one phase and at the first step of the next
# that reads them:

# %%
movement = Movement(two)
for tensor, before, after in (("I", "forward", "gradient"), ("W", "forward", "backward"),
                              ("dO", "backward", "gradient")):  # fmt: skip
    same = movement.end(before, tensor) == movement.start(after, tensor)
    print(f"{tensor:2} after {before} is where {after} starts: {same}")
for tensor, before, after in (("W", "backward", "forward"), ("dW", "gradient", "forward")):
    same = movement.end(before, tensor) == movement.start(after, "W")
    print(f"{tensor:2} at the last step of {before} is where the next forward starts: {same}")

# %% [markdown]
# One line prints *False*: `W` is one place off at the last step of backward. So it makes one more
# hop, the **realigning hop**, while that step computes. The gradient of `W` has a similar
# problem and another way out: up to its last step it is summed one place off. Then the partial
# sum hops to its place, while the last product is already computed there, and is added when it
# arrives. We call it a **travelling partial sum**.
#
# The whole of it, derived from the three maps. The paper lists the same transfers in its Table
# 1.

# %%
four = Movement(parse_sequence("P4x4"))
for phase, moved in four.phases.items():
    for step, (operands, partials) in enumerate(zip(moved.operands, moved.partials, strict=True)):
        tensors = dict.fromkeys(hop.tensor for hop in (*operands, *partials))
        print(f"{phase:8} step {step}: {' '.join(tensors) or '-'}")

# %% [markdown]
# And all three phases on four devices:

# %%
print(primepar.show(two).save(OUT / "03_training_step.svg"))
print(primepar.verify(PrimePar))

# %% [markdown]
# Does the overlap work out? The emulator runs the program on a logical clock, on which a
# product takes one unit and a transfer one unit. Upper bars are products, lower bars are
# messages; there is no gap between the products:

# %%
three = parse_sequence("P3x3")
program = primepar.lower(three, shape=(6, 6, 6))
ones = {tensor: np.ones((6, 6)) for tensor in ("I", "W", "dO")}
run = emulate(program, scatter(program.initial, three.grid, ones))
primepar.show(run).save(OUT / "03_timeline.svg")
products = [event for event in run.events if event.op == "compute" and event.phase]
first = [event for event in products if event.rank == 0]
print(f"{len(first)} products on device 0, the last ends at {max(e.end for e in products):g}")

# %% [markdown]
# ## What it costs
#
# No copies and no all-reduce does not mean that little is sent: all that hops, hops `s - 1`
# times or more. We count the elements that one device sends in a training step of one linear
# operator of an MLP, `N = h`, `K = 4h`. Splitting by `K` on the same number of devices is listed
# with it.

# %%
h = 16
print("devices    M   split K       PrimePar")
for side in (2, 4, 8):
    for M in (h, 4 * h, 16 * h):
        shape = Linear(M=M, N=h, K=4 * h)
        programs = (primepar.lower(text, shape=shape)
                    for text in (f"K{side * side}", f"P{side}x{side}"))  # fmt: skip
        by_k, ring = (sent_by_ranks(program)[0] for program in programs)
        print(f"{side * side:7} {M // h:3}h  {float(by_k):9.1f}  {float(ring):9.1f}")

# %% [markdown]
# On few devices, splitting by dimension sends less, for every length in the table. The
# comparison turns with many devices and long sequences. Before that point PrimePar has two
# advantages. Each transfer can overlap with a product, while an all-reduce has to wait for the
# product that it sums. And each device holds one block of every tensor, where splitting by `K`
# leaves `I` replicated.
#
# ## Between operators
#
# One more price is easily overlooked. The output is laid out as `O[M_r, K_c]`, but the next
# operator needs its input skewed, `I[M_r, N_(r+c)]`. Whatever is not there yet has to be moved
# in between, and likewise for `dI` on the way back. The paper counts this as the cost between
# operators (equations 8 and 9). What share of the blocks is it?

# %%
for side in (2, 3, 4):
    movement = Movement(parse_sequence(f"P{side}x{side}"))
    ends = (
        ("O", "forward", "I", "forward"),
        ("dI", "backward", "dO", "backward"),
    )
    for left, before, needed, after in ends:
        program = redistribution(
            layout(movement, before, left, last=True),
            layout(movement, after, needed, last=False),
        )
        moved = sum(isinstance(node, ISend) for rank in program.programs for node in rank)
        print(f"side {side}: {moved} of {side * side} blocks, from {left} to {needed}")

# %% [markdown]
# In general `1 - 1/s` of the blocks. A planner that chooses a sequence for each operator has to
# weigh this too.

# %% [question]
# On 25 devices, how many of the 25 blocks of `O` move before the next operator?
#
# Hint: `1 - 1/s` of them.
#
# Answer: 20. Only the devices of one diagonal have what they need.
five = Movement(parse_sequence("P5x5"))
between = redistribution(
    layout(five, "forward", "O", last=True), layout(five, "forward", "I", last=False)
)
assert sum(isinstance(node, ISend) for rank in between.programs for node in rank) == 20

# %% [markdown]
# ## Your turn
#
# Let the ring turn the other way, and find the backward and the gradient that go with it. Write
# your answer into `tutorials/exercises/03_the_other_way_round.py`, and run it:
#
# ```sh
# python tutorials/exercises/03_the_other_way_round.py
# primepar exercise 3
# ```
#
# The second command shows three devices whose first step is right. In the second step a block is
# not there: an alignment that somebody forgot.
