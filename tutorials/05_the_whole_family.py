# %% [markdown]
# # The whole family on one product
#
# Megatron-LM, sequence parallelism, SUMMA, Tesseract, 3D, PrimePar: each came with a paper of
# its own, a notation of its own, and code of its own. Each is one map from (device, step) to
# sub-operator. Here they all are, read by the same code on the same product:

# %% Set-up: imports, and two functions that describe and count
from pathlib import Path

import primepar
from primepar import Primitive
from primepar.partition import PRIMITIVES, parse_sequence
from primepar.schedule import Linear, Movement, Sequence, lower
from primepar.schedule.layout import moved
from primepar.schedule.ledger import moves, moves_text, sent_by_ranks
from primepar.schedule.lowering import layout
from primepar.schedule.tracing import home_equations, map_equations

OUT = Path("out/tutorials")
OUT.mkdir(parents=True, exist_ok=True)


def describe(name):
    """The map, the homes, and what moves on a mesh of side three."""
    primitive = PRIMITIVES[name]()
    maps = map_equations(primitive)
    if len(set(maps.values())) == 1:
        maps = {"in each phase": maps["forward"]}
    for phase, equation in maps.items():
        print(f"{phase:14}{equation}")
    if homes := home_equations(primitive):
        print(f"{'homes':14}{'  '.join(homes.values())}")
    three = Sequence.of(primitive, *[3] * len(primitive.side_names))
    print(f"{str(three) + ' moves':14}{moves_text(moves(primepar.lower(three)))}")


def resident(sequence, shape):
    """Elements of I and W in the resident layout of a device, between two steps, counted."""
    sizes = {"I": shape.M * shape.N, "W": shape.N * shape.K}
    total = 0
    for tensor, size in sizes.items():
        held = Movement(sequence).start("forward", tensor)
        total += size * len(held[0]) // len(frozenset().union(*held))
    return total


# %%
for name, primitive in PRIMITIVES.items():
    print(f"{name:19}{map_equations(primitive())['forward']}")

# %% [markdown]
# We look at them one after the other, and ask each the same: what is the resident layout of every
# tensor, what moves, how much of it, and how much does a device have to hold?
#
# ## One dimension
#
# The oldest way, of Megatron-LM (Shoeybi et al., 2019). Splitting `K` gives each device some
# columns of the weight; splitting `N` some of its rows. One tensor is replicated, and one sum is
# spread over all devices.

# %%
describe("by-output")
describe("by-input")
primepar.show("K2").save(OUT / "05_one_dimension.svg")

# %% [markdown]
# In the last line of each is what moves in a training step, and how often on one device.
#
# ## Sequence parallelism
#
# The tensor that 1D replicates can stay sharded along `M` instead (Korthikanti et al., 2022).
# Then it has a **home**, a declared resident layout, that is not what the product needs: it is
# gathered before the product, and the sum is scattered after it. An all-reduce is a
# reduce-scatter and an all-gather, so forward and backward together send what they did before.
# But the gathered `I` is not kept, and the gradient of the weight needs it once more.
#
# A home is one more method. It is given the tensor and the device, and returns the slices of that
# tensor which the device holds between the steps. The gradient of a tensor has the same home. Here
# is the column operator in full: `I` cut by rows, `W` and `O` by columns.


# %%
class Column(Primitive):
    axes = ("d",)

    def steps(self, s):
        return 1

    def forward(self, d, t, s):
        return dict(K=d)

    def home(self, tensor, d, s):
        return {"I": dict(M=d), "W": dict(K=d), "O": dict(K=d)}[tensor]


print(moves_text(moves(primepar.lower(Sequence.of(Column(), 3)))))

# %% [markdown]
# The product needs all rows of `I`, its home has a third of them: so there is a gather. Nobody
# wrote it. `sequence-column` is this map; `sequence-row` is its mirror image, with `O` cut by rows:

# %%
describe("sequence-column")
describe("sequence-row")
primepar.show("Ks2").save(OUT / "05_sequence_parallelism.svg")

