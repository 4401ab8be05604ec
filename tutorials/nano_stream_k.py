"""Stream-K: one matrix product divided among the workers of a GPU, in one file of NumPy.

A GPU computes O = I W in tiles of O. A tile needs `iterations` small products along the summed dim.
Whole tiles fill the workers in waves, and in the last wave most may have nothing to do. Stream-K
(Osama et al., PPoPP 2023) puts the iterations of all tiles on a line. Every worker takes an equal
piece of it, wherever a tile begins or ends:

    tiles         |    0    |    1    |    2    |      3 tiles of 4 iterations
    workers       |  0  |  1  |  2  |  3  |            4 workers of 3 iterations

The worker that has the first iteration of a tile owns the tile. The others store a partial sum and
raise a flag; the owner waits for the flags and adds the sums. Three questions, one after another:

    who does what?      the pieces, drawn, and how busy the workers are
    is it right?        the product equals that of one worker, on integers and with ==
    does it end?        with any number of workers that run at a time, and in any order of them

Run it with `python tutorials/nano_stream_k.py`.
"""

from itertools import permutations, product

import numpy as np

# ------------------------------------------------------------------------------- Who does what?


def piece(worker, workers, tiles, iterations):
    """Begin and end of a worker on the line: the share is rounded up, so the last has less."""
    total = tiles * iterations
    share = -(-total // workers)
    return min(worker * share, total), min((worker + 1) * share, total)


def parts(worker, workers, tiles, iterations):
    """The piece of a worker, cut where tiles end: (tile, first iteration, iteration after it)."""
    begin, end = piece(worker, workers, tiles, iterations)
    while begin < end:
        tile, first = divmod(begin, iterations)
        last = min(iterations, first + end - begin)
        yield tile, first, last
        begin += last - first


def helpers(tile, workers, tiles, iterations):
    """The workers that touch a tile; the first of them owns it."""
    return [worker for worker in range(workers)
            if tile in (part[0] for part in parts(worker, workers, tiles, iterations))]  # fmt: skip


def draw(workers, tiles, iterations):
    """A row for each worker; a letter is an iteration of a tile, large where the worker owns it."""
    for worker in range(workers):
        cells = ""
        for tile, first, last in parts(worker, workers, tiles, iterations):
            owns = helpers(tile, workers, tiles, iterations)[0] == worker
            letter = "abcdefghijklmnopqrstuvwxyz"[tile]
            cells += (letter.upper() if owns else letter) * (last - first)
        print(f"  worker {worker}  {cells}")


def utilisation(workers, tiles, iterations):
    """Share of the time in which workers are busy: by whole tiles, and by Stream-K."""
    total = tiles * iterations
    waves, share = -(-tiles // workers), -(-total // workers)
    return total / (workers * waves * iterations), total / (workers * share)


# -------------------------------------------------------------------------------- Is it right?


class Gpu:
    """The memory that workers share: tiles of O, and for each worker a partial sum and a flag."""

    def __init__(self, I, W, tile_m, tile_n, tile_k, workers):
        self.I, self.W, self.workers = I, W, workers
        self.sizes = tile_m, tile_n, tile_k
        self.rows, self.columns = I.shape[0] // tile_m, W.shape[1] // tile_k
        self.tiles, self.iterations = self.rows * self.columns, I.shape[1] // tile_n
        self.O = np.zeros((I.shape[0], W.shape[1]), I.dtype)
        self.partial, self.flags = {}, set()

    def multiply(self, tile, first, last):
        """Sum the iterations first to last of a tile."""
        m, n, k = self.sizes
        row, column = divmod(tile, self.columns)
        rows, columns = slice(row * m, (row + 1) * m), slice(column * k, (column + 1) * k)
        summed = slice(first * n, last * n)
        return self.I[rows, summed] @ self.W[summed, columns]

    def run(self, worker):
        """All that a worker does; it yields the number of another one while it waits for that."""
        work = self.workers, self.tiles, self.iterations
        for tile, first, last in parts(worker, *work):
            total = self.multiply(tile, first, last)
            owner, *others = helpers(tile, *work)
            if worker != owner:
                self.partial[worker] = total
                self.flags.add(worker)
                continue
            for other in others:
                while other not in self.flags:
                    yield other
                total = total + self.partial[other]
            m, _, k = self.sizes
            row, column = divmod(tile, self.columns)
            self.O[row * m : (row + 1) * m, column * k : (column + 1) * k] = total


def stream_k(I, W, tile, workers, order, at_a_time):
    """The product, by workers that start in `order`, `at_a_time` of them; None if it hangs."""
    gpu = Gpu(I, W, *tile, workers)
    waiting, running = [gpu.run(worker) for worker in order], []
    while waiting or running:
        while waiting and len(running) < at_a_time:
            running.append(waiting.pop(0))
        before = len(running), len(gpu.flags)
        running = [worker for worker in running if next(worker, None) is not None]
        if running and (len(running), len(gpu.flags)) == before:
            return None  # all that run wait for workers that cannot start
    return gpu.O


def compare(I, W, tile, workers):
    """Compare with one worker, on integers and with ==."""
    got = stream_k(I, W, tile, workers, range(workers), workers)
    return got is not None and np.array_equal(got, I @ W)


# --------------------------------------------------------------------------------- Does it end?


def ends(workers, tiles, iterations, order, at_a_time):
    """Whether the workers end if they start in `order`, `at_a_time` of them."""
    I, W = np.ones((tiles, iterations), int), np.ones((iterations, 1), int)
    return stream_k(I, W, (1, 1, 1), workers, order, at_a_time) is not None


def main():
    print("3 tiles of 4 iterations, whole tiles on 4 workers:")
    for worker, row in enumerate(["AAAA", "BBBB", "CCCC", "...."]):
        print(f"  worker {worker}  {row}")
    print("the same by Stream-K; a small letter is a partial sum for the owner of the tile:")
    draw(4, 3, 4)

    print("\nbusy, by whole tiles and by Stream-K, 64 iterations to a tile:")
    for workers, tiles in ((4, 9), (108, 108), (108, 109), (108, 256)):
        whole, divided = utilisation(workers, tiles, 64)
        print(f"  {tiles:3} tiles on {workers:3} workers  {whole:6.1%}  {divided:6.1%}")

    rng = np.random.default_rng(0)
    I, W = rng.integers(-9, 10, (12, 20)), rng.integers(-9, 10, (20, 9))
    equal = [compare(I, W, (4, 4, 3), workers) for workers in range(1, 50)]
    print(f"\n9 tiles of 5 iterations, 1 to 49 workers: {sum(equal)} of {len(equal)} equal")

    sizes = list(product(range(1, 5), range(1, 4), range(1, 4)))
    for name, order in (
        ("the first worker first", range),
        ("the last first", lambda g: range(g)[::-1]),
    ):
        ended = [ends(*size, order(size[0]), 1) for size in sizes]
        print(f"one worker at a time, {name}: {sum(ended)} of {len(sizes)} sizes end")
    orders = [ends(4, 3, 4, order, 4) for order in permutations(range(4))]
    print(f"all four at a time: {sum(orders)} of {len(orders)} orders end")


if __name__ == "__main__":
    main()
