"""A matrix product partitioned over devices and time: the whole idea of primepar in one file.

Training a linear operator takes three products: forward O = I W, backward dI = dO W^T (the input
gradient) and gradient dW = I^T dO (the weight gradient). Cut the dims M (tokens), N (input hidden)
and K (output hidden) into s slices each. Then every product has s * s * s block products, for s * s
devices in s steps. A *map* assigns them: at step t, device (r, c) computes the block product
(M, N, K). The map is written once, below, and read three times:

    by integers   which device holds which block, and what moves between two steps
    by NumPy      s * s emulated devices do a training step, exactly equal to one device
    by Z3         the map is right on every mesh, for all s >= 1; a wrong one on which mesh it fails

Run it with `python tutorials/nano.py`. The library adds other methods, meshes and collectives,
programs with deadlocks and races, whole transformers, and torch: continue with tutorial 1.
"""

import numpy as np
import z3

# ------------------------------------------------------------------------------------------ The map


class PrimePar:
    """Wang et al., ASPLOS 2024, equations 4 to 6: no block is held twice, and no all-reduce."""

    def forward(self, r, c, t, s):
        return dict(M=r, N=(r + c + t) % s, K=c)

    def backward(self, r, c, t, s):
        return dict(M=r, N=(r + c - 1) % s, K=(c + t) % s)

    def gradient(self, r, c, t, s):
        last = where(t == s - 1, 1, 0)
        return dict(M=(r + t) % s, N=(r + c - 1 + last) % s, K=(c - 1 + last) % s)


class Skipping(PrimePar):
    """Wrong: forward walks along N in steps of two, which visits every slice only if s is odd."""

    def forward(self, r, c, t, s):
        return dict(M=r, N=(r + c + 2 * t) % s, K=c)


class Careless(PrimePar):
    """Wrong: every block product is computed once, but the last step does not realign dW with W."""

    def gradient(self, r, c, t, s):
        return dict(M=(r + t) % s, N=(r + c - 1) % s, K=(c - 1) % s)


# Phase: the tensor it sums into, the two that it reads, and what a device computes with them.
PRODUCTS = {
    "forward": ("O", "I", "W", lambda I, W: I @ W),
    "backward": ("dI", "dO", "W", lambda dO, W: dO @ W.swapaxes(-1, -2)),
    "gradient": ("dW", "I", "dO", lambda I, dO: I.swapaxes(-1, -2) @ dO),
}
DIMS = {"I": "MN", "dI": "MN", "W": "NK", "dW": "NK", "O": "MK", "dO": "MK"}

# After a phase a tensor stays on its device, so the next phase that uses it must start there. W is
# the exception: after backward it makes one more hop, to where the next forward starts.
ALIGNED = (
    ("I", "forward", "I", "gradient"),
    ("W", "forward", "W", "backward"),
    ("O", "forward", "dO", "backward"),
    ("dO", "backward", "dO", "gradient"),
    ("dW", "gradient", "W", "forward"),
)


def where(condition, yes, no):
    """`yes` where the condition holds, else `no`: on integers, on arrays and on Z3 terms."""
    if z3.is_expr(condition):
        return Term(z3.If(condition, yes, no))
    return no + (yes - no) * condition


def block(method, tensor, phase, r, c, t, s):
    """Index of the block of a tensor that device (r, c) uses at step t of a phase."""
    slices = getattr(method, phase)(r, c, t, s)
    return tuple(slices[dim] for dim in DIMS[tensor])


# ---------------------------------------------------------------- Reader 1: integers, drawn as text


def devices(s):
    return [(r, c) for r in range(s) for c in range(s)]


def sends(method, tensor, phase, t, s):
    """Device -> the device that needs its block at the next step: derived, nobody wrote it down."""
    needs = {block(method, tensor, phase, r, c, t + 1, s): (r, c) for r, c in devices(s)}
    holds = {(r, c): block(method, tensor, phase, r, c, t, s) for r, c in devices(s)}
    return {here: needs[held] for here, held in holds.items() if needs[held] != here}


