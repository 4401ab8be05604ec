# %% [markdown]
# # One product on many devices
#
# A large part of the time it takes to train a transformer goes into matrix products. This
# tutorial cuts one of them over four devices: emulated ones, which run in this process and
# cannot read one another's memory.
#
# Start with the result. What follows is a schedule, drawn by the code. Look for two things in
# it before you read on: what each device multiplies, and which blocks two devices have in
# common.

# %% Set-up: imports
from pathlib import Path

import numpy as np

import primepar
from primepar import Primitive
from primepar.schedule import Movement, Sequence

OUT = Path("out/tutorials")
OUT.mkdir(parents=True, exist_ok=True)

# %%
print(primepar.show("M,K", phase="forward").save(OUT / "01_four_tiles.svg"))

# %% [markdown]
# Each device makes one tile of the output `O`. It needs a strip of rows of the input `I` and a
# strip of columns of the weight `W`. Nothing is sent.
#
# ## The product
#
# The operator is called *linear*, and its dims have fixed letters: `M` rows of the input (the
# sequence), `N` columns of the input (the input hidden dim), `K` columns of the weight (the
# output hidden dim). `O[M,K] = I[M,N] W[N,K]`, summed over `N`.
#
# The numbers here are small integers kept as floats. Their sums are exact in any order, so
# results can be compared with `==`.

# %%
rng = np.random.default_rng(0)
M, N, K = 4, 6, 8
I_MN = rng.integers(-4, 5, (M, N)).astype(float)
W_NK = rng.integers(-4, 5, (N, K)).astype(float)
O_MK = I_MN @ W_NK
print(O_MK)

# %% [markdown]
# ## By hand
#
# Cut `M` in two and `K` in two. That makes two strips of `I`, two strips of `W`, and four tiles
# of `O`. Give every device a memory of its own with what it needs, and let each compute.

# %%
top, bottom = np.split(I_MN, 2, axis=0)
left, right = np.split(W_NK, 2, axis=1)
devices = [
    {"I[0]": top, "W[0]": left},
    {"I[0]": top, "W[1]": right},
    {"I[1]": bottom, "W[0]": left},
    {"I[1]": bottom, "W[1]": right},
]
tiles = [strip_I @ strip_W for strip_I, strip_W in (memory.values() for memory in devices)]
print(np.array_equal(np.block([tiles[:2], tiles[2:]]), O_MK))

# %% [question]
# How many multiplications of two numbers does each of the four devices do?
#
# Hint: A tile has M/2 rows and K/2 columns, and each element is a sum over N.
#
# Answer: 48, a quarter of the product's 192. No device does another one's work.
assert [tile.size * N for tile in tiles] == [48] * 4
assert M * N * K == 192

# %% [markdown]
# ## By a map
#
# With more devices, more dims cut, and three products instead of one, that dictionary gets long.
# So we write only *who does what*. Put the devices on a square mesh with the axes `r` and `c`,
# `s` devices along each. Device `(r, c)` works on slice `r` of `M`, slice `c` of `K`, and on all
# of `N`:


# %%
class Tiles(Primitive):
    axes = ("r", "c")

    def steps(self, s):
        return 1

    def forward(self, r, c, t, s):
        return dict(M=r, K=c)


tiles = Sequence.of(Tiles(), 2)
for rank in range(tiles.ranks):
    print(tiles.place(rank), tiles.slices("forward", rank, step=0))

# %% [markdown]
# That map is called a **partition primitive**. Its values are slice indices, which PrimePar calls
# Dimension Slice Indices (DSIs). `t` is the step. There is just one here; the third
# tutorial is about what happens when there are more.
#
# `primepar.check` cuts the tensors, scatters the blocks, runs the devices, and compares with the
# product on one device. It also does the two other products of a training step, which we come
# to below.

# %%
for side in (1, 2, 3):
    report = primepar.check(Tiles, side=side, shape=(6, 6, 6))
    print(f"{side} x {side} devices:", report.equal)

# %% [markdown]
# ## What it costs: copies
#
# Who holds what? Ask the map. Devices in one row of the mesh hold the same strip of `I`, those
# in one column the same strip of `W`.


# %%
def copies(sequence, phase):
    movement = Movement(sequence)
    for tensor in {"forward": "IWO", "backward": ("dO", "W", "dI")}[phase]:
        held = movement.start(phase, tensor)
        everywhere = sum(len(blocks) for blocks in held)
        different = len(frozenset().union(*held))
        print(f"{tensor:>2}: {everywhere} blocks held, {different} of them different")


copies(tiles, "forward")

# %% [markdown]
# Every block of `I` and of `W` is replicated along one axis of the mesh. With many
# devices, a device's share of the *work* shrinks with their number, but its share of the
# *memory* only with the side of the mesh. Keep that in mind: the third tutorial gets rid of it.

# %% [question]
# On a mesh of side 3, how many copies of each block of `I` are held?
#
# Hint: Which devices have the same `r`?
#
# Answer: Three: one on each device of a row of the mesh. So nine blocks are held, of which three
# are different.
held = Movement(Sequence.of(Tiles(), 3)).start("forward", "I")
assert (sum(map(len, held)), len(frozenset().union(*held))) == (9, 3)

# %% [markdown]
# ## The other two products
#
# Training needs the gradients of `I` and `W` as well. If `dO` is the gradient of the loss by
# `O`:
#
# - *backward*, the input gradient: `dI[M,N] = dO[M,K] W^T[K,N]`, summed over `K`
# - *gradient*, the weight gradient: `dW[N,K] = I^T[N,M] dO[M,K]`, summed over `M`
#
# The same devices hold `W`, `I` and their tile of `dO` already. But now a dim that we cut is
# one that is summed over. Look at what follows from the map we wrote:

# %%
print(primepar.show(Tiles, side=2, phase="backward").save(OUT / "01_backward.svg"))

# %% [markdown]
# The devices of one row all end with the same block of `dI`, and each has summed only over its
# own slice of `K`. These partial sums must be added up, over the network. The schedule shows it
# in the line `all_reduce`: nobody wrote it, it follows from the map. The next tutorial explains
# why, and what it costs.

# %% [question]
# In the third product, gradient, which block is a sum over several devices, and over which?
#
# Hint: `dW` is summed over `M`, and the devices of a column of the mesh have different slices of
# `M`.
#
# Answer: `dW` of each column of the mesh, over the two devices of that column. In backward it was
# `dI`, over the devices of a row.
reductions = Movement(tiles).phases["gradient"].reductions
assert [total.tensor for total in reductions] == ["dW", "dW"]
assert all(
    tiles.coordinates[a][1] == tiles.coordinates[b][1]
    for a, b in (total.ranks for total in reductions)
)

# %% [markdown]
# ## Your turn
#
# Eight devices at the corners of a cube, each with one sub-operator. Write your answer into
# `tutorials/exercises/01_cube.py`, and run it:
#
# ```sh
# python tutorials/exercises/01_cube.py
# primepar exercise 1
# ```
#
# The second command shows a broken schedule: each device makes its row of the output, and one row
# is wrong. Find out which product is missing.
