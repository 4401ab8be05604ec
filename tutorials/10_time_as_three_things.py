# %% [markdown]
# # Time as three things: steps, stages, periods
#
# What is a unit of time in a schedule? In PrimePar it is one block product. In a pipeline it is one
# micro-batch in one stage. In Local SGD it is a whole training step, and what counts is how many of
# them pass between two averages. These are three ways to use time, by different people, and here
# all of them are programs: the same code draws, runs, proves and refutes them.

# %% Set-up: imports, and functions that change a program and ask about it
from pathlib import Path
from textwrap import fill

from msgspec.structs import replace

import primepar
from primepar.models import GPTConfig
from primepar.partition.pipeline.formulas import bubble, peak_stashes
from primepar.pictures.methods import method_svg
from primepar.plan import preset_plan
from primepar.reference import emulate
from primepar.reference.check import memories
from primepar.schedule.program import AllReduce, Compute

OUT = Path("out/tutorials")
OUT.mkdir(parents=True, exist_ok=True)


def changed(program, change):
    """The program in which change(rank, instruction) replaces every instruction."""
    return replace(program, programs=tuple(
        tuple(change(rank, node) for node in nodes) for rank, nodes in enumerate(program.programs)
    ))  # fmt: skip


def verdicts(target):
    """One line: what is proved of it."""
    report = primepar.verify(target)
    print(f"{report.target}: {report.verdict} for {report.scope or 'this program'}")


def refutation(program, *names):
    """What the prover and the emulator answer to a wrong program."""
    report = primepar.verify(program)
    print(*(report[name] for name in names), sep="\n")
    print(fill(f"emulator: {primepar.check(program).message}", 96, subsequent_indent="  "))


# %% [markdown]
# ## Steps
#
# Four devices, two steps in each phase. Time goes to the right, each device has a line. The upper
# bars are products, the lower ones are messages:

# %%
ring = primepar.lower("P2x2", shape=(4, 4, 4))
primepar.show(emulate(ring, memories(ring))).save(OUT / "10_steps.svg")

# %% [markdown]
# You know it from the third tutorial. A step is one sub-operator of one product. Between two steps
# each device passes blocks to neighbours, while it multiplies. There is no gap between the bars:
# nobody waits.

# %%
print(primepar.check("P2x2", shape=(4, 4, 4)))
verdicts("primepar")

# %% [markdown]
# *Break it.* Device 0 takes its first two steps in the other order. It is the same work, and still
# each product is done once. But what a step reads is there at that step only.

# %%
first, second = [node for node in ring.programs[0] if isinstance(node, Compute)][:2]


def swapped_steps(rank, node):
    if rank == 0 and node in (first, second):
        return second if node == first else first
    return node


refutation(changed(ring, swapped_steps), "races")

# %% [question]
# `P2x2` has three phases of two steps. How many units does a training step take, if a product
# takes one and every message is hidden?
#
# Hint: One after another, nothing in between.
#
# Answer: Six, as in the table at the end: no device is ever without work.
run = emulate(ring, memories(ring))
assert max(event.end for event in run.events) == 6

# %% [markdown]
# ## Stages
#
# Now each of the four devices is a **stage**: it has some layers of the model, and all others need
# its output or its gradient. The batch is cut into eight **micro-batches**, so that the stages have
# something to do at the same time. `F` is the forward of a micro-batch, `B` the gradient of its
# input, `W` that of the weights. First GPipe (Huang et al., 2019):

# %%
primepar.show("gpipe:stages=4,micro_batches=8").save(OUT / "10_gpipe.svg")

# %% [markdown]
# The unit of time is a micro-batch in a stage. All forwards come first, then all backwards. At the
# beginning the last stage waits for the first micro-batch, at the end the first stage has nothing
# left to do. What is empty is the **bubble**.
#
# A stage keeps the input of each micro-batch from `F` to `W`: its **stash**. Look at the first
# stage and count the micro-batches between `F0` and `W0`. GPipe keeps all eight. Then look at 1F1B
# (Narayanan et al., 2021), in which each stage turns to the backward as early as it can:

# %%
primepar.show("1f1b:stages=4,micro_batches=8").save(OUT / "10_1f1b.svg")

