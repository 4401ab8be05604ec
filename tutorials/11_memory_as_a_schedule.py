# %% [markdown]
# # Memory as a schedule
#
# A model's parameters, gradients and moments may not fit on the device. Host memory is larger, but
# slow to reach. So during a training step somebody has to decide what is fetched, when, and what
# has to go for it. That is a schedule too: not of devices, but of memory. Here is one, for a
# transformer on a device with room for a third of all that:

# %% Set-up: imports, a program that follows a trace, and its picture
from functools import cache
from pathlib import Path
from textwrap import fill

from msgspec.structs import replace

import primepar
from primepar.errors import MemoryLimitError
from primepar.models import GPTConfig
from primepar.operators import lower_step
from primepar.passes.liveness import sizes_of
from primepar.passes.offload import (
    POLICIES,
    best_chunk_size,
    least_limit,
    moved_elements,
    offload,
    packed,
    state_chunks,
    transfers,
)
from primepar.passes.offload.insert import uses_of
from primepar.pictures.methods import residency_svg
from primepar.plan import preset_plan
from primepar.schedule import Program
from primepar.schedule.program import Compute, Evict, Fetch, Free
from primepar.schedule.signature import Bound, Signature, Tensor

OUT = Path("out/tutorials")
OUT.mkdir(parents=True, exist_ok=True)
SIZE = 10


def transferred(trace, room, policy):
    """Yield each moment of a trace with the transfers before it: evict, then fetch, or none."""
    uses, here = uses_of([[chunk] for chunk in trace]), []
    for moment, chunk in enumerate(trace):
        nodes = [] if chunk in here else [Fetch(f"{chunk}[0]")]
        if nodes and len(here) == room:
            gone = max(here, key=lambda name: policy(uses, len(trace), name, moment))
            here.remove(gone)
            nodes.insert(0, Evict(f"{gone}[0]"))
        here += [chunk] if nodes else []
        yield moment, chunk, nodes
    yield len(trace), None, [Evict(f"{name}[0]") for name in here]


def walk(trace, room, policy):
    """A program of one device whose products read the chunks of a trace one after another."""
    nodes, phases, tensors = [], {}, {name: Tensor(((0, SIZE),)) for name in sorted(set(trace))}
    chunks = tuple(f"{name}[0]" for name in tensors)
    for moment, chunk, transfers_before in transferred(trace, room, policy):
        nodes += transfers_before
        before, after, phase = f"a.{moment}", f"a.{moment + 1}", f"moment{moment}"
        tensors[before] = Tensor(((0, 1),))
        if chunk:
            phases[phase] = Signature((f"{before}[M]", f"{chunk}[N]"), f"{after}[M]")
            reads, place = (f"{before}[0]", f"{chunk}[0]"), {"M": 0, "N": 0}
            nodes += [Compute(reads, f"{after}[0]", phase, place), Free(f"{before}[0]")]
    return Program(
        "primepar-program", 1, 1, (tuple(nodes),), phases=phases, tensors=tensors,
        grid={phase: {"M": 1, "N": 1} for phase in phases}, memory=Bound(device=room * SIZE + 2),
        initial=(("a.0[0]",),), final=((f"a.{len(trace)}[0]",),),
        host_initial=(chunks,), host_final=(chunks,),
    )  # fmt: skip


def residency(program):
    """A line for each chunk, a column for each product: # reads it, - it is on the device."""
    rows = dict.fromkeys(program.host_initial[0], "")
    here, fetches = set(), 0
    for node in program.programs[0]:
        if isinstance(node, Fetch):
            here.add(node.block)
            fetches += 1
        elif isinstance(node, Evict):
            here.discard(node.block)
        elif isinstance(node, Compute):
            for block in rows:
                rows[block] += "#" if block in node.reads else "-" if block in here else "."
    for block, row in rows.items():
        print(f"{block.partition('[')[0]}  {' '.join(row)}")
    print(f"    {fetches} fetches, and as many evictions")


# %%
model = GPTConfig(layers=2, hidden=16, heads=2, context=8, vocabulary=64)
step_program = lower_step(preset_plan("data", model, 1, 2), 2, model.context, "update")
limited = offload(step_program, 11_306, 1120)
chunks = state_chunks(step_program, 1120)[0]
(OUT / "11_chunks.svg").write_text(residency_svg(limited, 0, chunks), encoding="utf-8")