def draw(method, phase, s):
    """Print a row for each device and a column for each step: the product, and what is sent."""
    out, left, right, _ = PRODUCTS[phase]
    print(f"\n{phase} on {s} x {s} devices: {out} += {left} * {right}")
    for r, c in devices(s):
        cells = []
        for t in range(s):
            texts = {}
            for tensor in (out, left, right):
                texts[tensor] = "{}{}{}".format(tensor, *block(method, tensor, phase, r, c, t, s))
            cell = f"{texts[out]} += {texts[left]} * {texts[right]}"
            for tensor, text in texts.items() if t < s - 1 else ():
                if target := sends(method, tensor, phase, t, s).get((r, c)):
                    cell += f"  {text}->{target[0]}{target[1]}"
            cells.append(f"{cell:<49}")
        print(f"  device {r}{c}  {''.join(cells)}".rstrip())


# -------------------------------------------------------- Reader 2: NumPy, devices that move blocks


class Mesh:
    """The memories of s * s devices: `blocks[tensor][r, c]` is what device (r, c) holds."""

    def __init__(self, s):
        self.s, self.blocks, self.index, self.moved = s, {}, {}, 0
        self.r, self.c = np.indices((s, s))

    def scatter(self, tensor, dense, index):
        """Give every device its block of a dense matrix."""
        self.blocks[tensor], self.index[tensor] = cut(dense, self.s)[index], index

    def gather(self, tensor):
        """The dense matrix, put together from the blocks of all devices."""
        blocks = np.zeros_like(self.blocks[tensor])
        blocks[self.index[tensor]] = self.blocks[tensor]
        return np.block([list(row) for row in blocks])

    def bring(self, tensor, index):
        """Move the blocks of a tensor to the devices that need them: all that is ever sent."""
        holder = np.zeros((self.s, self.s), int)
        holder[self.index[tensor]] = np.arange(self.s**2).reshape(self.s, self.s)
        source_r, source_c = np.divmod(holder[index], self.s)
        self.moved += np.count_nonzero((source_r != self.r) | (source_c != self.c))
        self.blocks[tensor], self.index[tensor] = self.blocks[tensor][source_r, source_c], index

    def at(self, method, tensor, phase, t):
        """Block index of every device at once: the map, called on arrays."""
        found = block(method, tensor, phase, self.r, self.c, t, self.s)
        return tuple(np.broadcast_to(each, (self.s, self.s)) for each in found)


