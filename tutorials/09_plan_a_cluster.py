# %% [markdown]
# # From a cluster to a training run
#
# So far you chose the sequences. Which one is the best depends on the machine: how fast it
# multiplies, how fast its devices reach one another, and how much each of them holds. This
# tutorial writes a machine down, lets a search choose, looks at what it chose on a time line, and
# trains with it.

# %% Set-up: imports and a small model
import subprocess
import sys
from pathlib import Path

from msgspec.structs import replace

from primepar.models import GPTConfig
from primepar.partition import parse_sequence
from primepar.pictures.timeline import timeline_svg
from primepar.plan import ready_plan, save_plan
from primepar.plan.cluster import load_cluster
from primepar.plan.cost.traffic import traffic
from primepar.plan.memory.peak import peak_bytes
from primepar.plan.search.explain import explain, words
from primepar.plan.search.planner import Planner
from primepar.plan.search.search import search
from primepar.plan.simulator.run import simulate
from primepar.plan.simulator.step import simulate_step
from primepar.schedule import Linear, lower

OUT = Path("out/tutorials")
OUT.mkdir(parents=True, exist_ok=True)

model = GPTConfig(layers=2, hidden=128, heads=4, context=32, vocabulary=256)


def draw(run, name):
    events = [replace(each, start=1e3 * each.start, end=1e3 * each.end) for each in run.events]
    (OUT / f"09_{name}.svg").write_text(timeline_svg(events, unit="ms"), encoding="utf-8")


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
# Your own machine can be measured instead: `primepar plan --profile -o cluster.toml`.
#
# ## The order of the cuts
#
# Four devices have two bits. The first primitive of a sequence takes the first bit, and that one
# says in which box a device is. So `K2,M2` cuts columns between the boxes and rows within, and
# `M2,K2` the other way round. Both do the same products and send as many bytes. One linear
# operator, forward, backward and gradient, simulated:

# %%
operator = Linear(M=2048, N=1024, K=4096)
runs = {}
for text in ("K2,M2", "M2,K2", "K4", "M4", "P2x2"):
    runs[text] = run = simulate(lower(parse_sequence(text), operator), cluster, "float32")
    print(f"{text:6} {1e3 * run.seconds:5.1f} ms, {1e3 * run.computing[0]:4.1f} of them products, "
          f"{run.sent[0] / 1e6:4.1f} MB sent by a device")  # fmt: skip
draw(runs["K2,M2"], "K2_M2")
draw(runs["P2x2"], "P2x2")

# %% [markdown]
# A cut of the columns leaves sums of `dI`, which has as many rows as there are tokens; a cut of
# the rows leaves sums of `dW`, which has as many as there are weights. Here the weights are more,
# so it is `dI` that had better take the cable.
#
# In the pictures time goes to the right; each device has a line for its products and one for what
# it sends and receives. `P2x2` sends *while* it multiplies, which is its point, and loses here all
# the same: its blocks go round through the cable. On a machine of one kind of link this is
# another story. Nobody wants to think this through for each operator of a model.
#
# ## The search
#
# The cost model puts a time on each sequence of each operator, and on each way from one to the
# next. The search finds the choice with the least sum, of all that there are.

# %%
BATCH = 4
found = search(Planner.of(model, cluster, 4, BATCH, "float32", "paper"))
print(words(explain(found)))

# %% [markdown]
# *What to notice.* The plan is Megatron's within each layer, `K` and then `N`, with nothing to
# move between the two; but it is laid across the boxes, and within a box the devices share the
# rows. People mostly do it the other way round. With 128 tokens a step there are fewer activations
# than weights, so it is activations that go through the cable. Give it more tokens:

# %%
for batch in (4, 16, 64, 256):
    plan = search(Planner.of(model, cluster, 4, batch, "float32", "paper")).plan
    pair = plan.sequences["blocks.1.fc1"], plan.sequences["blocks.1.fc2"]
    print(f"{batch:3} sequences, {batch * model.context:4} tokens: {pair[0]:5} then {pair[1]}")

# %% [markdown]
# At first Megatron goes across the boxes, then it goes inside, and with many tokens it is not
# worth while: each device takes a part of the batch, and only gradients of weights are summed.
#
# ## Is it true?
#
# The cost model adds up what operators cost one by one. The simulator runs the very program that
# is proved and executed, event by event: with every message and every wait.

# %%
step = (BATCH, model.context)
run = simulate_step(found.plan, *step, cluster, "float32")
print(f"the search's plan: {1e3 * found.seconds:.2f} ms predicted, {1e3 * run.seconds:.2f} ms run")
for name in ("megatron", "M2,megatron", "data", "primepar"):
    other = simulate_step(ready_plan(name, model, 4, BATCH), *step, cluster, "float32")
    print(f"{name:16} {1e3 * other.seconds:5.2f} ms run")
draw(run, "step")

sent = traffic(found.plan, *step).bytes("float32")
held = peak_bytes(found.plan, *step, "float32")
print(f"bytes sent:  predicted {list(sent)}")
print(f"             counted   {[int(each) for each in run.sent]}")
print(f"bytes held:  predicted {list(held)}")
print(f"             counted   {run.peak}")

# %% [markdown]
# Bytes are predicted to the last one. Time is not: in a model as small as this one a step is
# mostly *starting* things, and the cost model counts one start where the program makes several,
# and leaves out the updates of the weights. In a large model products and transfers are what
# counts, and the two come close. In the picture forward comes first, then backward and gradient by
# turns, and at the end the updates, grey as everything that is no product of two matrices.
#
# ## Train it
#
# A plan is a file, and `primepar train` takes it. Here are two processes of your computer, so the
# plan is for two devices: those of one box.

# %%
two = search(Planner.of(model, cluster, 2, BATCH, "float32", "paper"))
save_plan(two.plan, OUT / "09_plan.json")
(OUT / "09_text.txt").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
command = ["train", "--ranks", "2", "--plan", OUT / "09_plan.json", "--data", OUT / "09_text.txt"]
done = subprocess.run(
    [sys.executable, "-m", "primepar", *command, "--steps", "10", "--warmup", "2"],
    capture_output=True, text=True, check=True,
)  # fmt: skip
lines = [line.partition(",")[0] for line in done.stdout.splitlines() if line.startswith("step")]
print("\n".join([lines[0], "...", *lines[-2:]]))

# %% [markdown]
# The losses are those of one device, as every plan computes the same. What a plan changes is the
# time line; and whether a time line is a good one shows in how much of what moves is hidden behind
# products. That is the exercise.
