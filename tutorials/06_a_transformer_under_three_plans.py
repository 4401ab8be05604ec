# %% [markdown]
# # A transformer under three plans
#
# A transformer is not one product but a chain of operators. Between two linear ones there are
# norms, attention, activations and additions. Each of them works on what the one before left,
# where it left it. So somebody has to decide for *every* operator how it is partitioned. That is
# a **plan**: a sequence for each operator of a model, on one mesh.

# %% Set-up: imports and a small model
import json
from itertools import islice
from pathlib import Path

import numpy as np

import primepar
from primepar.errors import PlanError
from primepar.models import GPTConfig
from primepar.plan import Plan, edges, parameter_places, preset_plan
from primepar.reference.emulator.model import EmulatedModel
from primepar.reference.oracle.train import AdamW, linear_weights, windows
from primepar.reference.oracle.transformer import Transformer
from primepar.schedule.program_file import instruction_text

OUT = Path("out/tutorials")
OUT.mkdir(parents=True, exist_ok=True)

RANKS, BATCH = 4, 4
model = GPTConfig(layers=2, hidden=16, heads=4, context=8, vocabulary=256)


# %%
megatron = preset_plan("megatron", model, RANKS, BATCH)
for operator in megatron.operators[:6]:
    print(f"{operator.name:20} {operator.kind:10} {megatron.sequences[operator.name]}")

# %% [markdown]
# ## Megatron
#
# The linear operators go in pairs, as in the second exercise: `qkv` and `fc1` split `K`, `proj`
# and `fc2` split `N`. Between the two of a pair are attention, split by heads, and the activation,
# split by columns: they work on what they have. Outside the pairs everything is replicated (`R4`),
# and every device computes all of it.

# %%
print(primepar.show(megatron).save(OUT / "06_megatron.svg"))

# %% [markdown]
# Every letter is a layout, drawn below the table: rows of the activations go down, columns to the
# right, and each cell names the devices that hold that block. An operator *takes* its input
# in one layout, *leaves* its output in one, and leaves the gradient of its input in one. Where
# what one operator leaves is not what the next one takes, blocks have to be moved, forward, and
# another way back. Under this plan nothing is.
#
# ## PrimePar
#
# Now `P2x2` for every operator. Those that are not linear work where a linear one would leave its
# output, which for this primitive is the block `[r, c]`.

# %%
spatial_temporal = preset_plan("primepar", model, RANKS, BATCH)
print(primepar.show(spatial_temporal).save(OUT / "06_primepar.svg"))

# %% [markdown]
# No layout has more than one device in a place: nothing is held twice. But the linear operators
# take their input skewed, and leave the gradient of it skewed in another way. So there is a
# redistribution before each of them, and one on the way back.

# %% [question]
# Under PrimePar, 256 elements move before `qkv`. Why half of that tensor's 512?
#
# Hint: Tutorial 3: `1 - 1/s` of the blocks.
#
# Answer: The side is 2, so half of the blocks are on another device than the one that needs them.
assert BATCH * model.context * model.hidden == 512
assert 512 * (1 - 1 / 2) == 256 == edges(spatial_temporal)[1].elements(BATCH * model.context)[0]

# %% [markdown]
# ## Stationary
#
# In the last tutorial an operator that keeps `O` and one that keeps `I` made a pair without
# redistribution. A transformer has such pairs: `qkv` and `proj`, `fc1` and `fc2`. Outside the pairs
# the layout is `[r, r + c]`, inside it is `[r, c]`.

# %%
stationary = preset_plan("stationary", model, RANKS, BATCH)
print(primepar.show(stationary).save(OUT / "06_stationary.svg"))

# %% [markdown]
# Two layouts, each block once, and nothing to move between operators.
#
# ## What moves between operators
#
# The list behind these tables: for each tensor between two operators, what all devices together
# send to redistribute it, and its gradient on the way back. Under PrimePar, in the first layer:

# %%
tokens = BATCH * model.context
for edge in edges(spatial_temporal):
    forward, backward = edge.elements(tokens)
    if edge.consumer.startswith("blocks.0.") and forward + backward:
        names = edge.producer.removeprefix("blocks.0."), edge.consumer.removeprefix("blocks.0.")
        print(f"{names[0]:>10} -> {names[1]:5} {forward:6} forward {backward:6} backward")

# %% [markdown]
# Attention needs whole heads, whatever the plan. With columns cut in two, each device has half of
# the heads, and queries, keys and values of a head are next to each other. With rows cut in two,
# it has half of the sequences of the batch. Of a batch of one it would have half of the sequence,
# and receive the keys and values of the other half. A plan whose cuts do not divide the model is
# refused, and so is a mesh that the method has not got:

# %%
for ranks in (9, 8):
    try:
        preset_plan("stationary", model, ranks, BATCH)
    except PlanError as error:
        print(f"{error}\n")

