# %% [markdown]
# # Search for a primitive
#
# A product on four devices in a row, forward and backward. Each device does a quarter of each
# phase: some rows, some columns, or some part of the sum. Three ways are known, and have names. How
# many are there, and is one of the others better? This tutorial tries all of them, and finds two
# for which the library has no name. It takes one apart, proves it, and breaks it.

# %% Set-up: imports
from itertools import product
from pathlib import Path

import primepar
from primepar import Primitive
from primepar.schedule import Linear

OUT = Path("out/tutorials")
OUT.mkdir(parents=True, exist_ok=True)
DIMS = {"I": "MN", "W": "NK", "O": "MK"}
SIZES = dict(M=36, N=24, K=36)

# %% [markdown]
# ## The space
#
# In a phase the axis of devices cuts one dim: M, N or K. Between the phases each tensor is at home,
# cut along one of its two dims. Nothing is held twice.

# %%
phases = list(product("MNK", repeat=3))
homes = list(product(*DIMS.values()))
print(f"{len(phases)} ways to cut forward, backward and gradient, {len(homes)} to cut at home")
print(f"{len(phases) * len(homes)} triples")

# %% [question]
# Two axes, each of which cuts one dim in each phase: how many ways to cut the three phases?
#
# Hint: For each axis as many as for one.
#
# Answer: 27 * 27 = 729. That is why a search has to find what is independent.
assert len(phases) ** 2 == 729

# %% [markdown]
# ## What is sent
#
# Take one tensor in one phase. A device needs a part of it, and has a part at home. With s devices
# there are three cases:
#
# - The phase does not cut the tensor. The device needs all, and has 1 / s.
# - The phase cuts it like its home. The device has all that it needs.
# - The phase cuts its other dim. The device needs 1 / s, of which it has 1 / s at home.
#
# What it makes has the same ways to go, backwards.


# %%
def missing(home, cut, dims, s):
    """The part of a tensor that a device needs in a phase and lacks."""
    if cut not in dims:
        return 1 - 1 / s
    return 0 if cut == home else (1 - 1 / s) / s


def sent(cuts, at_home, s, sizes=SIZES):
    """Elements that leave a device in a training step."""
    total = 0
    for (tensor, dims), home in zip(DIMS.items(), at_home, strict=True):
        parts = [missing(home, cut, dims, s) for cut in cuts]
        if tensor == "O" and cuts[1] == cuts[2]:
            parts.pop()  # dO is gathered once for backward and gradient
        total += sum(parts) * sizes[dims[0]] * sizes[dims[1]]
    return total


# %% [markdown]
# The home of one tensor changes nothing for another. So the best one can be chosen for each alone,
# and 27 ways are left of 216. That is how a search stays small: find out what is independent.

# %%
ranked = sorted((min((sent(cuts, home, 4), home) for home in homes), cuts) for cuts in phases)
for (words, home), cuts in ranked[:6]:
    print(f"{' '.join(cuts)}   homes {dict(zip(DIMS, home, strict=True))}   {words:6.0f} elements")

# %% [markdown]
# The three known ways cut one dim in all phases, M, N or K: fully sharded data parallelism, and the
# row and the column operator of sequence parallelism. For this shape they send the same. Two others
# send less, and in both the cut changes after forward. The first one, `K N N`:
#
# - Forward cuts K: it gathers I, and O stays where it is made.
# - Backward and gradient cut N: they gather dO once for both, and dI and dW are whole.
# - W is cut along N at home, so forward exchanges it. That is the price, a fourth of a gather.

# %% [question]
# For which of the three tensors does `K K K` send nothing in forward?
#
# Hint: Which of them are cut by `K` at home?
#
# Answer: `W` and `O`: both are at home along `K`. Only `I` is gathered.
assert [
    missing(home, "K", dims, 4)
    for home, dims in (("M", DIMS["I"]), ("K", DIMS["W"]), ("K", DIMS["O"]))
] == [0.75, 0, 0]

# %% [markdown]
# ## Write it down


# %%
class ColumnThenRow(Primitive):
    """Forward cuts K, backward and gradient cut N."""

    axes = ("d",)

    def steps(self, s):
        return 1

    def forward(self, d, t, s):
        return dict(K=d)

    def backward(self, d, t, s):
        return dict(N=d)

    gradient = backward

    def home(self, tensor, d, s):
        return {"I": dict(N=d), "W": dict(N=d), "O": dict(K=d)}[tensor]


print(primepar.verify(ColumnThenRow))
print(primepar.show(ColumnThenRow, side=3, phase="forward").save(OUT / "12_column_then_row.svg"))

# %% [markdown]
# Right on every number of devices. Does it send what the formula states? The emulated devices
# count:

# %%
shape = Linear(**SIZES)
for name in ("sequence-row", "sequence-column", ColumnThenRow):
    report = primepar.check(name, side=4, shape=shape)
    label = name if isinstance(name, str) else name.__name__
    print(f"{label:16} {float(report.sent[0]):6.0f} elements, {report.ratio:.2f} of the bound")

# %% [markdown]
# The bound is what [no schedule can beat](../lower-bounds.md). With more devices the gain grows,
# since an exchange gets cheaper and a gather does not:

# %%
for s in (2, 4, 16, 64):
    one, mixed = sent("NNN", "NNM", s), sent("KNN", "NNK", s)
    print(f"{s:3} devices: {mixed / one:.3f} of the best single cut")

# %% [question]
# On two devices, does `ColumnThenRow` send less than the best single cut?
#
# Hint: Read the first line of the table.
#
# Answer: No, exactly as much: with two devices an exchange is a fourth of a tensor, and a gather a
# half.
assert sent("KNN", "NNK", 2) == sent("NNN", "NNM", 2)

# %% [markdown]
# ## Break it
#
# Without homes a tensor stays where a phase leaves it. O is cut along K then, and backward starts
# with all of dO on each device:


# %%
class WithoutHomes(ColumnThenRow):
    home = None


print(primepar.verify(WithoutHomes)["alignment"])

# %% [markdown]
# Of the 27 ways three are right without homes: those with one cut in all phases. The others need
# homes.
#
# ## Let the command search
#
# It does the same for one axis, two, and three, with maps in several steps, and with copies that
# are kept. It proves all that it keeps, and names what is known. One axis takes seconds:
#
# ```sh
# primepar search --axes 1
# primepar search mine.py:Mine
# ```
#
# The second command proves a primitive of yours, and finds its class, or what sends less. All
# classes are on [a page](../search.md).
#
# *What to notice.* Nothing here was clever. A way to write down every candidate, a price that is
# exact, and a proof for what is left: that is enough to find what people have not looked for.

# %% [markdown]
# ## Your turn
#
# A device may keep the I that forward gathers, so that gradient need not gather it again. Which
# cuts and homes are best then? Write your answer into `tutorials/exercises/12_one_kept.py`, and run
# it:
#
# ```sh
# python tutorials/exercises/12_one_kept.py
# primepar exercise 20
# ```
#
# The second command asks for the homes of a cube of devices.