# %% [question]
# How many blocks does a device of `Ks3` gather in a training step, that one of `K3` does not?
#
# Hint: Compare the two lines *moves*.
#
# Answer: Two all-gathers of `I`: one for forward and one for gradient. In return the all-reduce of
# `dI` becomes a reduce-scatter.
assert "all-gather I 2" in moves_text(moves(primepar.lower("Ks3")))
assert "all-gather" not in moves_text(moves(primepar.lower("K3")))

# %% [markdown]
# ## Two dimensions: SUMMA
#
# On a mesh of `q` by `q` devices each holds one block of every tensor, and nothing is held twice
# (van de Geijn and Watts, 1997; for transformers Optimus, Xu et al., 2021). At step `t`
# all devices work on slice `t` of `N`. So in forward each block of `I` is needed by its whole row
# of devices and each block of `W` by its whole column: broadcasts. In the other two phases the
# sum is over devices of a row or a column: reduces.

# %%
describe("summa")
primepar.show("S2x2", phase="forward").save(OUT / "05_summa.svg")

# %% [markdown]
# With two devices in a row, a broadcast is a single message, and so it is drawn.
#
# The mesh need not be square. `S4x6`, `summa-rectangular` in the list above, takes as many steps
# as the greatest common divisor of its lengths, two. Slice `t` of `N` is then held by three
# columns of devices in `I` and by two rows in `W`, and each device broadcasts its part.
#
# ## A layer on top: 2.5D
#
# Tesseract (Wang et al., 2022) stacks `d` such meshes. Each layer has its own rows of `M`, and
# the whole weight. So the rows are cut as in data parallelism, and `dW` is summed over the layers
# at the end.

# %%
describe("tesseract")
primepar.show("T2x2x2", phase="gradient").save(OUT / "05_tesseract.svg")

# %% [markdown]
# ## Three dimensions
#
# A cube of `q * q * q` devices does all sub-operators in one step (Agarwal et al., 1995; for
# transformers Bian et al., 2021). You wrote its map in the first exercise. What was missing
# there are homes: every tensor is sharded into `q * q * q` parts, is gathered along one axis of
# the cube before the product, and every sum is scattered along one.
#
# The two variants differ in what they keep. One holds on to the gathered `I` and `W` until
# backward, the other gathers them again.

# %%
describe("three-d")
describe("three-d-regathered")
primepar.show("C2x2x2", phase="forward").save(OUT / "05_three_dimensions.svg")

# %% [markdown]
# The home of `O` is `[(i, l), j]`, and that of `I` is `[(i, j), l]`. So the next operator has to
# exchange `j` and `l`, and after two operators everything is back:

# %%
describe("three-d-exchanged")

# %% [markdown]
# ## Time as a dimension: PrimePar
#
# The skew of the third tutorial: no broadcasts, no sums over devices. All goes to a neighbour.

# %%
describe("primepar")
primepar.show("P2x2", phase="forward").save(OUT / "05_primepar.svg")

# %% [markdown]
# ## One tensor stays
#
# PrimePar has three maps, so that the output of each phase can stay. Can one map do for all
# three? In the third tutorial it could not: with Cannon's map alone, `dW` ends next to the block
# of `W` that it belongs to. With *homes* it can. The map is one-to-one on the sub-operators, so
# it serves any phase. Each tensor has its home where step 0 has it, and the partial sums travel
# round the ring and end at home.
#
# This family is ours, and its ancestors are Cannon's algorithm and the variants of SUMMA that
# keep one matrix in place; MeshSlice (2025) chooses among such dataflows for each layer. In
# each map one tensor is without `t`. It stays, with its gradient. The other two rotate.

# %%
describe("output-stays")
describe("input-stays")
describe("weight-stays")
primepar.show("Ws2x2", phase="forward").save(OUT / "05_the_weight_stays.svg")


# %% [markdown]
# There is a price. Partial sums in flight have to be kept in the precision of sums, and the
# order in which they are added follows the ring.
#
# ## Side by side
#
# The first operator of an MLP, `N = h` and `K = 4h`, with `M = 4h` rows. Each line was counted
# on emulated devices that compute the product, and what they compute has to be equal to one
# device's. All numbers are elements on one device:
#
# - *sent* in a training step, counted, and by the formula in the primitive's file,
# - *resident*, of `I` and `W` between steps, counted and by a formula,
# - the *most* that it held at any moment.