# %% [markdown]
# ## Where the weights are
#
# A plan defines for each parameter which devices hold it, and whose gradients of it have to be
# added up. How much of the model does each device hold?

# %%
PLANS = {"megatron": megatron, "primepar": spatial_temporal, "stationary": stationary}


def held(plan):
    """Elements of all parameters on device 0."""
    total = 0
    for name, place in parameter_places(plan).items():
        blocks = np.prod(place.layout.grid)
        total += np.prod(model.parameter_shapes[name]) * len(place.layout.held[0]) // blocks
    return total


for name, plan in PLANS.items():
    print(f"{name:11} {held(plan):6} of {model.parameters} parameters on each device")

# %% [markdown]
# The linear weights are in quarters under all three. The table of tokens is not: Megatron cuts it
# along the vocabulary in four; the other two cut it along its columns, in two, because a row of
# it is looked up wherever there are rows of activations.

# %% [question]
# Megatron holds fewer parameters than the two others. Which one makes the difference?
#
# Hint: What is cut in four there, and in two here?
#
# Answer: The table of tokens, 256 rows of 16: a quarter of it is 1024 elements, a half 2048. Norms
# and biases are replicated under Megatron, which takes a part of it back.
assert held(stationary) - held(megatron) == 880 < 2048 - 1024

# %% [markdown]
# ## One list for each device
#
# From the plan a whole training step is lowered to one program: forward, loss, backward, the sums
# of the gradients, and AdamW. It is a list of instructions for each device. This is what device 0
# does for the first norm of the model, forward, under the stationary plan. Each device has half of
# the columns of its rows. So it begins with the mean and the variance of its own half, and an
# `all_gather` fetches those of the other half.

# %%
program = primepar.lower(stationary)
lines = [" ".join(instruction_text(node).split()) for node in program.programs[0]]
first = next(
    number for number, line in enumerate(lines) if line.startswith("blocks.0.norm1.moments")
)
last = next(
    number for number, line in enumerate(lines) if line.startswith("blocks.0.norm1.forward")
)
print("\n".join(lines[first : last + 1]))

# %% [markdown]
# The `irecv` among them is of the next operator: a pass has moved it up, so that the message is on
# its way while the norm is computed. An operator is defined by such phases, `norm1.moments`,
# `norm1.normalize`, and by what they read and write. What a phase computes is a small dense
# function, a kernel, that knows nothing of devices. The list is all there is: it is proved,
# emulated, simulated and trained with.

# %%
print(sum(map(len, program.programs)), "instructions on four devices:", end=" ")
print(primepar.verify(program).verdict)

# %% [markdown]
# ## They train alike
#
# Partitioning is not allowed to change what a model computes. So we train: on one device, and
# under each plan on four emulated ones, that have a memory of their own each, from the same
# weights and on the same batches. Under a plan
# everything, the update too, is done by the program; all that goes from one device to another goes
# by its messages.

# %%
STEPS, RATE = 2, 0.01
text = Path(json.__file__).read_bytes()
batches = list(islice(windows(text, BATCH, model.context), STEPS))
start = Transformer.initial(model).parameters


def on_one_device():
    dense = Transformer.initial(model)
    optimizer = AdamW(RATE, weight_decay=0.1, decayed=linear_weights(model))
    losses = []
    for tokens_BT, targets_BT in batches:
        loss, gradients = dense.loss_and_gradients(tokens_BT, targets_BT)
        dense.parameters = optimizer.step(dense.parameters, gradients)
        losses.append(loss)
    return losses


def under(plan):
    """Losses, and the elements that each device sent in a step."""
    emulated, losses = EmulatedModel(model, plan, start), []
    for tokens_BT, targets_BT in batches:
        step = emulated.update(tokens_BT, targets_BT, RATE)
        losses.append(step.loss)
    return losses, step.sent


expected = on_one_device()
print(f"{'one device':11} {'  '.join(f'{loss:.6f}' for loss in expected)}")
sent = {}
for name, plan in PLANS.items():
    losses, sent[name] = under(plan)
    assert np.allclose(losses, expected, rtol=1e-10, atol=0), name
    print(f"{name:11} {'  '.join(f'{loss:.6f}' for loss in losses)}")

# %% [markdown]
# The losses agree to ten digits, which the cell has checked. They are not equal to the last bit,
# because devices add in another order.
#
# And what did each device send for it, in one step, all in all?

# %%
for name, elements in sent.items():
    print(f"{name:11} {', '.join(f'{float(count):g}' for count in elements)}")

# %% [markdown]
# Here Megatron sends least: 32 rows, twice the features, on four devices. With a context of 64
# tokens instead of 8, one step:

