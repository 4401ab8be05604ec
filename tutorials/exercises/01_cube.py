# %% [markdown]
# ## Exercise: the cube
#
# Eight devices stand at the corners of a cube, with the axes `i`, `j` and `l`, two devices
# along each. A product cut in two along `M`, `N` and `K` has eight sub-operators. Write the map
# that gives each device exactly one, in one step.
#
# Which of the three products will then need an all-reduce? Guess before you run it.

# %%
from primepar import Primitive
from primepar.api.tutorial_answers import errors_in_one_line, refuse
from primepar.reference import check
from primepar.schedule import Linear, Movement, Sequence

errors_in_one_line(__file__)


# USER CODE BEGIN
class Cube(Primitive):
    axes = ("i", "j", "l")

    def steps(self, s):
        return 1

    def forward(self, i, j, l, t, s):
        return dict(M=i)


# USER CODE END


# %% The check
for side in (2, 3):
    cube = Sequence.of(Cube(), side)
    if cube.grid != {"M": side, "N": side, "K": side}:
        refuse(f"with side {side} the dims are cut into {cube.grid}, not {side} slices each")
    for rank in range(cube.ranks):
        slices = cube.slices("forward", rank, 0)
        if any(len(own) > 1 for own in slices.values()):
            refuse(f"{cube.place(rank)} has more than one sub-operator: {slices}")
    work = {tuple(cube.slices("forward", rank, 0).items()) for rank in range(cube.ranks)}
    if len(work) < cube.ranks:
        refuse(f"{cube.ranks} devices do only {len(work)} different sub-operators")
    if not check(cube, Linear(M=6, N=6, K=6)).equal:
        refuse("the devices do not compute what one device computes")

print("Right. Summed over devices at the end:")
for phase, moved in Movement(Sequence.of(Cube(), 2)).phases.items():
    print(f"  {phase}: {len(moved.reductions)} blocks of {moved.reductions[0].tensor}")