# %% [markdown]
# Time goes to the right, one instruction after another. A row is a chunk, some tensors that move
# together, and its colour is the memory that it is in. Forward reads the parameters, backward reads
# them in reverse and makes their gradients. At the right end are the updates, which need everything
# once, the moments `m` and `v` as well.
#
# How does one make such a schedule, and how does one know that it is right? We begin with something
# smaller: a model of six pieces, and a device with room for three.

# %%
pieces = [f"w{number}" for number in range(6)]
step = [*pieces, *reversed(pieces), *pieces]
trace = [*step, *pieces]
recent = walk(trace, 3, POLICIES["least recently used"])
residency(recent)

# %% [markdown]
# Time goes to the right. A column is one product, and `#` is the piece that it reads: it has to be
# on the device then. A piece that is there and not read has a `-`. Everywhere else it is on the
# host.
#
# A training step reads the pieces in order in forward, in reverse in backward, and in order again
# in the update. The last six columns are the next forward. A column has three marks at most.

# %% [question]
# With room for one piece, how many fetches does this trace need, whatever the rule?
#
# Hint: When is a piece still there that is read next?
#
# Answer: 22 of 24: only where one piece is read twice in a row, `w5` at the turn and `w0` before
# the update, nothing is fetched.
again = sum(trace[place] == trace[place - 1] for place in range(1, len(trace)))
assert len(trace) - again == 22

# %% [markdown]
# ## What has to go
#
# When there is no room, something is evicted. The picture shows the usual answer of a cache: the
# piece that was used least recently. Look at the update, and at the forward after it: each piece
# has just gone when it is needed. Now with another answer:

# %%
furthest = walk(trace, 3, POLICIES["furthest next use"])
residency(furthest)

# %% [markdown]
# This one evicts the piece whose **next use is furthest** away (Belady, 1966). A cache cannot know
# that. A training step can: it reads the same pieces in the same order, time after time. A program
# lists all uses; PatrickStar (Fang et al., 2022), which has this rule, records them in a first
# step, the warm-up. Is there a way with fewer fetches still? Try all there are:


# %%
def fewest(trace, room):
    """The least number of fetches, over all choices of what goes."""

    @cache
    def rest(moment, here):
        if moment == len(trace):
            return 0
        chunk = trace[moment]
        if chunk in here:
            return rest(moment + 1, here)
        if len(here) < room:
            return 1 + rest(moment + 1, here | {chunk})
        return 1 + min(rest(moment + 1, here - {gone} | {chunk}) for gone in here)

    return rest(0, frozenset())


print("room  least recent  furthest next use  fewest")
for room in range(1, 7):
    recently, by_next_use = (
        transfers([[piece] for piece in trace], room, POLICIES[name]) // 2
        for name in ("least recently used", "furthest next use")
    )
    print(f"{room:4} {recently:13} {by_next_use:18} {fewest(tuple(trace), room):7}")

# %% [markdown]
# ## Run it, prove it
#
# `fetch` and `evict` are instructions of programs. The emulated device has a memory of its own and
# a host memory, and refuses what does not fit. The prover asks whether every product finds what it
# reads, whether the device ever holds more than its limit, and whether every piece ends where it
# should.

# %%
print(primepar.check(furthest))
print(primepar.verify(furthest))

# %% [question]
# Where does the least recently used rule lose most against the best one: with little room or with
# much?
#
# Hint: Subtract the columns of the table.
#
# Answer: With room for five of six: 14 fetches against 9. The rule evicts each piece just before
# it is needed.
lost = {
    room: transfers([[piece] for piece in trace], room, POLICIES["least recently used"]) // 2
    - fewest(tuple(trace), room)
    for room in range(1, 7)
}
assert max(lost, key=lost.get) == lost[5] == 5

# %% [markdown]
# ## Break it
#
# Three wrong schedules. In the first, `w5` is evicted one product too early:


# %%
def refutation(program, name):
    """What the prover and the emulator answer to a wrong program."""
    print(primepar.verify(program)[name])
    print(fill(f"emulator: {primepar.check(program).message}", 96, subsequent_indent="  "))


def listed(program, nodes):
    return replace(program, programs=(tuple(nodes),))


nodes = list(furthest.programs[0])
early = nodes.index(Evict("w5[0]"))
read = max(place for place, node in enumerate(nodes[:early])
           if isinstance(node, Compute) and "w5[0]" in node.reads)  # fmt: skip
nodes.insert(read, nodes.pop(early))
refutation(listed(furthest, nodes), "alignment")

# %% [markdown]
# In the second, `w2` goes only after `w5` has come. The device has room for three pieces and two
# activations, and not for a fourth piece:

