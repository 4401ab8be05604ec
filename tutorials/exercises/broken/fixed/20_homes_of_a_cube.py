def home(tensor, i, j, l):
    """Return the resident slices of I, W or O on device (i, j, l); (a, b) is slice b of slice a."""
    homes = {"I": dict(M=(i, j), N=l), "W": dict(N=l, K=(j, i)), "O": dict(M=(i, l), K=j)}
    return homes[tensor]
