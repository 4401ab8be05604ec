# %% [markdown]
# # Splitting by dimension, and why it needs all-reduce
#
# Most training today splits each product along a single dim. Here are two devices and the same
# product twice: first with `K` cut in two, then with `N` cut in two. What is different at the
# end?

# %% Set-up: imports
from fractions import Fraction
from pathlib import Path
from textwrap import fill

import numpy as np
from msgspec.structs import replace

import primepar
from primepar.errors import EmulationError
from primepar.partition import parse_sequence
from primepar.reference import emulate, scatter
from primepar.schedule import Linear, Movement
from primepar.schedule.program import AllReduce

OUT = Path("out/tutorials")
OUT.mkdir(parents=True, exist_ok=True)

# %%
print(primepar.show("K", phase="forward").save(OUT / "02_columns.svg"))

# %%
print(primepar.show("N", phase="forward").save(OUT / "02_rows_of_the_weight.svg"))

# %% [markdown]
# With `K` cut, the devices make different columns of `O`. With `N` cut, both make *all* of `O`,
# and both make it wrong: the sum over `N` has two slices, and each device has added up only
# one.
#
# ## The sum in two parts
#
# In numbers: each part alone is not the product, their sum is.

# %%
rng = np.random.default_rng(0)
shape = Linear(M=4, N=6, K=8)
tensors = {
    "I": rng.integers(-4, 5, (shape.M, shape.N)).astype(float),
    "W": rng.integers(-4, 5, (shape.N, shape.K)).astype(float),
}
I_MN, W_NK = tensors["I"], tensors["W"]
first = I_MN[:, :3] @ W_NK[:3]
second = I_MN[:, 3:] @ W_NK[3:]
for part in (first, second, first + second):
    print(np.array_equal(part, I_MN @ W_NK))

# %% [markdown]
# Adding up a block that is spread over devices, so that each of them ends with the whole sum,
# is an **all-reduce**. The library derives it: an output block that ends on several devices is
# reduced over these devices.

# %% [question]
# Cut `K` in four instead. How many of the four parts of `O` are wrong until something is summed?
#
# Hint: Does any device lack a term of an element of `O` that it makes?
#
# Answer: None: each device makes whole sums, of fewer columns.
parts = [I_MN @ columns for columns in np.split(W_NK, 4, axis=1)]
assert np.array_equal(np.hstack(parts), I_MN @ W_NK)

# %% [markdown]
# ## Leave it out
#
# What if somebody forgets it? We take the program of the forward phase, the list of
# instructions of every device, remove the all-reduce, and run both versions.

# %%
sequence = parse_sequence("N")
program = primepar.lower(sequence, shape=shape, phase="forward")
forgetful = replace(
    program,
    programs=tuple(
        tuple(node for node in rank if not isinstance(node, AllReduce)) for rank in program.programs
    ),
)
for version in (program, forgetful):
    memories = scatter(version.initial, sequence.grid, tensors)
    try:
        run = emulate(version, memories)
        print("right:", np.array_equal(run.memories[0]["O[0,0]"], I_MN @ W_NK))
    except EmulationError as error:
        print(fill(f"{type(error).__name__}: {error}", 96))

# %% [markdown]
# The emulator did not compare numbers to find that. Each of its blocks records which products it is
# made of, and a block that ends without one of them is refused by name.
#
# ## Four dims, three phases
#
# Each product sums over other dims: forward over `N`, backward over `K`, gradient over `M` and
# `B` (the batch). So wherever you cut, exactly one of the three must be reduced. The movement
# that is derived from each map shows which.

# %%
print("cut  reduced     whole on every device")
for dim in "BMNK":
    movement = Movement(parse_sequence(f"{dim}4"))
    reduced = [
        f"{moved.reductions[0].tensor} ({phase})"
        for phase, moved in movement.phases.items()
        if moved.reductions
    ]
    whole = [
        tensor
        for tensor in ("I", "W", "O")
        if len(frozenset().union(*movement.end("forward", tensor))) == 1
    ]
    print(f"{dim:4} {' '.join(reduced):13} {' '.join(whole)}")

# %% [markdown]
# Read it line by line:
#
# - `B` and `M`: **data parallelism**. Every device has all of `W` and some of the rows; the
#   gradient of `W` is reduced.
# - `N`: Megatron's *row-parallel* linear operator (its rows are those of `W`); the output is
#   reduced.
# - `K`: Megatron's *column-parallel* one; the gradient of the input is reduced.
#
# And the tensor that does not have the dim at all is whole on every device. That is the second
# price.
#
# ## The price, counted
#
# A ring all-reduce over `d` devices sends `2 (d - 1) / d` elements for each element reduced:
# each device sends `d - 1` parts of size `1/d` in the reduce-scatter, and `d - 1` again in the
# all-gather. The emulator counts this.

# %%
shape = Linear(M=24, N=24, K=24)
for text in ("K2", "K3", "K4", "N4", "M4"):
    sent = primepar.check(text, shape=shape).sent[0]
    ratio = Fraction(sent) / (24 * 24)
    print(f"{text}: {float(sent):7.1f} elements sent by each device, {ratio} for each one reduced")

# %% [markdown]
# More devices do not make it cheaper. The size of the all-reduce stays, while the share of the
# multiplications gets smaller with every device: at some number of devices the machines mostly
# wait.

# %% [question]
# How many elements does each of eight devices send for each element that is reduced?
#
# Hint: `2 (d - 1) / d`.
#
# Answer: 7/4. With any number of devices it stays below 2.
assert Fraction(primepar.check("K8", shape=shape).sent[0]) / (24 * 24) == Fraction(7, 4)

# %% [markdown]
# ## Both at once
#
# Primitives can be put one inside the other. `M,K` cuts the rows over two groups and, within
# each group, the columns over two devices. Two different groups now reduce two different
# things:

# %%
for phase, moved in Movement(parse_sequence("M,K")).phases.items():
    for reduction in moved.reductions:
        print(f"{phase}: {reduction.tensor}{list(reduction.index)} over devices {reduction.ranks}")

# %% [question]
# Under `M,K`, how many of the four devices hold the same block of `W`?
#
# Hint: `W` has the dims `N` and `K`. Which of the two primitives cuts one of them?
#
# Answer: Two: `W` is cut in two by `K`, and both groups of rows need all of it.
held = Movement(parse_sequence("M,K")).start("forward", "W")
assert (sum(map(len, held)), len(frozenset().union(*held))) == (4, 2)

# %% [markdown]
# ## Your turn
#
# Two linear operators in a row on four devices, with two all-reduces in all. Write your answer
# into `tutorials/exercises/02_two_in_a_row.py`, and run it:
#
# ```sh
# python tutorials/exercises/02_two_in_a_row.py
# primepar exercise 2
# ```
#
# The second command shows a layer that splits the rows of its weight over two devices, as `N` does
# here. Its devices print different losses.
