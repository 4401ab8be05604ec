"""Exercise 1: one axis for each dim. The 3D method starts from this map."""

from primepar import Primitive


# USER CODE BEGIN
class Cube(Primitive):
    axes = ("i", "j", "l")

    def steps(self, s):
        return 1

    def forward(self, i, j, l, t, s):
        return dict(M=i, N=l, K=j)


# USER CODE END
