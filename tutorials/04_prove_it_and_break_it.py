# %% [markdown]
# # Prove it, and break it
#
# Below is a schedule that is wrong. It is PrimePar's forward map with one change: the devices
# walk along `N` in steps of two. See what it does on a mesh of side 3, and then on one of side
# 2.

# %% Set-up: imports
from pathlib import Path
from textwrap import fill

from msgspec.structs import replace

import primepar
from primepar import Primitive, where
from primepar.errors import EmulationError
from primepar.partition import PrimePar
from primepar.reference import emulate
from primepar.schedule import Program, Sequence
from primepar.schedule.program import Free, Recv, Send, Wait

OUT = Path("out/tutorials")
OUT.mkdir(parents=True, exist_ok=True)


# %%
class TwoAtATime(Primitive):
    axes = ("r", "c")

    def forward(self, r, c, t, s):
        return dict(M=r, N=(r + c + 2 * t) % s, K=c)

    def backward(self, r, c, t, s):
        return dict(M=r, N=(r + c - 1) % s, K=(c + t) % s)

    def gradient(self, r, c, t, s):
        last = where(t == s - 1, 1, 0)
        return dict(M=(r + t) % s, N=(r + c - 1 + last) % s, K=(c - 1 + last) % s)


for side in (3, 2):
    sequence = Sequence.of(TwoAtATime(), side)
    for rank in range(2):
        walk = [sequence.slices("forward", rank, t)["N"][0] for t in range(side)]
        print(f"side {side}, {sequence.place(rank)}: walks along N over the slices {walk}")
    print()
print(primepar.show(TwoAtATime, side=2, phase="forward").save(OUT / "04_two_at_a_time.svg"))

# %% [markdown]
# On three devices in a row, steps of two visit every slice. On two they stay where they are:
# one slice is multiplied twice and the other never. Does a test find it?

# %%
for side in (1, 3, 5, 2):
    report = primepar.check(TwoAtATime, side=side)
    print(fill(f"side {side}: {report.message or 'equal to one device'}", 96))

# %% [markdown]
# Somebody whose mesh has an odd side will find nothing wrong with it.

# %% [question]
# Is `TwoAtATime` right on side 7? On side 8?
#
# Hint: Which slices are 0, 2, 4, ... modulo the side?
#
# Answer: On 7 it is, on 8 it is not: an even side is visited in steps of two only by half.
visited = [len({2 * t % s for t in range(s)}) for s in (7, 8)]
assert visited == [7, 4]

# %% [markdown]
# ## A proof for every side
#
# The prover reads the *same* map with symbols for `r`, `c`, `t` and `s`, and asks Z3 whether
# anything can go wrong for any side at all. First PrimePar's primitive:

# %%
print(primepar.verify(PrimePar))

# %% [markdown]
# What do these properties mean?
#
# - **coverage**: every sub-operator of each phase is done once, and not twice.
# - **placement**: whenever a device multiplies, both blocks are there, and they hold the right
#   data.
# - **completion**: every block of an output ends fully summed, once, where it should.
# - **alignment**: what is kept for a later phase is where that phase begins; the weights and
#   their gradients end where the next forward starts.
# - **deadlock-freedom**: nobody waits without end, every message has its partner.
# - **races**: no block is read before it has arrived or overwritten while it is being sent.
#   This one is asked of programs.
#
# Now the wrong one. The prover looks for the smallest mesh on which it fails:

# %%
print(primepar.verify(TwoAtATime))

# %% [markdown]
# ## A subtler break
#
# Take PrimePar's three maps and leave out the realignment at the last step of gradient. Every
# product is still done once, and every block is where it is read. And yet nobody could train
# with it.


# %%
class NoRealignment(PrimePar):
    def gradient(self, r, c, t, s):
        return dict(M=(r + t) % s, N=(r + c - 1) % s, K=(c - 1) % s)


print(primepar.verify(NoRealignment))

# %% [markdown]
# The gradient of `W` ends on another device than the block of `W` that it belongs to. So the
# next step would multiply other weights. Completion is *not asked*: a sum has no meaning while
# its terms may be of other data.

