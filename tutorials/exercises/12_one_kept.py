# %% [markdown]
# ## Exercise: one copy is kept
#
# Four devices, M = 36, N = 24, K = 24. A device keeps the I that forward gathers: gradient has it
# then, if it needs the same I as forward. Give the dim that each phase cuts, and the dim along
# which each tensor is cut at home, so that least is sent. As given, K is cut in all phases.
#
# Is the best of the tutorial still the best? What does backward cost that cuts as forward does?

# %%
from itertools import product

import primepar
from primepar import Primitive
from primepar.api.tutorial_answers import errors_in_one_line, refuse
from primepar.schedule import Linear

errors_in_one_line(__file__)


# USER CODE BEGIN
forward, backward, gradient = "K", "K", "K"
homes = dict(I="M", W="K", O="K")
# USER CODE END


# %% The check
DIMS = {"I": "MN", "W": "NK", "O": "MK"}
for name, cut in dict(forward=forward, backward=backward, gradient=gradient).items():
    if cut not in ("M", "N", "K"):
        refuse(f"{name}: expected M, N or K, got {cut!r}")
for tensor, dims in DIMS.items():
    if homes.get(tensor) not in tuple(dims):
        refuse(f"home of {tensor}: expected {' or '.join(dims)}, got {homes.get(tensor)!r}")


class Kept(Primitive):
    """The answer."""

    axes = ("d",)
    keeps = ("I",)

    def steps(self, s):
        return 1

    def forward(self, d, t, s):
        return {forward: d}

    def backward(self, d, t, s):
        return {backward: d}

    def gradient(self, d, t, s):
        return {gradient: d}

    def home(self, tensor, d, s):
        return {homes[tensor]: d}


def sent(cuts, at_home, s=4):
    """Elements that leave a device, by the formula of the tutorial with I kept."""
    sizes, total = dict(M=36, N=24, K=24), 0
    for (tensor, dims), home in zip(DIMS.items(), at_home, strict=True):
        need = [cut if cut in dims else "" for cut in cuts]
        parts = [0 if cut == home else (1 - 1 / s) * (1 / s if cut else 1) for cut in need]
        if (tensor == "O" and need[1] == need[2]) or (tensor == "I" and need[0] == need[2]):
            parts.pop()
        total += sum(parts) * sizes[dims[0]] * sizes[dims[1]]
    return total


report = primepar.check(Kept, side=4, shape=Linear(M=36, N=24, K=24))
if not report.equal:
    refuse(report.message)
least = min(sent(cuts, at_home) for cuts in product("MNK", repeat=3)
            for at_home in product(*DIMS.values()))  # fmt: skip
count = float(max(report.sent))
if count > least:
    refuse(f"each device sends {count:.0f} elements, {least:.0f} are enough")
verdict = primepar.verify(Kept)
if verdict.verdict != "proved":
    refuse(verdict)

print(f"Right, for every number of devices. On four each sends {count:.0f} elements.")
