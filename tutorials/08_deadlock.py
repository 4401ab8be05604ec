# %% [markdown]
# # Who waits for whom
#
# A program that hangs reports nothing. No error, no line, no number: every device is in a call, and
# waits for another one that waits as well. This tutorial makes programs hang, in the ways in which
# they do in practice, and lets the checker report who waits for whom.

# %% Set-up: imports, and a function that asks
from itertools import product
from pathlib import Path

import z3

import primepar
from primepar.schedule import Program
from primepar.schedule.program import AllReduce, Group, IRecv, ISend, Recv, Send, Wait
from primepar.verify import verify_program

OUT = Path("out/tutorials")
OUT.mkdir(parents=True, exist_ok=True)


def program(*ranks):
    return Program("primepar-program", 1, len(ranks), tuple(map(tuple, ranks)))


def ask(title, asked, buffered=False):
    print(f"{title}:", primepar.verify(asked, buffered=buffered)["deadlock-freedom"])


# %% [markdown]
# ## Head-on
#
# `send` returns when the other side has the block. That is called *rendezvous*. Two devices that
# both send first never get to receive:

# %%
head_on = program(
    [Send(1, "a"), Recv(1, "b")],
    [Send(0, "b"), Recv(0, "a")],
)
primepar.show(head_on).save(OUT / "08_head_on.svg")
ask("head-on", head_on)

# %% [markdown]
# That is the cycle: each line is a device, the call it hangs in, and the call of another device
# that would release it. Follow the lines and you come back to the first.
#
# ## It ran on my machine
#
# The sentence on buffered sends explains why such programs are written all the same. Many
# libraries copy a small block away and return from `send` at once. Under that the program ends,
# and `--buffered` on the command line asks exactly this. The answer states what it assumes:

# %%
ask("head-on, buffered", head_on, buffered=True)

# %% [markdown]
# How large is small? That depends on the library, the link and a setting somewhere. Then the model
# grows. So the strict question is the default.

# %% [question]
# Three devices: 0 sends to 1, 1 sends to 2, 2 sends to 0, and each of them receives afterwards.
# How many lines has the cycle?
#
# Hint: Follow: who waits for whom?
#
# Answer: Three. No two of them face each other, and still nobody goes on.
three = program(
    [Send(1, "a"), Recv(2, "c")], [Send(2, "b"), Recv(0, "a")], [Send(0, "c"), Recv(1, "b")]
)
assert "ranks 0, 1 and 2 wait" in primepar.verify(three)["deadlock-freedom"].counterexample

# %% [markdown]
# ## Three ways out
#
# One of the two receives first; or both calls start together, in a group; or both are posted, and
# waited for afterwards.

# %%
ask("one receives first", program(head_on.programs[0], reversed(head_on.programs[1])))
ask("in groups", program(*([Group(calls)] for calls in head_on.programs)))


def posted(peer, out, into):
    return [ISend(peer, out, request="out"), IRecv(peer, into, request="into"),
            Wait("out"), Wait("into")]  # fmt: skip


ask("posted", program(posted(1, "a", "b"), posted(0, "b", "a")))

# %% [markdown]
# ## The same question for Z3
#
# How can one be sure that a program has a cycle, or none? Z3 solves systems of inequalities, so the
# question is written as one. Each call gets a number, the time at which it returns. A line then
# states which call returns before which. The first two are the lists: a device makes its calls in
# order. The other two are the messages. A send returns when the other device has come to its
# receive, so after the call before that; and so does a receive:


# %%
def returns(lines):
    """The calls in an order that satisfies all lines, or the lines of a contradiction."""
    solver = z3.Solver()
    for reason, earlier, later in lines:
        solver.assert_and_track(earlier < later, reason)
    if solver.check() == z3.unsat:
        return sorted(map(str, solver.unsat_core()))
    times = solver.model()
    calls = {call for _, *pair in lines for call in pair}
    return sorted(map(str, calls), key=lambda call: (times[z3.Int(call)].as_long(), call))


send_a, recv_b, send_b, recv_a = z3.Ints("send_a recv_b send_b recv_a")
lists = [("the list of device 0", send_a, recv_b), ("the list of device 1", send_b, recv_a)]
messages_meet = [
    ("a is received after the send of b", send_b, send_a),
    ("b is received after the send of a", send_a, send_b),
]
print("head-on:", returns([*lists, *messages_meet]))

