# %% [markdown]
# ## Exercise: how much is hidden?
#
# `hidden` gets the events of one device: `track` is `"compute"` or `"communication"`, `start` and
# `end` are seconds. A `wait` is no transfer: it is the device that stands still. Return for how
# many seconds something moves, and for how many of these the device multiplies meanwhile. Several
# transfers may move at once; a second in which two move is one second.

# %%
from itertools import pairwise, product

from primepar.api.tutorial_answers import errors_in_one_line, refuse
from primepar.partition import parse_sequence
from primepar.plan.cluster import Cluster, Link, Rate
from primepar.plan.simulator.run import simulate
from primepar.schedule import Linear, lower

errors_in_one_line(__file__)


# USER CODE BEGIN
def hidden(events):
    moving = sum(each.end - each.start for each in events if each.track == "communication")
    return moving, moving


# USER CODE END


# %% The check
def machine(overlap):
    """Two operations a second, and an element a second; starting takes no time."""
    return Cluster(
        name="slow", nodes=1, devices_per_node=8, memory=1e9, memory_bandwidth=1e300, launch=0.0,
        overlap=overlap, rates={"float32": Rate(2.0, 2.0)}, links=(Link(8, 0.0, 4.0, False),),
    )  # fmt: skip


def lengths(events):
    """The same second by second: between two neighbouring times nothing begins or ends."""
    transfers = [e for e in events if e.track == "communication" and e.op != "wait"]
    times = sorted({time for each in events for time in (each.start, each.end)})
    moving = both = 0.0
    for begin, end in pairwise(times):
        now = [each for each in events if each.start <= begin and each.end >= end]
        if any(each in transfers for each in now):
            moving += end - begin
            both += (end - begin) * any(each.track == "compute" for each in now)
    return moving, both


for text, overlap in product(("P2x2", "S2x2", "K4", "P2x2,K2", "Os2x2"), (True, False)):
    for shape in (Linear(M=8, N=8, K=8), Linear(M=32, N=8, K=16)):
        run = simulate(lower(parse_sequence(text), shape), machine(overlap), "float32")
        events = [each for each in run.events if each.rank == 1]
        for got, expected, what in zip(
            hidden(list(events)), lengths(events), ("something moves", "it also multiplies"),
            strict=True,
        ):  # fmt: skip
            if abs(got - expected) > 1e-6:
                how = "" if overlap else ", without overlap"
                refuse(f"{text}{how}: for {expected:g} seconds {what}, got {got:g}")

for text in ("P2x2", "K4"):
    run = simulate(lower(parse_sequence(text), Linear(M=32, N=8, K=16)), machine(True), "float32")
    moving, both = hidden([each for each in run.events if each.rank == 1])
    print(f"Right: {text} hides {both:g} of the {moving:g} seconds in which something moves.")