# %% [question]
# Which properties of `NoRealignment` are proved, though nobody could train with it?
#
# Hint: What does each of them read: one phase, or what comes after it?
#
# Answer: Coverage, placement and deadlock-freedom. All of them are about one phase; alignment is
# about what the next one needs.
proved = [
    known.name for known in primepar.verify(NoRealignment).properties if known.verdict == "proved"
]
assert proved == ["coverage", "placement", "deadlock-freedom"]

# %% [markdown]
# Why believe *proved*? [Tutorial 14](14_a_certificate.md) reads what is written down of a proof,
# and checks it by hand.
#
# ## From the map to the program
#
# A map defines what should be where. A *program* defines in which order each device sends,
# receives, multiplies and waits, and new things can go wrong there. The library lowers a map to a
# program that is right; programs written by hand, or by another tool, can be verified as well.
# Here is a ring of three devices in which each sends a block to the right and receives one from
# the left, the two calls in this order:


# %%
def ring(n, order):
    """A ring of n devices; order(rank, send, receive) gives the two calls of a device in order."""
    programs = [
        tuple(order(rank, Send((rank + 1) % n, f"x{rank}"),
                    Recv((rank - 1) % n, f"x{(rank - 1) % n}")))
        for rank in range(n)
    ]  # fmt: skip
    return Program("primepar-program", 1, n, tuple(programs))


send_first = ring(3, lambda rank, send, receive: (send, receive))
print(primepar.show(send_first).save(OUT / "04_send_first.svg"))

# %%
print(primepar.verify(send_first))

# %% [markdown]
# `send` returns when the other side has received: that is the strictest reading of it, called
# *rendezvous*. So all three wait for the next one to receive, and the next one is sending. Many
# libraries buffer small messages, and with these the program happens to run, until the messages
# grow. The prover can be asked the weaker question too, and reports what the answer assumes:

# %%
print(primepar.verify(send_first, buffered=True))

# %% [markdown]
# ## A counterexample can be replayed
#
# The prover and the emulator share no code beyond the program itself. If the prover reports that a
# schedule stops, it should stop in the emulator as well, and at the same place:

# %%
try:
    emulate(send_first, [{f"x{rank}": [float(rank)]} for rank in range(3)])
except EmulationError as error:
    print(fill(f"{type(error).__name__}: {error}", 96))

# %% [question]
# In the ring of three, device 0 alone receives first. Does it end?
#
# Hint: Who can go on at once, and whom does that release?
#
# Answer: Yes. Device 2 sends to device 0, which receives; then device 2 receives from device 1,
# and so on. One device is enough to break the cycle.
one = ring(3, lambda rank, send, receive: (receive, send) if rank == 0 else (send, receive))
assert primepar.verify(one).verdict == "proved"

# %% [markdown]
# ## Too early
#
# The last break is in the double buffering. In the program of `P2x2` we move the waits and the
# frees to the end, as somebody might to make it faster. On most runs the blocks will have arrived
# all the same.

# %%
program = primepar.lower("P2x2", phase="forward")


def hasty(instructions):
    late = [node for node in instructions if isinstance(node, Wait | Free)]
    others = [node for node in instructions if not isinstance(node, Wait | Free)]
    return (*others, *late)


early = replace(program, programs=tuple(hasty(rank) for rank in program.programs))
print(primepar.verify(early))

# %% [markdown]
# ## What a proof does not cover
#
# The prover knows blocks by name and sums by their terms: it works with exact sums of products,
# not with floating-point numbers, so it covers no rounding. It trusts the communication
# library: messages between two devices arrive in the order in which they were sent,
# and tags select nothing, as in NCCL. And it proves the schedule, not the torch code that runs
# it; for that there are the tests that run all three readers on the same programs.
#
# For comparison, a test is one run on one mesh. Both are cheap here, so do both:

# %%
for side in (2, 3, 4, 5):
    print(f"PrimePar, side {side}: equal to one device:", primepar.check(PrimePar, side=side).equal)

# %% [markdown]
# ## Your turn
#
# Order two calls so that the ring of blocking sends ends, and is quick. Write your answer into
# `tutorials/exercises/04_fix_the_ring.py`, and run it:
#
# ```sh
# python tutorials/exercises/04_fix_the_ring.py
# primepar exercise 4
# ```
#
# The second command shows a schedule that is right on nearly all runs. Find the block that is
# read too early.
