"""Exercise 3: the mirror image, r, c, t and every slice index with the other sign."""

from primepar import Primitive, where


# USER CODE BEGIN
class Mirror(Primitive):
    axes = ("r", "c")

    def forward(self, r, c, t, s):
        return dict(M=r, N=(r + c - t) % s, K=c)

    def backward(self, r, c, t, s):
        return dict(M=r, N=(r + c + 1) % s, K=(c - t) % s)

    def gradient(self, r, c, t, s):
        last = where(t == s - 1, 1, 0)
        return dict(M=(r - t) % s, N=(r + c + 1 - last) % s, K=(c + 1 - last) % s)


# USER CODE END
