# %% [markdown]
# # Prove it, and break it
#
# Below is a schedule that is wrong. It is PrimePar's forward map with one change: the devices
# walk along `N` in steps of two. See what it does on a mesh of side 3, and then on one of side
# 2.

# %% Set-up: imports and a function that draws
from pathlib import Path
from textwrap import fill

from msgspec.structs import replace

from primepar import Primitive, where
from primepar.errors import EmulationError
from primepar.partition import PrimePar, parse_sequence
from primepar.pictures.grid_svg import grid_svg
from primepar.pictures.space_time import grid_text, space_time
from primepar.reference import check, emulate
from primepar.schedule import Program, Sequence, lower
from primepar.schedule.program import Free, Recv, Send, Wait
from primepar.verify import verify_primitive, verify_program

OUT = Path("out/tutorials")
OUT.mkdir(parents=True, exist_ok=True)


def draw(program, title, name, steps=None):
    grid = space_time(program, title, steps=steps)
    (OUT / f"{name}.svg").write_text(grid_svg(grid), encoding="utf-8")
    print(grid_text(grid))


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
draw(lower(sequence, phases=("forward",)), "TwoAtATime on four devices", "04_two_at_a_time", 2)

# %% [markdown]
# On three devices in a row, steps of two visit every slice. On two they stay where they are:
# one slice is multiplied twice and the other never. What does a test say?

# %%
for side in (1, 3, 5, 2):
    report = check(Sequence.of(TwoAtATime(), side))
    print(fill(f"side {side}: {report.message or 'equal to one device'}", 96))

# %% [markdown]
# Somebody whose mesh has an odd side will find nothing wrong with it.
#
# ## A proof for every side
#
# The prover calls the *same* map with symbols for `r`, `c`, `t` and `s`, and asks Z3 whether
# anything can go wrong for any side at all. First PrimePar's primitive:


# %%
def ask(report):
    print(f"{report.target}: {report.verdict}")
    for result in report.properties:
        print(f"  {result.verdict:8} {result.name}")
        for line in (result.counterexample or "").splitlines():
            print(fill(line, 96, initial_indent="           ", subsequent_indent="             "))


ask(verify_primitive(PrimePar(), "PrimePar"))

# %% [markdown]
# What do these properties say?
#
# - **coverage**: every sub-operator of each phase is done once, and not twice.
# - **placement**: whenever a device multiplies, both blocks are there, and they hold the right
#   data.
# - **completion**: every block of an output ends fully summed, once, where it should.
# - **alignment**: what is kept for a later phase lies where that phase begins; the weights and
#   their gradients end where the next forward starts.
# - **deadlock-freedom**: nobody waits for ever, every message has its partner.
# - **races**: no block is read before it has arrived or overwritten while it is being sent.
#   This one is asked of programs.
#
# Now the wrong one. The prover looks for the smallest mesh on which it fails:

# %%
ask(verify_primitive(TwoAtATime(), "TwoAtATime"))

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


ask(verify_primitive(NoRealignment(), "NoRealignment"))

# %% [markdown]
# The gradient of `W` ends on another device than the block of `W` that it belongs to. So the
# next step would multiply other weights. Completion is *not asked*: a sum has no meaning while
# its terms may be of other data.
#
# ## From the map to the program
#
# A map says what should be where. A *program* says in which order each device sends, receives,
# multiplies and waits, and new things can go wrong there. The library lowers a map to a program
# that is right; programs written by hand, or by another tool, can be verified as well. Here is
# a ring of three devices in which each sends a block to the right and receives one from the
# left, the two calls in this order:


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
draw(send_first, "send, then receive", "04_send_first")

# %%
ask(verify_program(send_first, "send first"))

# %% [markdown]
# `send` returns when the other side has received: that is the strictest reading of it, called
# *rendezvous*. So all three wait for the next one to receive, and the next one is sending. Many
# libraries buffer small messages, and with these the program happens to run, until the messages
# grow. The prover can be asked the weaker question too, and says what the answer leans on:

# %%
report = verify_program(send_first, "send first, buffered", buffered=True)
ask(report)
print(fill(report["deadlock-freedom"].reason.splitlines()[0], 96))

# %% [markdown]
# ## A counterexample can be replayed
#
# The prover and the emulator share no code beyond the program itself. If the prover says that a
# schedule stops, it should stop in the emulator as well, and at the same place:

# %%
try:
    emulate(send_first, [{f"x{rank}": [float(rank)]} for rank in range(3)])
except EmulationError as error:
    print(fill(f"{type(error).__name__}: {error}", 96))

# %% [markdown]
# ## Too early
#
# The last break is in the double buffering. In the program of `P2x2` we put the waits, and
# whatever is given back, to the end, as somebody might who wants it to be faster. On most runs
# the blocks will have arrived all the same.

# %%
program = lower(parse_sequence("P2x2"), phases=("forward",))


def hasty(instructions):
    late = [node for node in instructions if isinstance(node, Wait | Free)]
    others = [node for node in instructions if not isinstance(node, Wait | Free)]
    return (*others, *late)


early = replace(program, programs=tuple(hasty(rank) for rank in program.programs))
ask(verify_program(early, "waits too late"))

# %% [markdown]
# ## What a proof does not say
#
# The prover knows blocks by name and sums by their terms: it works with exact sums of products,
# not with floating-point numbers, so it says nothing about rounding. It takes the communication
# library at its word: messages between two devices arrive in the order in which they were sent,
# and tags select nothing, as in NCCL. And it proves the schedule, not the torch code that runs
# it; for that there are the tests that run all three readers on the same programs.
#
# For comparison, a test is one run on one mesh. Both are cheap here, so do both:

# %%
for side in (2, 3, 4, 5):
    print(
        f"PrimePar, side {side}: equal to one device:", check(Sequence.of(PrimePar(), side)).equal
    )
