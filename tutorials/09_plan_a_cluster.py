# %% [markdown]
# # From a cluster to a training run
#
# So far you chose the sequences. Which one is the best depends on the machine: how fast it
# multiplies, how fast its devices reach one another, and how much each of them holds. This
# tutorial writes a machine down, lets a search choose, looks at what it chose on a timeline, and
# trains with it.

# %% Set-up: imports and a small model
from pathlib import Path

import primepar
from primepar.models import GPTConfig
from primepar.plan import preset_plan, save_plan
from primepar.plan.cluster import load_cluster
from primepar.plan.simulator.account import accounting
from primepar.schedule import Linear

OUT = Path("out/tutorials")
OUT.mkdir(parents=True, exist_ok=True)

model = GPTConfig(layers=2, hidden=128, heads=4, context=32, vocabulary=256)


# %% [markdown]
# ## A cluster is a file
#
# Two boxes with two devices each. Within a box a device sends 10 GB a second; between the boxes
# there is one cable of 1 GB a second, which the two devices of a box share. All numbers are in
# bytes, seconds, and operations per second.

# %%
CLUSTER = """\
name = "two boxes of two"
nodes = 2
devices_per_node = 2
memory = 2e8
memory_bandwidth = 1e11
launch = 5e-6
overlap = true

[rates.float32]
peak = 1e12
achieved = 8e11

[[links]]             # within a box
joins = 2
latency = 5e-6
bandwidth = 1e10
shared = false

[[links]]             # between the boxes
joins = 4
latency = 2e-5
bandwidth = 1e9
shared = true
"""
(OUT / "09_cluster.toml").write_text(CLUSTER, encoding="utf-8")
cluster = load_cluster(str(OUT / "09_cluster.toml"))

# %% [markdown]
# Your own machine can be measured instead: `primepar profile -o cluster.toml`.
#
# ## The order of the cuts
#
# Four devices have two bits. The first primitive of a sequence takes the first bit, and that one
# selects the box of a device. So `K2,M2` cuts columns between the boxes and rows within, and
# `M2,K2` the other way round. Both do the same products and send as many bytes. One linear
# operator, forward, backward and gradient, simulated:

# %%
operator = Linear(M=2048, N=1024, K=4096)
runs = {}
for text in ("K2,M2", "M2,K2", "K4", "M4", "P2x2"):
    runs[text] = run = primepar.simulate(text, cluster, shape=operator)
    print(f"{text:6} {1e3 * run.seconds:5.1f} ms, {1e3 * run.computing[0]:4.1f} of them products, "
          f"{run.sent[0] / 1e6:4.1f} MB sent by a device")  # fmt: skip
primepar.show(runs["K2,M2"]).save(OUT / "09_K2_M2.svg")
primepar.show(runs["P2x2"]).save(OUT / "09_P2x2.svg")

# %% [markdown]
# A cut of the columns leaves sums of `dI`, which has as many rows as there are tokens. A cut of the
# rows leaves sums of `dW`, which has one element for each weight. Here the weights are more, so it
# is better to send `dI` over the cable.
#
# In the pictures time goes to the right; each device has a line for its products and one for what
# it sends and receives. `P2x2` sends *while* it multiplies, which is its point, and loses here all
# the same: its blocks go round through the cable. On a machine of one kind of link it may win:
# [why PrimePar?](../why-primepar.md) shows where, and [tutorial 13](13_roofline.md) from which size
# on a message is hidden. Nobody should have to think this through for each operator of a model.

# %% [question]
# What would you expect of `N2,M2`: is it nearer to `K2,M2` or to `M2,N2`?
#
# Hint: What does a cut of `N` sum, and where does that sum go?
#
# Answer: To `K2,M2`: `O` has as many rows as `dI`, and goes over the cable; here it has four times
# as many columns, so it takes longer.
took = {
    text: primepar.simulate(text, cluster, shape=operator).seconds
    for text in ("K2,M2", "N2,M2", "M2,N2")
}
assert took["K2,M2"] < took["N2,M2"]

# %% [markdown]
# ## The search
#
# The cost model puts a time on each sequence of each operator, and on each way from one to the
# next. The search finds the choice with the least sum, of all that there are.

