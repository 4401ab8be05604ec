# %% [markdown]
# ## Exercise: from which size on?
#
# Under `PrimePar` on `side` by `side` devices every step of forward multiplies a block of `I` by
# one of `W`, and sends both meanwhile. All of `M`, `N` and `K` are `n`, a multiple of `side`, and
# an element has 4 bytes. Return the smallest `n` with which the messages of a step are hidden.

# %%
from fractions import Fraction
from itertools import count, product

from primepar.api.tutorial_answers import errors_in_one_line, refuse

errors_in_one_line(__file__)


# USER CODE BEGIN
def smallest(rate, bandwidth, side):
    return 8 * rate // bandwidth


# USER CODE END


# %% The check
for rate, bandwidth, side in product((10**9, 8 * 10**9), (10**8, 3 * 10**8), (2, 3, 5)):
    for part in count(1):
        multiplies, sends = Fraction(2 * part**3, rate), Fraction(2 * 4 * part**2, bandwidth)
        if sends <= multiplies:
            break
    got = smallest(rate, bandwidth, side)
    if got != side * part:
        refuse(f"{rate:g} operations and {bandwidth:g} bytes a second on {side} by {side} devices: "
               f"expected {side * part}, got {got}")  # fmt: skip
print("Right: with 8e+11 operations and 1e+10 bytes a second on 8 by 8 devices from "
      f"{smallest(8 * 10**11, 10**10, 8)} on.")  # fmt: skip