# %%
nodes = list(furthest.programs[0])
gone = nodes.index(Evict("w2[0]"))
nodes.insert(gone + 3, nodes.pop(gone))
refutation(listed(furthest, nodes), "memory")

# %% [markdown]
# In the third, `w1` is freed at the end where it should be evicted. Every product of this step was
# right. But the piece is on neither side any more:

# %%
nodes = list(furthest.programs[0])
last = len(nodes) - 1 - nodes[::-1].index(Evict("w1[0]"))
nodes[last] = Free("w1[0]")
refutation(listed(furthest, nodes), "alignment")

# %% [markdown]
# ## Chunks
#
# The tensors of a model have many sizes, and a transfer has a price of its own, however little it
# moves. So PatrickStar packs tensors, in the order of their creation, into **chunks** of one size,
# and moves whole chunks. A tensor is never divided: what does not fit begins the next chunk. These
# are the parameters of the transformer above:

# %%
element_count = sizes_of(step_program)
sizes = {
    block.partition("[")[0]: element_count(block)
    for block in step_program.initial[0]
    if block.partition("[")[0] + ".m" in step_program.tensors
}
print(f"{len(sizes)} tensors, {sum(sizes.values())} elements, {max(sizes.values())} the largest")
for capacity in (1024, 1120, 1536, 2208, 4096):
    layout = packed(sizes, capacity)
    print(f"chunks of {capacity}: {len(layout.chunks):2} of them, "
          f"{float(layout.utilisation):.0%} used")  # fmt: skip

# %% [markdown]
# Small chunks leave room that no tensor fits into. Large ones are fetched for the sake of one
# tensor. PatrickStar tries capacities and prints what each leaves unused. The search here takes the
# one with the least, of those that fit twice on the device:

# %%
best = best_chunk_size(sizes, device=6000)
print(f"{best.layout.capacity}, {best.waste} elements unused")

# %% [question]
# Chunks of 1536 leave more unused than chunks of 1120. How can that be?
#
# Hint: A tensor is never divided.
#
# Answer: What does not fit begins the next chunk, so a larger chunk may end with a larger gap.
assert packed(sizes, 1536).utilisation < packed(sizes, 1120).utilisation

# %% [markdown]
# ## A training step under a limit
#
# The same as a pass: it takes the program of a training step, with forward, backward and AdamW, and
# returns one in which parameters and moments start and end on the host. The least limit is that of
# the instruction that uses most:

# %%
states = 4 * sum(sizes.values())
print(f"parameters, gradients and two moments: {states} elements")
print(f"the least limit: {least_limit(step_program, 1120)}")
for part in (1, 2, 3):
    limited = offload(step_program, states // part, 1120)
    report = primepar.verify(limited)
    print(f"limit 1/{part}: {report.verdict}, {report['memory'].reason.partition(';')[0]}, "
          f"{moved_elements(limited)[0]} moved")  # fmt: skip
try:
    offload(step_program, 5000, 1120)
except MemoryLimitError as error:
    print(fill(str(error), 96, subsequent_indent="  "))

# %% [markdown]
# With room for all states each is fetched once and evicted once. Under a third of that more is
# moved, and nothing else changes: the same products in the same order, so the same numbers, to the
# last bit. Do the emulated devices agree?

# %%
report = primepar.check(limited)
print(f"equal to one device: {report.equal}, at most {report.peak[0]} elements on the device")

# %% [markdown]
# Torch runs such a program too, and holds it to the limit. On a GPU the transfers are copies on a
# stream of their own; on a CPU two stores take the place of device and host. The states of the
# default model have 30 MB. With about a third of it the losses are the same, to the last bit:
#
# ```sh
# primepar train --steps 10 --set executor.device_memory=10MiB
# ```
#
# Two things of PatrickStar are left: a gradient takes the place of its parameter, and chunks are
# divided over ranks. `primepar show patrickstar` has both.
#
# *What to notice.* Nothing was learned here about layers, attention or AdamW. Which piece goes
# depends on the order of uses alone. That is why one rule serves every model, and why a proof can
# follow it.

# %% [markdown]
# ## Your turn
#
# Write the rule that evicts. Write your answer into `tutorials/exercises/11_what_has_to_go.py`, and
# run it:
#
# ```sh
# python tutorials/exercises/11_what_has_to_go.py
# primepar exercise 12
# ```
#
# The second command shows a device with room for two chunks of three. The wrong one is evicted.