# %%
long = GPTConfig(layers=2, hidden=16, heads=4, context=64, vocabulary=256)
batch = next(windows(text, BATCH, long.context))
parameters = Transformer.initial(long).parameters
for name in PLANS:
    plan = preset_plan(name, long, RANKS, BATCH)
    step = EmulatedModel(long, plan, parameters).loss_and_gradients(*batch)
    print(f"{name:11} loss {step.loss:.6f}, sent {float(max(step.sent)):g} elements")

# %% [markdown]
# `python -m benchmarks family_bytes` counts an MLP and a block under all presets, on up to 64
# devices.

# %% [question]
# With eight times as many tokens, by which factor does each plan send more? Why not eight?
#
# Hint: Some of what is sent has a size that does not depend on the number of tokens.
#
# Answer: Megatron sends 8.0 times as much: nearly all of it are activations. The others less:
# gradients of weights move too, and these do not grow.
assert round(62592 / float(max(sent["megatron"])), 1) == 8.0
assert 36817 / float(max(sent["stationary"])) < 131537 / float(max(sent["primepar"])) < 8

# %% [markdown]
# ## Rows over devices: ring attention and Ulysses
#
# Under all three plans a device computes whole rows of scores. When a sequence is too long for one
# device, its rows are cut, and yet a query attends to all keys. What helps is that attention is a
# quotient of two sums over the keys. Each part of the keys adds its terms to both, in any order:

# %%
draw = np.random.default_rng(0)
scores, values = draw.normal(size=12), draw.normal(size=12)
parts = zip(np.split(np.exp(scores), 3), np.split(values, 3), strict=True)
above, below = np.sum([(weights @ some, weights.sum()) for weights, some in parts], axis=0)
print(above / below, np.exp(scores) @ values / np.exp(scores).sum())

# %% [markdown]
# In *ring attention* (Liu et al., 2023) each device keeps its rows of queries. Keys and values go
# round, one part a step, and in backward their gradients travel with them. In *Ulysses* (Jacobs et
# al., 2023) an all-to-all changes rows of all heads into all rows of some heads. Then attention is
# local, and a second all-to-all sends the output back.

# %%
rows = {}
for name in ("ring-attention", "ulysses"):
    for devices in (2, 4, 8):
        target = f"{name}:devices={devices},positions=16,heads=8,head_dim=2"
        report = primepar.check(target)
        rows[name, devices] = float(max(report.sent))
        print(f"{target:55} equal: {report.equal}, sent {rows[name, devices]:g}")
primepar.show("ring-attention:devices=4,positions=16").save(OUT / "06_ring_attention.svg")
primepar.show("ulysses:devices=4,positions=16,heads=4").save(OUT / "06_ulysses.svg")

# %% [markdown]
# Round the ring all keys come to every device, however many devices there are. By all-to-all a
# device gives away all but its own share of what it has, and what it has gets less.
#
# Both are proved for every number of devices: `primepar verify ring-attention`, `ulysses`.

# %% [question]
# Why can Ulysses not use 16 devices here, and ring attention can?
#
# Hint: What does a device have after the all-to-all?
#
# Answer: All rows of some heads, and there are eight heads. A ring cuts rows alone.
assert primepar.check("ring-attention:devices=16,positions=16,heads=8,head_dim=2").equal
assert rows["ring-attention", 8] > rows["ring-attention", 2]
assert rows["ulysses", 8] < rows["ulysses", 2]

# %% [markdown]
# ## A plan of your own
#
# A preset is only a start. A plan is a file, and any operator in it may have another sequence.
# What if the attention of a stationary plan were done as Megatron does it, by heads?

# %%
mixed = dict(stationary.sequences)
for layer in range(model.layers):
    for name, sequence in (("qkv", "K4"), ("attention", "K4"), ("proj", "N4")):
        mixed[f"blocks.{layer}.{name}"] = sequence
plan = Plan(model=model, ranks=RANKS, batch=BATCH, sequences=mixed)
print(primepar.show(plan).save(OUT / "06_mixed.svg"))
print(np.allclose(under(plan)[0], expected, rtol=1e-10, atol=0))

# %% [markdown]
# It is right, and the table shows what it costs: `qkv` takes its input whole, so that has to be
# gathered from the stationary layout, and so has the gradient that comes back to `proj`. No
# operator had to be written for this.
#
# On real processes the same plan is run by torch: `primepar train --plan plan.json`.

# %% [markdown]
# ## Your turn
#
# Run two copies of a Megatron of four on eight devices: a tensor times data mesh. Write your
# answer into `tutorials/exercises/06_two_copies.py`, and run it:
#
# ```sh
# python tutorials/exercises/06_two_copies.py
# primepar exercise 6
# primepar exercise 18
# primepar exercise 19
# ```
#
# The second command shows a schedule with the same wrong output on every run. Find the block that
# holds the wrong data. The last two ask for functions of the section above: how two parts of a
# softmax become one, and which piece the all-to-all sends to whom.
