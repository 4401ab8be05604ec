"""A training step whose gradients cross ranks, `python adjoints.py KIND CHANGE ...`, right or not.

At the end `results` are the weights with their gradients.
"""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
kind, change = sys.argv[1], sys.argv[2:]


def weights(seed, count=2):
    draw = torch.Generator().manual_seed(seed)
    return [(torch.randn(4, 4, generator=draw) / 2).requires_grad_() for _ in range(count)]


def data(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pipeline():
    """Two stages and three micro-batches; what is swapped or done otherwise is in `change`."""
    (weight,), posted = weights(rank, 1), []
    orders = {name: [0, 1, 2] for name in ("send", "take", "return", "enter")}
    for name, *digits in change:
        orders.update({key: list(map(int, digits)) for key in orders if key[0] == name})
    if rank == 0:
        outputs = [torch.tanh(data(m, 2, 4) @ weight) for m in range(3)]
        posted = [dist.isend(outputs[m].detach(), 1) for m in orders["send"]]
        for m in orders["enter"]:
            gradient = torch.empty(2, 4)
            dist.recv(gradient, 1)
            outputs[m].backward(gradient)
    else:
        copies = {}
        for m in orders["take"]:
            copies[m] = torch.empty(2, 4)
            dist.recv(copies[m], 0)
            copies[m].requires_grad_()
        for m in sorted(copies):
            (torch.tanh(copies[m] @ weight) * data(10, 2, 4)).sum().backward()
            if "more" in change and m == 1:
                ((copies[m] @ weight) ** 2).sum().backward()
        for m in orders["return"]:
            gradient = copies[m].grad
            if m == 1:
                gradient = gradient * 2 if "double" in change else gradient
                gradient = copies[m].detach() if "data" in change else gradient
                gradient = copies[2].grad if "again" in change else gradient
                gradient = torch.zeros(2, 4) if "zeros" in change else gradient
                gradient = gradient.clone() if "clone" in change else gradient
            posted.append(dist.isend(gradient, 0))
    for work in posted:
        work.wait()
    return [weight]


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(context, part):
        whole = torch.empty(ranks * len(part), 4)
        dist.all_gather_into_tensor(whole, part.contiguous())
        return whole

    @staticmethod
    def backward(context, gradient):
        part = torch.empty(len(gradient) // ranks, 4)
        place = rank
        if "slice" in change or "next" in change:
            place = (rank + ("next" in change)) % ranks
        else:
            gradient = gradient.clone()
            if "minus" in change and rank == 1:
                gradient *= -1
            if "sum" in change:
                dist.all_reduce(gradient)
            else:
                dist.reduce_scatter_tensor(part, gradient.contiguous())
                return part
        return gradient[place * len(part) : (place + 1) * len(part)]


def gather():
    """Each rank has part of the sequence; queries of its own meet all keys."""
    first, second = weights(0)
    part = torch.tanh(data(rank, 3, 4) @ first)
    whole = Gather.apply(part)
    if "same" in change:  # All ranks do the same with it: each may take its own part.
        (whole @ second).pow(2).sum().backward()
    else:
        (part @ second @ whole.T).pow(2).sum().backward()
    return [first, second]


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(context, tensor, turns):
        context.turns = turns
        return Exchange.swap(tensor) if turns else tensor.clone()

    @staticmethod
    def swap(tensor):
        result = torch.empty_like(tensor)
        dist.all_to_all_single(result, tensor.contiguous())
        return result

    @staticmethod
    def backward(context, gradient):
        if "none" in change:
            return gradient, None
        gradient = Exchange.swap(gradient)
        if "roll" in change:
            gradient = gradient.roll(2, 0)
        if "thrice" in change:
            gradient = Exchange.swap(Exchange.swap(gradient))
        if "half" in change and rank:
            gradient = gradient / 2
        return gradient, None


def exchange():
    """Tokens go to the ranks of their experts and back."""
    first, second = weights(0, 1)[0], weights(5 + rank, 1)[0]
    tokens = torch.tanh(data(rank, 2 * ranks, 4) @ first)
    there = torch.tanh(Exchange.apply(tokens, 1) @ second)
    back = Exchange.apply(there, 1)
    (back * data(20 + rank, 2 * ranks, 4)).sum().backward()
    return [first, second]


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(context, tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.clone()
        for _ in range(2 if "twice" in change else 1):
            dist.all_reduce(gradient)
        return gradient


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(context, tensor):
        tensor = tensor.clone()
        dist.all_reduce(tensor)
        return tensor

    @staticmethod
    def backward(context, gradient):
        return gradient * (1 + rank) if "ranks" in change else gradient


def copy():
    """Two layers of tensor parallelism: columns, then rows, each with Megatron's f and g."""
    hidden, layers = data(0, 3, 4), weights(rank, 4)
    hidden.requires_grad_()
    for layer in range(2):
        entered = hidden if f"without{layer}" in change else Copy.apply(hidden)
        inner = torch.tanh(entered @ layers[2 * layer])
        hidden = Sum.apply(inner @ layers[2 * layer + 1])
    (hidden * data(7, 3, 4)).sum().backward()
    return layers


class Halo(torch.autograd.Function):
    """The last row of the rank before, above the rows of this one; the first rank has zeros."""

    @staticmethod
    def forward(context, rows):
        halo = torch.zeros(1, 4)
        Halo.shift(rows[-1:], halo, 1)
        return torch.cat([halo, rows])

    @staticmethod
    def shift(sent, received, step):
        works = []
        if 0 <= rank + step < ranks:
            works.append(dist.P2POp(dist.isend, sent.contiguous(), rank + step))
        if 0 <= rank - step < ranks:
            works.append(dist.P2POp(dist.irecv, received, rank - step))
        for work in dist.batch_isend_irecv(works):
            work.wait()

    @staticmethod
    def backward(context, gradient):
        back, rows = torch.zeros(1, 4), gradient[1:].clone()
        if "none" in change:
            return rows
        Halo.shift(gradient[1:2] if "row" in change else gradient[:1], back,
                   1 if "onward" in change else -1)  # fmt: skip
        rows[0 if "first" in change else -1 :][:1] += back
        return rows


def halo():
    """A convolution over rows that are cut over ranks."""
    first, second = weights(0)
    rows = torch.tanh(data(rank, 3, 4) @ first)
    padded = Halo.apply(rows)
    ((padded[1:] + 2 * padded[:-1]) @ second).pow(2).sum().backward()
    return [first, second]


class Ring(torch.autograd.Function):
    """Linear attention without a mask: `q k^T v`, whose keys and values go round."""

    @staticmethod
    def turn(*tensors):
        received = [torch.empty_like(tensor) for tensor in tensors]
        works = [dist.P2POp(dist.isend, one.contiguous(), (rank + 1) % ranks) for one in tensors]
        works += [dist.P2POp(dist.irecv, one, (rank - 1) % ranks) for one in received]
        for work in dist.batch_isend_irecv(works):
            work.wait()
        return received

    @staticmethod
    def forward(context, query, key, value):
        context.save_for_backward(query, key, value)
        output = torch.zeros_like(query)
        for _ in range(ranks):
            output = output + query @ key.T @ value
            key, value = Ring.turn(key, value)
        return output

    @staticmethod
    def backward(context, gradient):
        query, key, value = context.saved_tensors
        to_query, to_key, to_value = (torch.zeros_like(one) for one in (query, key, value))
        for place in range(ranks):
            to_query = to_query + gradient @ value.T @ key
            if "local" not in change or place == 0:
                to_key = to_key + value @ gradient.T @ query
                to_value = to_value + key @ query.T @ gradient
            if "local" in change:
                key, value = Ring.turn(key, value)
            elif "short" in change and place == ranks - 1:
                break
            else:
                key, value, to_key, to_value = Ring.turn(key, value, to_key, to_value)
        return (to_query, to_value, to_key) if "swap" in change else (to_query, to_key, to_value)


def ring():
    """Ring attention."""
    parts = weights(0, 3)
    hidden = data(rank, 3, 4)
    output = Ring.apply(*(hidden @ part for part in parts))
    (output * data(30 + rank, 3, 4)).sum().backward()
    return parts


results = {name: globals()[name] for name in
           ("pipeline", "gather", "exchange", "copy", "halo", "ring")}[kind]()  # fmt: skip
dist.barrier()
