# %% [markdown]
# # Roofline: when is a message hidden?
#
# A device has two speeds: operations per second, and bytes per second. A product that runs while
# its neighbours' blocks travel takes as long as the slower of the two. Which one that is
# follows from two numbers, without a measurement.

# %% Set-up: imports and a machine
from math import log2
from pathlib import Path

import primepar
from primepar.pictures import svg
from primepar.plan.cluster import Cluster, Link, Rate
from primepar.schedule import Linear

OUT = Path("out/tutorials")
OUT.mkdir(parents=True, exist_ok=True)


def box(rate, bandwidth):
    """Four devices: floating-point operations, and bytes of a link, per second; starts are free."""
    return Cluster(
        name="a box of four", nodes=1, devices_per_node=4, memory=2e9, memory_bandwidth=1e300,
        launch=0.0, overlap=True, rates={"float32": Rate(rate, rate)},
        links=(Link(4, 0.0, bandwidth, False),),
    )  # fmt: skip


# %% [markdown]
# ## Two speeds
#
# Write your own numbers here: those of a data sheet, or what `primepar profile` measures.

# %%
rate, bandwidth = 8e11, 1e10
print(f"in the time of one byte: {rate / bandwidth:g} operations")

# %% [markdown]
# ## Operations and bytes of a step
#
# In forward under `P2x2` with `M = N = K = n` a device multiplies at each step two blocks of
# `n / 2` by `n / 2`: $2 (n/2)^3$ operations, additions and multiplications. Meanwhile it sends one
# block of `I` and one of `W`, of $(n/2)^2$ elements with 4 bytes each. So there are
#
# $$\frac{2 (n/2)^3}{2 \cdot 4 (n/2)^2} = \frac{n}{8}$$
#
# operations for each byte. The emulated devices count the same:

# %%
n = 64
forward = primepar.lower("P2x2", shape=Linear(M=n, N=n, K=n), phase="forward")
sent = primepar.simulate(forward, box(rate, bandwidth)).sent[0]
print(f"a device sends {sent:g} bytes in forward, and does {2 * n**3 / 4:g} operations")

# %% [question]
# Forward has two steps, of which the second sends nothing. How many operations for each byte of
# the first step are that for `n = 64`?
#
# Hint: One step has half of the operations.
#
# Answer: Eight, which is `n / 8`.
assert (2 * n**3 / 4 / 2) / sent == 8 == n / 8

# %% [markdown]
# ## The roof
#
# With $x$ operations for each byte a device does no more than $\min(rate, x \cdot bandwidth)$ a
# second: a roof that rises, and then is flat. Whole training steps, simulated, with the bytes that
# were sent:

# %%
points = {}
for n in (128, 256, 512, 1024, 2048):
    run = primepar.simulate("P2x2", box(rate, bandwidth), shape=Linear(M=n, N=n, K=n))
    operations = 3 * 2 * n**3 / 4
    x, speed = operations / run.sent[0], operations / run.seconds
    points[n] = x, speed, min(rate, x * bandwidth)
    print(f"n = {n:4}: {x:3g} operations a byte, {speed:.2e} a second, {speed / points[n][2]:4.0%} "
          "of the roof")  # fmt: skip
small = primepar.simulate("P2x2", box(rate, bandwidth), shape=Linear(M=256, N=256, K=256))
primepar.show(small).save(OUT / "13_below_the_corner.svg")


# %% The picture: the roof, and a point for each size
def place(x, speed):
    """A factor of two is 80 pixels, in both directions."""
    return 40 + 80 * log2(x / points[128][0]), 50 + 80 * log2(rate / speed)


corner = place(rate / bandwidth, rate)
ends = [place(x, roof) for x, _, roof in points.values()]
line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (ends[0], corner, ends[-1]))
marks = [svg.element("polyline", points=line, fill="none", stroke=svg.GREY, stroke_width=2),
         svg.text(f"{rate / bandwidth:g} operations a byte", corner[0] - 60, 38.0)]  # fmt: skip
for n, (x, speed, _) in points.items():
    across, down = place(x, speed)
    marks += [svg.element("circle", cx=across, cy=down, r=5, fill="#8250df"),
              svg.text(f"n = {n}", across + 8, down + 18)]  # fmt: skip
picture = svg.picture(440, ends[0][1] + 40, marks, "Roofline of training steps under P2x2")
(OUT / "13_roof.svg").write_text(picture, encoding="utf-8")

# %% [markdown]
# *What to notice.* Left of the corner a step takes as long as its messages, and right of it as long
# as its products. Near the corner it reaches neither: some of its products have two blocks to hide,
# others none. A larger product helps, since operations grow with the cube and bytes with the
# square; a faster GPU with the same link makes it worse.

# %% [question]
# From which `n` on is every message hidden with these numbers? And with a link of 5 GB a second?
#
# Hint: `n / 8` has to reach the ratio of both speeds.
#
# Answer: From 640 on, and with half the bandwidth from 1280 on.
assert 8 * 8e11 / 1e10 == 640
assert 8 * 8e11 / 5e9 == 1280
for n, hidden in ((600, False), (640, True)):
    run = primepar.simulate("P2x2", box(8e11, 1e10), shape=Linear(M=n, N=n, K=n))
    assert (run.computing[0] > 0.9999 * run.seconds) == hidden

# %% [question]
# In half precision a GPU does 16 times as many operations, and an element has 2 bytes. What becomes
# of 640?
#
# Hint: How many operations for each byte are there now, and how many are needed?
#
# Answer: There are twice as many, and 16 times as many are needed: from 5120 on.
assert 4 * 16 * 8e11 / 1e10 == 5120

# %% [markdown]
# ## Your turn
#
# On `s` by `s` devices the blocks are smaller. Write from which `n` on everything is hidden, into
# `tutorials/exercises/13_roofline.py`, and run it:
#
# ```sh
# python tutorials/exercises/13_roofline.py
# primepar exercise 13
# ```
#
# In the second command you write the order of FLUX, which hides the message of an all-gather behind
# the product that needs it.
