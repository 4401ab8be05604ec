"""One training step of a transformer on many devices, in one file of NumPy.

A layer of a transformer has two pairs of linear operators. Megatron-LM (Shoeybi et al., 2019) cuts
the first of a pair by columns and the second by rows:

    attention    q, k, v = x Wqkv      by columns: each device has some heads
                 x + heads Wo          by rows: the products are summed over devices, an all-reduce
    MLP          relu(x W1)            by columns: each device has some hidden features
                 x + hidden W2         by rows: summed, an all-reduce

Between the two of a pair nothing moves. Backward is the mirror image: the gradient of x is summed
where forward needed x whole. Everything else, norms, residuals, the loss, is done by every device
in the same way. Written once, below, for any number of devices; with one there is nothing to sum:

    forward and backward     by hand, each operator a function and its gradient
    devices                  lists of blocks; what moves goes through `all_reduce`, which counts
    is it right?             losses and weights of 1, 2 and 4 devices, and gradients by differences

Legend: T tokens, V vocabulary, C features, D features of a head, H heads of a device, F hidden.
Run it with `python tutorials/nano_step.py`.
"""

import numpy as np

T, V, C, HEADS, F, LAYERS, RATE = 8, 16, 16, 4, 32, 2, 0.1
D = C // HEADS
CUT = {"Wqkv": 2, "Wo": 0, "W1": 1, "W2": 0}
"""Weight -> the axis that is cut; Wqkv has axes C, the three of q, k and v, and heads."""

# ------------------------------------------------------------------------------------- Operators


def norm(x_TC):
    """RMS norm without a weight."""
    return x_TC / np.sqrt((x_TC**2).mean(-1, keepdims=True) + 1e-6)


def norm_gradient(x_TC, dy_TC):
    scale_T1 = 1 / np.sqrt((x_TC**2).mean(-1, keepdims=True) + 1e-6)
    return scale_T1 * dy_TC - x_TC * scale_T1**3 * (dy_TC * x_TC).mean(-1, keepdims=True)


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attention(q_HTD, k_HTD, v_HTD):
    """Causal attention of some heads, each for itself; also the weights, which backward needs."""
    scores_HTT = q_HTD @ k_HTD.swapaxes(1, 2) / np.sqrt(D)
    weights_HTT = softmax(np.where(np.tri(T, dtype=bool), scores_HTT, -np.inf))
    return weights_HTT @ v_HTD, weights_HTT


def attention_gradient(q_HTD, k_HTD, v_HTD, weights_HTT, do_HTD):
    dweights_HTT = do_HTD @ v_HTD.swapaxes(1, 2)
    inner_HT1 = (dweights_HTT * weights_HTT).sum(-1, keepdims=True)
    dscores_HTT = weights_HTT * (dweights_HTT - inner_HT1) / np.sqrt(D)
    dv_HTD = weights_HTT.swapaxes(1, 2) @ do_HTD
    return dscores_HTT @ k_HTD, dscores_HTT.swapaxes(1, 2) @ q_HTD, dv_HTD


def loss_of(logits_TV, targets_T):
    """Mean cross-entropy, and its gradient."""
    weights_TV, rows = softmax(logits_TV), np.arange(T)
    dlogits_TV = weights_TV.copy()
    dlogits_TV[rows, targets_T] -= 1
    return -np.log(weights_TV[rows, targets_T]).mean(), dlogits_TV / T


# --------------------------------------------------------------------------------------- Devices