# %%
h = 16
shape = Linear(M=4 * h, N=h, K=4 * h)
FAMILY = {
    4: ("K4", "Ks4", "S2x2", "P2x2", "Os2x2", "Is2x2", "Ws2x2"),
    8: ("K8", "Ks8", "T2x2x2", "C2x2x2", "Cr2x2x2"),
    16: ("K16", "Ks16", "S4x4", "P4x4", "Os4x4", "Is4x4", "Ws4x4"),
}
I, W = shape.M * shape.N, shape.N * shape.K
for devices, sequences in FAMILY.items():
    print(f"{devices:2} devices    sent  formula resident  formula     most")
    for text in sequences:
        sequence = parse_sequence(text)
        report = primepar.check(sequence, shape=shape)
        assert report.equal, report.message
        whole = {"K": I + W / devices, "T": I / devices + 2 * W / devices}  # T2x2x2: two layers
        stays = whole.get(text.rstrip("0123456789x"), (I + W) / devices)
        sent = f"{report.sent[0]:8g} {report.formula:8g}"
        print(f"{text:8} {sent} {resident(sequence, shape):8} {stays:8g} {max(report.peak):8}")
    print()

# %% [markdown]
# On four devices nothing sends less than splitting one dim, for this shape. Its price is in the
# third column: the whole of `I` on every device. And with more devices there is no less to send,
# because each of them takes part in the sum of the whole `dI`. On a square mesh what a device
# sends falls as the mesh grows.

# %% [question]
# `K4` and `S2x2` send the same for this shape. What does SUMMA hold less of?
#
# Hint: Look at the column *resident*: which tensor is not cut by `K`?
#
# Answer: `I`: under `K4` each device holds all of it, 768 elements more than a quarter.
one, two = (resident(parse_sequence(text), shape) for text in ("K4", "S2x2"))
assert one - two == 768 == shape.M * shape.N * 3 // 4

# %% [markdown]
# ## Operators in a row
#
# One product is not yet a model. An MLP has two, and the output of the first is the input of the
# second. Each method has its way to put them in a row: 1D splits `K`, then `N`; 3D exchanges two
# axes; and in the stationary family an operator that keeps `O` is followed by one that keeps
# `I`. Look at their homes above: the input of the first and the output of the second both have the
# home `[r, r + c]`, the tensor between them `[r, c]`.
#
# So we count both operators, and what has to be moved between them, forward and backward.


# %%
def redistributed(left, source, right, target):
    """Share of a tensor that all devices together send to take it from one place to another."""
    left, right = Movement(left), Movement(right)
    return float(moved(layout(left, *source, last=True), layout(right, *target, last=False)))


def mlp(first, second, M, h):
    """Elements that a device sends in an MLP: in the two operators, and between them."""
    fc1, fc2 = parse_sequence(first), parse_sequence(second)
    between = redistributed(fc1, ("forward", "O"), fc2, ("forward", "I"))
    between += redistributed(fc2, ("backward", "dI"), fc1, ("backward", "dO"))
    shapes = Linear(M=M, N=h, K=4 * h), Linear(M=M, N=4 * h, K=h)
    sent = 0
    for sequence, shape in zip((fc1, fc2), shapes, strict=True):
        sent += float(sum(sent_by_ranks(lower(sequence, shape)))) / sequence.ranks
    return sent, between * M * 4 * h / fc1.ranks


PAIRS = {
    4: {"1D": ("K4", "N4"), "1D, sequence": ("Ks4", "Ns4"), "SUMMA": ("S2x2", "S2x2"),
        "PrimePar": ("P2x2", "P2x2"), "stationary": ("Os2x2", "Is2x2")},
    16: {"1D": ("K16", "N16"), "1D, sequence": ("Ks16", "Ns16"), "SUMMA": ("S4x4", "S4x4"),
         "2.5D": ("T2x2x4", "T2x2x4"), "PrimePar": ("P4x4", "P4x4"),
         "stationary": ("Os4x4", "Is4x4")},
}  # fmt: skip


