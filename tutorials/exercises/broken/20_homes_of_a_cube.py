def home(tensor, i, j, l):
    """Return the resident slices of I, W or O on device (i, j, l); (a, b) is slice b of slice a."""
    return {"I": dict(M=(i, j), N=l), "W": dict(N=l, K=j), "O": dict(M=i, K=j)}[tensor]