# %%
BATCH = 4
result = primepar.plan(model, cluster, 4, BATCH, pp=1)
print(primepar.show(result))

# %% [markdown]
# *What to notice.* The plan is Megatron's within each layer, `K` and then `N`, with nothing to move
# between the two. But it is laid across the boxes, and within a box the devices share the rows.
# People mostly do it the other way round. With 128 tokens a step there are fewer activations than
# weights, so activations go through the cable. Give it more tokens:

# %%
plans = {BATCH: result} | {
    batch: primepar.plan(model, cluster, 4, batch, pp=1) for batch in (16, 256)
}
for batch, planned in plans.items():
    plan = planned.plan
    pair = plan.sequences["blocks.1.fc1"], plan.sequences["blocks.1.fc2"]
    print(f"{batch:3} sequences, {batch * model.context:4} tokens: {pair[0]:5} then {pair[1]}")

# %% [markdown]
# At first Megatron goes across the boxes, then it goes inside, and with many tokens it does not
# pay: each device takes a part of the batch, and only gradients of weights are summed.

# %% [question]
# Why does a larger batch turn the plan towards data parallelism?
#
# Hint: What grows with the batch: activations, or gradients of weights?
#
# Answer: Activations do, gradients of weights do not. What is summed under data parallelism has
# one size for any batch.
data = {
    batch: primepar.simulate(preset_plan("data", model, 4, batch), cluster).sent[0]
    for batch in (4, 16)
}
assert data[4] == data[16]

# %% [markdown]
# ## Is it true?
#
# The cost model adds up what operators cost one by one. The simulator runs the very program that
# is proved and executed, event by event: with every message and every wait.

# %%
step = (BATCH, model.context)
run = primepar.simulate(result, cluster)
print(f"the search's plan: {1e3 * result.price:.2f} ms predicted, {1e3 * run.seconds:.2f} ms run")
for name in ("megatron", "M2,megatron", "data", "primepar"):
    other = primepar.simulate(preset_plan(name, model, 4, BATCH), cluster)
    print(f"{name:16} {1e3 * other.seconds:5.2f} ms run")
primepar.show(run).save(OUT / "09_step.svg")

account = accounting(result.plan, *step, "float32")
print(f"bytes sent:  the planner's {list(account.sent)}")
print(f"             simulated     {[int(count) for count in run.sent]}")
print(f"bytes held:  the planner's {list(account.held)}")
print(f"             simulated     {run.peak}")

# %% [markdown]
# The planner counts bytes in the program of the step, with every layer like another lowered once.
# Time is not counted but predicted: in a model as small as this one a step is
# mostly *starting* things. The cost model counts one start where the program makes several, and
# leaves out the updates of the weights. In a large model products and transfers are what counts,
# and the two come close. The first line of each rank names the layers: forward, then backward and
# gradient alternating, and the updates, grey as everything that is no product of two matrices.
# Below are the products of each, and the messages with the operator whose output they carry.

# %% [question]
# The plan's bytes sent are predicted exactly, its time is not. How far is it off here?
#
# Hint: The first line of the output above has both.
#
# Answer: By less than one per cent.
assert abs(result.price / run.seconds - 1) < 0.01

# %% [markdown]
# ## Train it
#
# A plan is a file, and `primepar train` takes it. Here are two processes of your computer, so the
# plan is for two devices: those of one box. Emulated devices run it first, with NumPy, and have to
# agree with one device:

# %%
two = primepar.plan(model, cluster, 2, BATCH, pp=1)
save_plan(two.plan, OUT / "09_plan.json")
print(primepar.check(two.plan))

# %% [markdown]
# Then torch, on any text that you have:
#
# ```sh
# primepar train --ranks 2 --plan out/tutorials/09_plan.json --data book.txt --steps 10
# ```
#
# The losses are those of one device, as every plan computes the same. What a plan changes is the
# timeline. A good one overlaps most transfers with products. How much is the exercise.

# %% [markdown]
# ## Your turn
#
# Measure how much of what moves is overlapped with products. Write your answer into
# `tutorials/exercises/09_hidden.py`, and run it:
#
# ```sh
# python tutorials/exercises/09_hidden.py
# primepar exercise 10
# ```
#
# The second command shows three devices of which one runs out of memory.
