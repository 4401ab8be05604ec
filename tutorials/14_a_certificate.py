# %% [markdown]
# # A certificate, line by line
#
# Why believe *proved*? Z3 and the search behind it are large. What they find is written down as a
# **certificate**, and a small checker that knows neither follows it. Here is a part of one, of the
# column method, `K=d` on `s` devices. On three of them:

# %% Set-up: imports
from pathlib import Path

from msgspec.structs import replace

import primepar
from primepar.certify.primitive import certify_primitive
from primepar.errors import PrimeParError
from primepar.partition import PRIMITIVES

OUT = Path("out/tutorials")
OUT.mkdir(parents=True, exist_ok=True)

# %%
print(primepar.show("by-output", side=3, phase="forward").save(OUT / "14_columns.svg"))

# %% [markdown]
# ## What is written down
#
# Coverage asks that every product is computed, and once. The part of the certificate for coverage
# of forward:

# %%
certificate = primepar.verify("by-output").certificate
print("maps     ", certificate.maps["forward"])
print("slices   ", certificate.slices)
print("witnesses", certificate.witnesses["coverage forward"])
for answer in certificate.answers["coverage forward"]:
    print("answer   ", answer.outcome, answer.factors)

# %% [markdown]
# - *maps*: what it is about. The checker reads the primitive again, and refuses another one.
# - *slices*: `K` has `s` slices.
# - *witnesses*: who computes slice `in_K0` of `K`? Device `in_K0`, at step 0. The claim itself is
#   not in the file, the checker derives it: for each slice there is a device and a step.
# - *answers*: there are two comparisons. Is the device 0 or more? Is it at most `s - 1`? Both are
#   answered with yes, for every `s`, and with factors.

# %% [question]
# Is the witness the only right one? What would it be for `K=(d + 1) % s`?
#
# Hint: Which device has slice 0 then?
#
# Answer: It is, as device `d` has slice `d` alone. With the other map slice 0 is on device `s - 1`,
# and in general `in_K0` on `(in_K0 - 1) % s`.
s = 5
assert [(d + 1) % s for d in ((in_K0 - 1) % s for in_K0 in range(s))] == list(range(s))

# %% [markdown]
# ## Why the answers hold
#
# What are the factors for? Three facts are known, numbers that are 0 or more: `s - 1`, `in_K0`, and
# `s - 1 - in_K0`. If an answer were wrong, the opposite would be a fourth one; its index is -1.
# Multiply each by its factor, and add them up (Farkas' lemma). Below, a row has the constant, the
# coefficient of `s`, and that of `in_K0`:

# %%
FACTS = {0: (-1, 1, 0), 1: (0, 0, 1), 2: (-1, 1, -1)}
OPPOSITES = (-1, 0, -1), (0, -1, 1)  # -1 - in_K0, and in_K0 - s
for answer, opposite in zip(certificate.answers["coverage forward"], OPPOSITES, strict=True):
    rows = {**FACTS, -1: opposite}
    print([sum(factor * rows[index][place] for index, factor in answer.factors)
           for place in range(3)])  # fmt: skip

# %% [markdown]
# Numbers that are 0 or more add up to -1. So the opposite is impossible, for each `s` at once, and
# no mesh was tried for it. The checker does the same for all claims, and refuses what is forged:
# another device as the witness, or other maps.
#
# ## Forgeries

# %%
columns, claim = PRIMITIVES["by-output"](), "coverage forward"
print(certify_primitive(certificate, columns), "cases hold")
first = {**certificate.witnesses, claim: {"at_d": "0", "at_t": "0"}}
still = {**certificate.maps, "forward": {"K": ("0",)}}
for forged in (replace(certificate, witnesses=first), replace(certificate, maps=still)):
    try:
        certify_primitive(forged, columns)
    except PrimeParError as error:
        print(f"{type(error).__name__}: {error}")

# %% [markdown]
# `primepar verify TARGET --certificate FILE` writes one, and checks one that is there. The rules,
# each with the reason why it is sound, are on [a page](../rules.md).

# %% [question]
# How is the answer to *is the device at most s - 1?* checked: which fact and the opposite add up?
#
# Hint: The second answer has the factors of the facts -1 and 2.
#
# Answer: The opposite is `in_K0 - s`, fact 2 is `s - 1 - in_K0`. Their sum is -1 on every mesh.
assert certificate.answers[claim][1].factors == ((-1, 1), (2, 1))
assert tuple(map(sum, zip(OPPOSITES[1], FACTS[2], strict=True))) == (-1, 0, 0)

# %% [question]
# The first forgery names device 0 for every slice, and keeps the answers. Is device 0 not at least
# 0? Why are the factors of that answer refused?
#
# Hint: Write the opposite of *device 0 is 0 or more* as a row, and add the fact 1 as before.
#
# Answer: It is, but the opposite is `-1` now and no longer `-1 - in_K0`. Adding `in_K0` leaves a
# sum that is no constant; the opposite alone would have been enough.
assert tuple(map(sum, zip((-1, 0, 0), FACTS[1], strict=True))) == (-1, 0, 1)

# %% [markdown]
# ## Your turn
#
# Find factors by hand, for three claims. Write them into
# `tutorials/exercises/14_a_certificate.py`, and run it:
#
# ```sh
# python tutorials/exercises/14_a_certificate.py
# primepar exercise 22
# ```
#
# In the second command you write homes, and what checks your answer is a proof for every side.