# %% [markdown]
# No times satisfy these lines. The ones that are printed are enough for a contradiction, Z3's
# *unsatisfiable core*: each of the two comes before the other. That is the cycle again.
#
# Let device 1 receive first. Its list is turned round. Nothing comes before the send and the
# receive of `a` now, and both ends of `b` come after `a`. So there are times, and an order in which
# the calls return:

# %%
turned = [
    ("the list of device 0", send_a, recv_b),
    ("the list of device 1", recv_a, send_b),
    ("b is received after the send of a", send_a, send_b),
    ("b is sent after a is received", recv_a, recv_b),
]
print("one receives first:", returns(turned))

# %% [markdown]
# The file `verify/in_z3.py` writes these lines for any program, and `primepar verify PROGRAM
# --solver z3` asks them. Without the option a linear search looks for the order, as Z3 needs long
# for many thousands of calls. Neither is trusted: the same judge checks what they answer, an order
# or a cycle. Both answer alike:

# %%
for solver in ("search", "z3"):
    print(f"{solver}:", verify_program(head_on, solver=solver)["deadlock-freedom"].verdict)

# %% [markdown]
# ## Rings
#
# In a ring of `n` devices, each sending to the next, the cycle has `n` lines. The first of the
# three ways out becomes: the even ones send first, the odd ones receive first. With an odd `n` two
# even ones are neighbours, and it still ends, as one of the two has an odd one on its other side.


# %%
def ring(n, sends_first):
    ranks = []
    for rank in range(n):
        left = (rank - 1) % n
        calls = [Send((rank + 1) % n, f"x{rank}"), Recv(left, f"x{left}")]
        ranks.append(calls if sends_first(rank) else calls[::-1])
    return program(*ranks)


ask("all send first", ring(3, lambda rank: True))
for n in (4, 5):
    ask(f"odd and even, {n} devices", ring(n, lambda rank: rank % 2 == 0))

# %% [markdown]
# ## Collectives
#
# A collective returns when all of its group have called it. Four devices in a square sum along
# rows and along columns. If every device takes the two in the same order, all is well. If two of
# them think that the other sum is more urgent:


# %%
def square(rows_first, posted=False, apart=True):
    ranks = []
    for rank in range(4):
        r, c = divmod(rank, 2)
        sums = [
            ("row", (2 * r, 2 * r + 1), f"O{r}"),
            ("column", (c, c + 2), f"dW{c}"),
        ]
        calls = [
            AllReduce(group, block=block, communicator=name if apart else "world",
                      request=name if posted else None)
            for name, group, block in sums
        ]  # fmt: skip
        calls = calls if rank in rows_first else calls[::-1]
        ranks.append([*calls, *(Wait(name) for name, *_ in sums if posted)])
    return program(*ranks)


ask("one order", square(rows_first=(0, 1, 2, 3)))
ask("two orders", square(rows_first=(0, 3)))

# %% [markdown]
# No two of them disagree about a sum: the cycle goes through all four. And nothing is buffered
# here that could save it, so the strict and the weak question have the same answer. One device
# out of order would not be enough, by the way:

# %%
ask("three against one", square(rows_first=(0, 1, 2)))

# %% [question]
# Of the 16 ways in which four devices choose a first sum, how many hang?
#
# Hint: Rows first or columns first for each of four. Which cycles exist?
#
# Answer: Two: those in which each device differs from both of its neighbours in the square.
hang = [
    first
    for first in product((False, True), repeat=4)
    if primepar.verify(square([rank for rank in range(4) if first[rank]])).verdict == "refuted"
]
assert hang == [(False, True, True, False), (True, False, False, True)]

# %% [markdown]
# ## Posted collectives, and communicators
#
# A collective may be posted too, with a request, and waited for later. Two that are in flight
# together have to be on two communicators, or be called in the same order by all members: within
# one communicator and group, the first call of one member meets the first call of another.

# %%
ask("posted, in two orders", square(rows_first=(0, 3), posted=True))


def two_sums(apart, posted):
    """Two devices add up a and b; device 1 takes them the other way round."""
    calls = [
        AllReduce((0, 1), block=block, communicator=block if apart else "world",
                  request=block if posted else None)
        for block in "ab"
    ]  # fmt: skip
    waits = [Wait("a"), Wait("b")] if posted else []
    return program([*calls, *waits], [*calls[::-1], *waits])


