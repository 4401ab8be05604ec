def roots(r, c, t):
    """Return the devices from which (r, c) receives at step t: of its block of I, of that of W."""
    return (r, 0), (0, c)
