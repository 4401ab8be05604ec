# %% [markdown]
# ## Exercise: factors by hand
#
# Three facts about `s` devices and a device `d` are known, numbers that are 0 or more. A row has
# the constant, the coefficient of `s`, and that of `d`. Each claim has its opposite as such a row.
# Give factors of the facts, 0 to 2, and of the opposite, -1: numbers of which none is negative, and
# with which the sum of the rows is a negative constant. Then the opposite is impossible.

# %%
from primepar.api.tutorial_answers import errors_in_one_line, refuse

errors_in_one_line(__file__)

FACTS = {0: (-1, 1, 0), 1: (0, 0, 1), 2: (-1, 1, -1)}  # s - 1, d, and s - 1 - d
OPPOSITES = {
    "s + d >= 1": (0, -1, -1),
    "d <= 2 s - 2": (1, -2, 1),
    "3 d <= 3 s - 2": (1, -3, 3),
}


# USER CODE BEGIN
factors = {
    "s + d >= 1": {-1: 1},
    "d <= 2 s - 2": {-1: 1},
    "3 d <= 3 s - 2": {-1: 1},
}
# USER CODE END


# %% The check
for claim, opposite in OPPOSITES.items():
    rows = {**FACTS, -1: opposite}
    given = factors.get(claim, {})
    if any(factor < 0 for factor in given.values()):
        refuse(f"{claim}: a factor is negative, which turns 0 or more around: {given}")
    constant, s, d = (sum(factor * rows[index][place] for index, factor in given.items())
                      for place in range(3))  # fmt: skip
    if s or d or constant >= 0:
        refuse(f"{claim}: expected a negative constant, got {constant} + {s} s + {d} d")
print("Right: none of the three opposites is possible, whatever s and d are.")