def compare(pairs, M, h):
    """Print every method with what it sends; return the name of the one that sends least."""
    totals = {}
    for name, (first, second) in pairs.items():
        sent, between = mlp(first, second, M, h)
        totals[name] = sent + between
        print(f"  {name:14}{sent:9g} {between:9g} {sent + between:9g}")
    return min(totals, key=totals.get)


for devices, pairs in PAIRS.items():
    for M in (h, 4 * h, 16 * h):
        print(f"{devices:2} devices, M = {M // h:2}h     inside   between     total")
        least = compare(pairs, M, h)
        print(f"  least: {least}")

# %% [markdown]
# With few rows for the size of the weights, nothing here beats splitting one dim. With more rows
# the stationary pair does.
#
# PrimePar chained with itself has to move blocks between the operators, the stationary pair does
# not, and inside it sends less too. That is no accident of this shape. The best of the three
# that keep a tensor sends less than PrimePar's primitive on every mesh with a side of two or
# more. Let `a = MN`, `b = NK`, `c = MK` and `e = s / (s - 1)`. In units of `(s - 1) / p`,
# PrimePar sends `2a + 2c + 2be`, keeping `W` sends `3a + 2c`, keeping `I` sends `3b + 2c`. If
# `a < 2be`, then `W` sends less. If not, `a >= 2be > 2b`, and `3b < 2a`, so `I` does. (Our
# derivation; the prover and the counts above do not depend on it.)
#
# What these counts leave out is time. Shifts overlap the products, a sum at the end of a phase
# does not, and a machine may be better at one than at the other. Elements sent can be counted
# without naming a machine.
#
# ## At sixty-four devices
#
# Finally a mesh that is both a square and a cube.

# %%
large = {
    "1D": ("K64", "N64"),
    "2.5D": ("T4x4x4", "T4x4x4"),
    "3D": ("C4x4x4", "D4x4x4"),
    "stationary": ("Os8x8", "Is8x8"),
}
wide = 4 * h
for M in (wide, 16 * wide):
    print(f"64 devices, M = {M // wide:2}h     inside   between     total")
    least = compare(large, M, wide)
    print(f"  least: {least}")


# %% [markdown]
# With as many rows as features, 3D sends least; with sixteen times as many the stationary pair
# does. So which method is the best depends on the shape and on the mesh, and it can be counted.
#
# ## Are they right?
#
# One of each family is proved for every side of its mesh, just now. And a home in the wrong place
# is found: here two devices are home to the same block of `O`, and none to another.


# %%
for name in ("by-output", "sequence-column", "summa", "three-d", "primepar", "output-stays"):
    print(f"{name:19}{primepar.verify(PRIMITIVES[name]).verdict}")


class Astray(Primitive):
    axes = ("r", "c")

    def forward(self, r, c, t, s):
        return dict(M=r, N=(r + c + t) % s, K=c)

    def home(self, tensor, r, c, s):
        n = (r + c) % s
        return {"I": dict(M=r, N=n), "W": dict(N=n, K=c), "O": dict(M=r, K=r)}[tensor]


print()
print(primepar.verify(Astray)["alignment"])

# %% [question]
# Under 3D on eight devices, into how many blocks is `I` cut at home, and how many of them does a
# device have while it multiplies?
#
# Hint: The homes are `[(i, j), l]`. The map has `M=i, N=l`.
#
# Answer: Into 8, one for each device. The product needs 2: the device's own, and that of the
# device with the other `j`.
cube = Movement(parse_sequence("C2x2x2"))
assert [len(blocks) for blocks in cube.home("I")] == [1] * 8
assert [len(blocks) for blocks in cube.held("forward", "I", 0)] == [2] * 8

# %% [markdown]
# ## Your turn
#
# Decide which tensor should stay, for an operator of any shape. Write your answer into
# `tutorials/exercises/05_what_should_stay.py`, and run it:
#
# ```sh
# python tutorials/exercises/05_what_should_stay.py
# primepar exercise 5
# ```
#
# The second command shows a schedule that is right and sends twice as much as its formula.