def cut(dense, s):
    """The s * s blocks of a matrix as an array [block row, block column, row, column]."""
    rows, columns = dense.shape
    return dense.reshape(s, rows // s, s, columns // s).swapaxes(1, 2).copy()


def train(method, s, I, W, dO):
    """One training step on s * s devices: O, dI, the updated weight, and how many blocks moved."""
    mesh = Mesh(s)
    mesh.scatter("I", I, mesh.at(method, "I", "forward", 0))
    mesh.scatter("W", W, mesh.at(method, "W", "forward", 0))
    for phase, (out, left, right, multiply) in PRODUCTS.items():
        if phase == "backward":  # the loss gives each device dO where it has O
            mesh.scatter("dO", dO, mesh.index["O"])
        shape = {"M": I.shape[0], "N": W.shape[0], "K": W.shape[1]}
        zeros = np.zeros([shape[dim] for dim in DIMS[out]], int)
        mesh.scatter(out, zeros, mesh.at(method, out, phase, 0))
        for t in range(s):
            for tensor in (out, left, right):
                mesh.bring(tensor, mesh.at(method, tensor, phase, t))
            mesh.blocks[out] += multiply(mesh.blocks[left], mesh.blocks[right])
    mesh.bring("W", mesh.at(method, "W", "forward", 0))  # the realigning hop
    mesh.blocks["W"] -= mesh.blocks["dW"]  # each device updates the block that it holds
    return mesh.gather("O"), mesh.gather("dI"), mesh.gather("W"), mesh.moved


def emulate(method, s):
    """Compare s * s emulated devices with one, on integers and with ==."""
    rng = np.random.default_rng(0)
    M, N, K = 2 * s, 3 * s, 4 * s
    I, W, dO = (rng.integers(-9, 10, shape) for shape in ((M, N), (N, K), (M, K)))
    *got, moved = train(method, s, I, W, dO)
    dense = I @ W, dO @ W.T, W - I.T @ dO
    equal = all(np.array_equal(a, b) for a, b in zip(got, dense, strict=True))
    print(f"  {s} x {s} devices: {'equal' if equal else 'NOT equal'} to one, {moved} blocks moved")
    return equal


# ------------------------------------------------------------------- Reader 3: Z3, for every s >= 1


class Term(z3.ArithRef):
    """A Z3 integer; `%` by the symbolic side s stays linear, which Z3 decides."""

    def __init__(self, term):
        super().__init__(term.ast, term.ctx)

    def __add__(self, other):
        return Term(super().__add__(other))

    def __radd__(self, other):
        return Term(super().__radd__(other))

    def __sub__(self, other):
        return Term(super().__sub__(other))

    def __rmul__(self, other):
        return Term(super().__rmul__(other))

    def __mod__(self, side):
        """Subtract s up to three times, or add it once: right from -s to 4 s.

        Beyond these the result is outside of 0 to s - 1, which `coverage` refutes.
        """
        found = self - 3 * side
        for multiple in (2, 1, 0, -1):
            found = z3.If(self < (multiple + 1) * side, self - multiple * side, found)
        return Term(found)


def symbols(*names):
    return [Term(z3.Int(name)) for name in names]


def inside(s, *values):
    return [z3.And(value >= 0, value < s) for value in values]


def same(left, right):
    return z3.And(*(a == b for a, b in zip(left, right, strict=True)))


def text_of(model, *story):
    """Words and terms as text, with the numbers that the terms have in a model."""
    parts = []
    for part in story:
        if isinstance(part, tuple):
            part = f"({', '.join(text_of(model, term) for term in part)})"
        elif z3.is_expr(part):
            part = str(model.eval(part, model_completion=True))
        parts.append(part)
    return " ".join(parts)


def properties(method):
    """Name of each property, a formula of the places where it fails, and what is wrong there."""
    s, r, c, t, r2, c2, t2 = symbols("s", "r", "c", "t", "r2", "c2", "t2")
    mesh = z3.And(s >= 1, *inside(s, r, c, t, r2, c2, t2))
    for phase, (*tensors, _) in PRODUCTS.items():
        done, again = (tuple(getattr(method, phase)(*place, s).values())
                       for place in ((r, c, t), (r2, c2, t2)))  # fmt: skip
        story = "device", (r, c), "computes block product", done, "at step", t
        yield f"range of {phase}", z3.And(mesh, z3.Not(z3.And(*inside(s, *done)))), story
        # There are as many places as block products: if no two places compute the same block
        # product, then each is computed exactly once.
        twice = z3.And(mesh, same(done, again), z3.Not(same((r, c, t), (r2, c2, t2))))
        yield f"coverage of {phase}", twice, (*story, "and", (r2, c2), "at step", t2)
        for tensor in tensors:
            # At each step a block is on one device, so what is needed next has exactly one sender.
            held, other = (block(method, tensor, phase, *at, t, s) for at in ((r, c), (r2, c2)))
            twice = z3.And(mesh, same(held, other), z3.Not(same((r, c), (r2, c2))))
            story = "devices", (r, c), "and", (r2, c2), "hold", tensor, held, "at step", t
            yield f"one holder of {tensor} in {phase}", twice, story
    for left, before, right, after in ALIGNED:
        held = block(method, left, before, r, c, s - 1, s)
        needed = block(method, right, after, r, c, Term(z3.IntVal(0)), s)
        story = "device", (r, c), "ends with", left, held, "and starts with", right, needed
        yield (f"alignment of {before} with {after}", z3.And(mesh, z3.Not(same(held, needed))),
               story)  # fmt: skip


def verify(method):
    """Prove all properties; print each that is refuted, with the smallest mesh."""
    verdicts = []
    for name, fails, story in properties(method):
        solver = z3.Solver()
        solver.add(fails)
        verdicts.append(solver.check() == z3.unsat)  # it fails nowhere: proved for every s >= 1
        if not verdicts[-1]:
            side = next(s for s in range(1, 100) if solver.check(z3.Int("s") == s) == z3.sat)
            print(f"  refuted at s = {side}: {name}: {text_of(solver.model(), *story)}")
    print(f"  {sum(verdicts)} of {len(verdicts)} properties proved for every s >= 1")
    return all(verdicts)


def main():
    for phase in PRODUCTS:
        draw(PrimePar(), phase, 2)
    for method in (PrimePar(), Skipping(), Careless()):
        print(f"\n{type(method).__name__}")
        for s in (1, 2, 3, 4):
            emulate(method, s)
        verify(method)


if __name__ == "__main__":
    main()
