def piece(worker, workers, tiles, iterations):
    """Return (begin, end) of a worker on the line of tiles * iterations; end is not its own."""
    return worker * iterations, (worker + 1) * iterations


def owner(tile, workers, tiles, iterations):
    """Return the worker that owns a tile."""
    return tile