# %% [markdown]
# The bubble is as long, but the first stage never keeps more than four micro-batches, and the last
# stage one. In both, `W` follows its `B` at once. Does it have to? Only `B` is awaited by another
# stage. ZB-H1 (Qi et al., 2024) delays `W`, and fills with it what would be empty:

# %%
primepar.show("zb-h1:stages=4,micro_batches=8").save(OUT / "10_zero_bubble.svg")

# %% [markdown]
# Everything between stages is a message, so these are programs like others. Do they compute what
# one device computes that has all layers and the whole batch? Are they right?

# %%
print(primepar.check("1f1b:stages=4,micro_batches=8"))
print(primepar.verify("1f1b"))
verdicts("zb-h1:stages=4,micro_batches=8")

# %% [markdown]
# Without sizes, the order of actions, the messages, the waits, the stashes and the bubble of 1F1B
# are proved for every number of stages and of micro-batches. What is proved of one program only has
# its sizes next to it.
#
# Bubble and stashes have closed forms. `F`, `B` and `W` take one unit each here, and messages none:

# %%
print("micro-batches  schedule  bubble        stashes of the stages")
for micro_batches in (4, 8, 32):
    for name in ("gpipe", "1f1b", "zb-h1"):
        idle = bubble(name, 4, micro_batches)
        stashes = [peak_stashes(name, stage, 4, micro_batches) for stage in range(4)]
        print(f"{micro_batches:13}  {name:8}  {idle} units  {stashes}")

# %% [markdown]
# More micro-batches do not make the bubble longer, so its share of the time shrinks. In GPipe they
# cost memory, in the others they do not. With two smaller chunks of the model on each stage the
# bubble can vanish altogether: `primepar show zbv` (Qi et al., 2024).
#
# *Break it.* Stage 1 takes two stashes for one another: at `W` of micro-batch 0 it reads the input
# of micro-batch 1, and the other way round. Shapes fit, nothing hangs, and the loss is right, as
# `W` changes only gradients.

# %%
pipeline = primepar.lower("1f1b:stages=4,micro_batches=8")
stash = {"x.1[0,0]": "x.1[1,0]", "x.1[1,0]": "x.1[0,0]"}


def swapped_stashes(rank, node):
    if rank != 1 or not isinstance(node, Compute) or node.phase != "layer1.gradient":
        return node
    return replace(node, reads=tuple(stash.get(block, block) for block in node.reads))


refutation(changed(pipeline, swapped_stashes), "alignment")

# %% [markdown]
# The gradient of the weights is a sum over micro-batches. Each of its terms is a product of two
# blocks of the *same* rows, and here they are not.
#
# A schedule can also be right and slow. No proof refutes a stage that waits without need. The
# picture shows it, and the exercise below measures it.

# %% [question]
# With four stages, from how many micro-batches on is the bubble less than a tenth of the time?
#
# Hint: A stage has three units of work for each micro-batch, and 9 units of bubble.
#
# Answer: 28: the bubble is 9 of 3 b + 9 units, and 9 / 93 is the first that is below 0.1.
assert (
    next(b for b in range(4, 99) if bubble("1f1b", 4, b) / (3 * b + bubble("1f1b", 4, b)) < 0.1)
    == 28
)

# %% [markdown]
# ## Periods
#
# In both schedules above all devices work on one model, and the weights change after each training
# step. **Local SGD** (Stich, 2018) gives every worker its own copy of the model, and its own rows
# of the batch. A worker updates its copy at every step, without a message. After a **period** of
# `H` steps all copies are replaced by their mean. Four workers and eight steps, for three periods:

# %%
runs = {}
for period in (1, 4, 8):
    program = primepar.lower(f"local-sgd:workers=4,period={period},steps=8")
    runs[f"H = {period}"] = emulate(program, memories(program)).events
(OUT / "10_periods.svg").write_text(method_svg("local-sgd", runs), encoding="utf-8")

# %% [markdown]
# A numbered bar is a step: the error on the worker's own rows, the gradient, the update. One that
# all workers have at the same time is an average, in which everybody waits for everybody. `H = 1`
# averages after every step, `H = 8` once, at the end.

# %%
print(primepar.check("local-sgd:workers=4,period=4,steps=8"))
verdicts("local-sgd:workers=4,period=4,steps=8")

