# %% [markdown]
# ## Exercise: two operators in a row
#
# The MLP of a transformer has two linear operators. `fc1` makes the hidden activations; an
# element-wise function is applied to them, wherever they lie; `fc2` reads them. So the columns
# of `fc1`'s output are the rows of the weight of `fc2`: its `K` is the next one's `N`.
#
# Choose a sequence for each, on four devices, such that
#
# - every device holds a quarter of each weight and of the hidden activations,
# - nothing has to be moved between the two, neither forward nor backward,
# - and the whole makes do with two all-reduces, one in forward and one in backward.

# %%
from primepar.api.tutorial_answers import errors_in_one_line, refuse
from primepar.partition import parse_sequence
from primepar.schedule import Movement, lower, redistribution
from primepar.schedule.lowering import layout
from primepar.schedule.program import AllReduce, ISend

errors_in_one_line(__file__)


# USER CODE BEGIN
fc1 = "M4"
fc2 = "M4"
# USER CODE END


# %% The check
one, two = parse_sequence(fc1), parse_sequence(fc2)
for name, sequence in (("fc1", one), ("fc2", two)):
    if sequence.ranks != 4:
        refuse(f"{name} is for {sequence.ranks} devices, not four")
    held = Movement(sequence).start("forward", "W")
    if any(len(blocks) * 4 != sequence.grid["N"] * sequence.grid["K"] for blocks in held):
        refuse(f"a device does not hold a quarter of the weight of {name}")
held = Movement(one).end("forward", "O")
if any(len(blocks) * 4 != one.grid["M"] * one.grid["K"] for blocks in held):
    refuse("a device does not hold a quarter of the hidden activations")

# O of fc1 is I of fc2, and dI of fc2 is dO of fc1.
forward = redistribution(
    layout(Movement(one), "forward", "O", last=True),
    layout(Movement(two), "forward", "I", last=False),
)
backward = redistribution(
    layout(Movement(two), "backward", "dI", last=True),
    layout(Movement(one), "backward", "dO", last=False),
)
for direction, between in (("forward", forward), ("backward", backward)):
    moved = sum(isinstance(node, ISend) for rank in between.programs for node in rank)
    if moved:
        refuse(f"{moved} blocks have to be moved between the operators in {direction}")

reduced = []
for name, sequence in (("fc1", one), ("fc2", two)):
    nodes = lower(sequence).programs[0]
    reduced += [f"{node.block} of {name}" for node in nodes if isinstance(node, AllReduce)]
if len(reduced) != 2:
    refuse(f"device 0 takes part in {len(reduced)} all-reduces, not two")
print("Right. Reduced:", ", ".join(reduced))
