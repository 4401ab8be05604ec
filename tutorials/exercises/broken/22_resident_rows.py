def home(tensor, d):
    """Return the resident slices of I, W or O on device d; a dim that is not named is not cut."""
    return {"I": {}, "W": dict(K=d), "O": dict(K=d)}[tensor]
