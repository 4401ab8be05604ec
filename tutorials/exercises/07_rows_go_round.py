# %% [markdown]
# ## Exercise: let the rows go round
#
# Now the weight stays: device `r` keeps the columns `K=r` of `W`, and makes all rows of those
# columns of `O`, one slice of rows after the other. The rows of `I` go round. `I` rests by rows,
# `W` and `O` rest by columns, `K=r`. Write the map and the homes.

# %%
from primepar import Primitive
from primepar.api.tutorial_answers import errors_in_one_line, refuse
from primepar.reference import check
from primepar.schedule import Linear, Sequence
from primepar.verify import verify_primitive

errors_in_one_line(__file__)


# USER CODE BEGIN
class RowRing(Primitive):
    axes = ("r",)

    def forward(self, r, t, s):
        return dict(M=(r + t) % s, K=r)


# USER CODE END


# %% The check
for result in verify_primitive(RowRing()).properties:
    if result.verdict != "proved":
        refuse(f"{result.name}: {result.counterexample or result.reason}")

shape = Linear(M=12, N=12, K=12)
for side in (2, 3, 4):
    ring = Sequence.of(RowRing(), side)
    if ring.grid != {"M": side, "N": 1, "K": side} or ring.steps != side:
        refuse(f"with side {side} the slices are {ring.grid}, in {ring.steps} steps")
    for rank in range(side):
        walk = {ring.slices("forward", rank, t)["K"] for t in range(side)}
        if walk != {(rank,)}:
            refuse(f"with side {side} device {rank} makes other columns than its own")
    homes = {"I": [(1, 0)], "W": [(0, 1)], "O": [(m, 1) for m in range(side)]}
    for tensor, blocks in homes.items():
        if sorted(ring.home(tensor, 1)) != blocks:
            refuse(f"with side {side} {tensor} rests on device 1 as {sorted(ring.home(tensor, 1))}")
    sent = check(ring, shape).sent[0]
    if sent > 3 * (side - 1) * 12 * 12 // side:
        refuse(f"with side {side} each device sends {sent} elements")

print("Right, for every side.")
