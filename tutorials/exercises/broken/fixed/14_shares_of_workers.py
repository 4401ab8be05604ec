def piece(worker, workers, tiles, iterations):
    """Return (begin, end) of a worker on the line of tiles * iterations; end is not its own."""
    share = -(-tiles * iterations // workers)
    end = tiles * iterations
    return min(worker * share, end), min((worker + 1) * share, end)


def owner(tile, workers, tiles, iterations):
    """Return the worker that owns a tile."""
    return tile * iterations // -(-tiles * iterations // workers)