ask("blocking, two communicators", two_sums(apart=True, posted=False))
ask("posted, two communicators", two_sums(apart=True, posted=True))
ask("posted, one communicator", two_sums(apart=False, posted=True))

# %% [markdown]
# On two communicators, posting lets both sums meet. With NCCL be careful even so: the kernels of
# two communicators may wait for room on the same device. Keep one order there.
#
# The last line is worth a thought: proved, as nothing hangs. But on one communicator the first
# call of one device meets the first call of the other, and `a` is added to `b`. That is no matter
# of deadlock, but of what the blocks hold. Another property finds it, in programs that define
# what their blocks mean.
#
# ## Tags
#
# A program may hope that tags pick out the message. NCCL has none; messages match in the order in
# which they were posted. A tag is a claim here, which is checked:

# %%
ask("tags", program([Send(1, "a", tag=1), Send(1, "b", tag=2)],
                    [Recv(0, "b", tag=2), Recv(0, "a", tag=1)]))  # fmt: skip

# %% [markdown]
# ## A pipeline
#
# A pipeline cuts a model by its layers: each device, a *stage*, has some of them. The batch is cut
# into micro-batches, so that a stage works on one while the next stage works on the one before.
# Activations go down the stages and gradients come up.
#
# A stage has to choose an order of its forwards and backwards. In *1F1B*, one forward one backward,
# the last stage runs the backward of a micro-batch right after its forward. The stage before is one
# forward ahead of it, and the one before that two. Then each alternates. Tutorial 10 counts what
# this order saves and what it costs; here it is only an order of messages. `F2` is the forward of
# micro-batch 2, `B2` its backward:


# %%
def turns(stage, stages, batches):
    """The forwards and backwards of a stage, in the order of 1F1B."""
    ahead = min(stages - 1 - stage, batches)
    order = [("forward", i) for i in range(ahead)]
    for i in range(batches):
        order += [("forward", i + ahead)] if i + ahead < batches else []
        order.append(("backward", i))
    return order


for stage in range(3):
    print(f"stage {stage}:", *(f"{turn[0].upper()}{i}" for turn, i in turns(stage, 3, 4)))

# %% [markdown]
# The last stage has one forward before its first backward, the first stage three. Before a
# forward a stage receives from the stage above, after it sends to the one below; in a backward the
# other way round:


# %%
def messages(stage, stages, batches):
    """All messages of a stage, in the order of 1F1B."""
    calls = []
    for turn, i in turns(stage, stages, batches):
        before, after = (stage - 1, stage + 1) if turn == "forward" else (stage + 1, stage - 1)
        x = "x" if turn == "forward" else "dx"
        calls += [Recv(before, f"{x}{i}.{stage}")] if 0 <= before < stages else []
        calls += [Send(after, f"{x}{i}.{after}")] if 0 <= after < stages else []
    return calls


pipeline = program(*(messages(stage, 2, 3) for stage in range(2)))
primepar.show(pipeline).save(OUT / "08_pipeline.svg")
ask("1F1B", pipeline)

# %% [markdown]
# Each stage does what it must in the right order, and yet they meet head-on: stage 0 sends the
# next activation down, while stage 1 sends the last gradient up. It is the first program of this
# page again. Stage 0 can receive the gradient only after its send; stage 1 can receive the
# activation only after its own.
#
# If one of them received first, it would end, but one direction would always wait for the other.
# The two messages that face each other can also start together. That is the exercise.

# %% [question]
# With four stages and one micro-batch, does 1F1B hang too?
#
# Hint: With one micro-batch, what is there to send down while a gradient comes up?
#
# Answer: No. A stage sends the only activation before any gradient exists. It takes two
# micro-batches to meet head-on.
one, two = (
    primepar.verify(program(*(messages(stage, 4, count) for stage in range(4)))) for count in (1, 2)
)
assert (one.verdict, two.verdict) == ("proved", "refuted")

# %% [markdown]
# ## Your turn
#
# Let the pipeline run with any number of stages and micro-batches. Write your answer into
# `tutorials/exercises/08_pipeline.py`, and run it:
#
# ```sh
# python tutorials/exercises/08_pipeline.py
# primepar exercise 8
# primepar exercise 9
# ```
#
# Three devices in a ring hang in the one, four in a square in the other. `primepar exercise` lists
# all twelve broken schedules; the page that moves has them as puzzles.
