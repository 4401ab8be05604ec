# %% [markdown]
# # Time as three things: steps, stages, periods
#
# Published schedules put time on three scales. In PrimePar a step is one block product. In a
# pipeline it is one micro-batch that passes one stage. In Local SGD it is a whole optimizer step,
# with an average after several of them. All three are programs here. So the same code draws them,
# runs them, proves them, and refutes them when they are wrong. Time goes to the right:

# %% Set-up: imports, and functions that run a program, count, and ask
from pathlib import Path

from msgspec.structs import replace

import primepar
from primepar.partition import METHODS
from primepar.reference import emulate
from primepar.reference.check import memories
from primepar.schedule.program import AllReduce, Compute

OUT = Path("out/tutorials")
OUT.mkdir(parents=True, exist_ok=True)


def changed(program, rank, node_of):
    """The program with each instruction of one rank replaced by node_of(instruction)."""
    instructions = tuple(map(node_of, program.programs[rank]))
    ranks = list(program.programs)
    ranks[rank] = tuple(node for node in instructions if node is not None)
    return replace(program, programs=tuple(ranks))


def answers(report):
    """Verdicts in one line, and what is refuted with its counterexample."""
    print(report.target, "-", ", ".join(f"{p.name} {p.verdict}" for p in report.properties))
    for prop in report.properties:
        if prop.verdict == "refuted":
            print(f"\n{prop.name}: {prop.counterexample}")


# %%
three = primepar.lower("P3x3", shape=(6, 6, 6))
steps = primepar.show(emulate(three, memories(three)))
steps.save(OUT / "10_steps.svg")

# %% [markdown]
# ## Steps