# %% [markdown]
# `H = 1` is synchronous SGD, the usual data parallelism: the mean of `W - lr G_k` over the workers
# `k` is `W` less `lr` times the mean gradient. With longer periods other numbers come out than on
# one device, so what is *equal* here? The program is compared with its definition: local steps,
# then the mean over all four with the coefficient 1/4. Whether the model learns as well is no
# question of the schedule (Zhang et al., 2016); `docs/local-sgd.md` measures it. What is saved is
# exact:

# %%
for period in (1, 2, 4, 8):
    report = primepar.check(f"local-sgd:workers=4,period={period},steps=8")
    print(f"H = {period}: {float(report.sent[0]):4g} elements sent by each worker in 8 steps")

# %% [markdown]
# *Break it.* Worker 3 misses the first average. The other three take the mean of three, with 1/3.
# Nothing hangs:

# %%
local = primepar.lower("local-sgd:workers=4,period=4,steps=8")


def without_worker_3(rank, node):
    if not isinstance(node, AllReduce) or node.block != "model.4[0,0]":
        return node
    return replace(node, group=(3,) if rank == 3 else (0, 1, 2), scale="1" if rank == 3 else "1/3")


refutation(changed(local, without_worker_3), "completion")

# %% [markdown]
# And once more with all four in the group, but everyone forgets to divide. A sum is no mean:

# %%


def undivided(rank, node):
    return replace(node, scale="1") if isinstance(node, AllReduce) else node


refutation(changed(local, undivided), "completion")

# %% [question]
# How much does a worker send in 8 steps if it averages only every 5?
#
# Hint: How many averages are there? The last one is at the end.
#
# Answer: 12 elements, as with H = 4: one average after step 5, and one after step 8.
assert primepar.check("local-sgd:workers=4,period=5,steps=8").sent[0] == 12

# %% [markdown]
# ## Side by side
#
# One clock for all three: each computation takes one unit, and so does a message. For how much of
# the time has a device nothing to compute? The last two columns are elements, of the device that
# sends and of the one that holds most.

# %%
print("schedule                                 work  units  without work  sent  held")
for target in ("P2x2", "gpipe:stages=4,micro_batches=8", "1f1b:stages=4,micro_batches=8",
               "zb-h1:stages=4,micro_batches=8", "local-sgd:workers=4,period=1,steps=8",
               "local-sgd:workers=4,period=4,steps=8"):  # fmt: skip
    program = ring if target == "P2x2" else primepar.lower(target)
    run = emulate(program, memories(program))
    busy = [event for event in run.events if event.track == "compute" and event.phase]
    units = max(event.end for event in run.events)
    work = sum(event.end - event.start for event in busy)
    share = 1 - work / (units * program.ranks)
    print(f"{target:36} {work:8g} {units:6g} {share:13.0%} {max(map(int, run.sent)):5} "
          f"{max(run.peak):5}")  # fmt: skip

# %% [markdown]
# | | steps | stages | periods |
# |---|---|---|---|
# | unit of time | one block product | a micro-batch in a stage | a training step |
# | each device has | slices of a product | layers of the model | rows of the batch |
# | what moves | blocks, at every step | activations down, gradients up | a model, once a period |
# | who waits | nobody, if hops are short | stages, first and last | all, at the average |
# | what is kept | two blocks of a tensor | stashes of micro-batches | a model on each worker |
# | what is gained | nothing is held twice | weights stay where they are | `1/H` of the messages |
# | what is paid | a message at every step | the bubble | other numbers than one device's |
#
# They do not exclude one another. Here is a training step of a transformer in two stages with two
# micro-batches, in the order of 1F1B. Inside a stage every linear layer is divided into two steps
# over four devices:

# %%
model = GPTConfig(layers=2, hidden=8, heads=2, context=4, vocabulary=16)
both = preset_plan("1f1b:2x2,primepar", model, 8, 4)
print(primepar.check(both))
verdicts(both)

# %% [markdown]
# And several of these could be the workers of Local SGD. Then time is divided three times: into
# periods, into micro-batches, into steps.

# %% [markdown]
# ## Your turn
#
# Write the order of 1F1B for each stage. Write your answer into
# `tutorials/exercises/10_order_of_a_stage.py`, and run it:
#
# ```sh
# python tutorials/exercises/10_order_of_a_stage.py
# primepar exercise 11
# ```
#
# The second command shows a pipeline of two stages. Its losses are right, its gradients are not.