class Devices:
    """Some devices, each with its blocks of the weights, and a count of what leaves each one."""

    def __init__(self, count, weights):
        self.count, self.sent = count, 0
        self.weights = [
            {name: self.block(name, weight, device) for name, weight in weights.items()}
            for device in range(count)
        ]

    def block(self, name, weight, device):
        """A device's part of a weight: a slice of the axis that is cut, or all of it."""
        axis = CUT.get(name.partition(".")[0])
        return weight.copy() if axis is None else np.split(weight, self.count, axis)[device]

    def whole(self, name):
        """A weight, put together from the devices."""
        axis = CUT.get(name.partition(".")[0])
        blocks = [weights[name] for weights in self.weights]
        return blocks[0] if axis is None else np.concatenate(blocks, axis)

    def all_reduce(self, blocks):
        """Give every device the sum. A ring sends 2 (d - 1) / d of a block from each device."""
        self.sent += 2 * (self.count - 1) * blocks[0].size // self.count
        return sum(blocks)

    def step(self, tokens_T, targets_T):
        """Forward, backward and update; returns the loss.

        `x` and its gradient are the same on all devices, so they are held once here. What differs
        is a list with an entry for each device.
        """
        ours, kept = self.weights, []
        x_TC = ours[0]["embedding"][tokens_T]
        for layer in range(LAYERS):
            x_TC = self.forward(f".{layer}", x_TC, kept)
        normed_TC = norm(x_TC)
        loss, dlogits_TV = loss_of(normed_TC @ ours[0]["head"], targets_T)

        gradients = [{"head": normed_TC.T @ dlogits_TV} for _ in ours]
        dx_TC = norm_gradient(x_TC, dlogits_TV @ ours[0]["head"].T)
        for layer in reversed(range(LAYERS)):
            dx_TC = self.backward(f".{layer}", dx_TC, kept.pop(), gradients)
        dembedding_VC = np.zeros((V, C))
        np.add.at(dembedding_VC, tokens_T, dx_TC)

        self.gradients = gradients
        for weights, gradient in zip(ours, gradients, strict=True):
            gradient["embedding"] = dembedding_VC
            for name, weight in weights.items():  # no message: each device has its own gradient
                weight -= RATE * gradient[name]
        return loss

    def forward(self, layer, x_TC, kept):
        """One layer; `kept` gets what its backward needs."""
        n1_TC, saved, summed = norm(x_TC), [], []
        for ours in self.weights:
            q, k, v = np.einsum("tc,cahd->ahtd", n1_TC, ours["Wqkv" + layer])
            o_HTD, weights = attention(q, k, v)
            o_TC = o_HTD.swapaxes(0, 1).reshape(T, -1)
            saved.append((q, k, v, weights, o_TC))
            summed.append(o_TC @ ours["Wo" + layer])
        y_TC = x_TC + self.all_reduce(summed)
        n2_TC = norm(y_TC)
        hidden = [np.maximum(n2_TC @ ours["W1" + layer], 0) for ours in self.weights]
        pairs = zip(hidden, self.weights, strict=True)
        kept.append((x_TC, n1_TC, saved, y_TC, n2_TC, hidden))
        return y_TC + self.all_reduce([h_TF @ ours["W2" + layer] for h_TF, ours in pairs])

    def backward(self, layer, dz_TC, kept, gradients):
        """The mirror image: sums where forward used a whole input, none where it had sums."""
        x_TC, n1_TC, saved, y_TC, n2_TC, hidden = kept
        summed = []
        for ours, given, h_TF in zip(self.weights, gradients, hidden, strict=True):
            given["W2" + layer] = h_TF.T @ dz_TC
            dh_TF = (dz_TC @ ours["W2" + layer].T) * (h_TF > 0)
            given["W1" + layer] = n2_TC.T @ dh_TF
            summed.append(dh_TF @ ours["W1" + layer].T)
        dy_TC = dz_TC + norm_gradient(y_TC, self.all_reduce(summed))
        summed = []
        for ours, given, (q, k, v, weights, o_TC) in zip(
            self.weights, gradients, saved, strict=True
        ):
            given["Wo" + layer] = o_TC.T @ dy_TC
            do_TC = dy_TC @ ours["Wo" + layer].T
            do_HTD = do_TC.reshape(T, -1, D).swapaxes(0, 1)
            dqkv = np.stack(attention_gradient(q, k, v, weights, do_HTD))
            given["Wqkv" + layer] = np.einsum("tc,ahtd->cahd", n1_TC, dqkv)
            summed.append(np.einsum("ahtd,cahd->tc", dqkv, ours["Wqkv" + layer]))
        return dy_TC + norm_gradient(x_TC, self.all_reduce(summed))


# ---------------------------------------------------------------------------------- Is it right?


def initial(seed=0):
    """Weights of the whole model."""
    rng = np.random.default_rng(seed)
    shapes = {"embedding": (V, C), "head": (C, V)}
    for layer in range(LAYERS):
        shapes |= {f"Wqkv.{layer}": (C, 3, HEADS, D), f"Wo.{layer}": (C, C),
                   f"W1.{layer}": (C, F), f"W2.{layer}": (F, C)}  # fmt: skip
    return {name: rng.normal(0, 0.3, shape) for name, shape in shapes.items()}


def batch(seed=1):
    """Tokens, and the next token of each as its target."""
    tokens = np.random.default_rng(seed).integers(0, V, T + 1)
    return tokens[:-1], tokens[1:]


def by_differences(name, index, size=1e-6):
    """The gradient of one element of a weight, from two losses."""
    losses = []
    for change in (size, -size):
        weights = initial()
        weights[name][index] += change
        losses.append(Devices(1, weights).step(*batch()))
    return (losses[0] - losses[1]) / (2 * size)


def main():
    one = Devices(1, initial())
    one.step(*batch())
    print("gradients of one device, next to differences of losses:")
    for name in ("embedding", "Wqkv.0", "Wo.0", "W1.1", "W2.1", "head"):
        gradient = one.gradients[0][name]
        index = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
        print(f"  {name:9} {gradient[index]:10.6f} {by_differences(name, index):10.6f}")

    print("\nlosses of five steps, and what a device sends in a step:")
    runs = {count: Devices(count, initial()) for count in (1, 2, 4)}
    for count, devices in runs.items():
        losses = [devices.step(*batch()) for _ in range(5)]
        held = sum(weight.size for weight in devices.weights[0].values())
        print(f"  {count} devices: {' '.join(f'{loss:.6f}' for loss in losses)}, "
              f"{devices.sent // 5:4} elements sent, {held:4} of weights held")  # fmt: skip
    largest = max(
        np.abs(runs[4].whole(name) - runs[1].whole(name)).max() for name in runs[1].weights[0]
    )
    print(f"weights of 4 devices and of one differ by less than 1e-12: {bool(largest < 1e-12)}")


if __name__ == "__main__":
    main()
