"""In place of the package flash_attn: the same functions, dense, for a machine without its GPU.

Attention is softmax(scale * q k^T) v, with the logarithms of the sums of its exponentials. Shapes
are those of flash_attn: (batch, length, heads, width), and (heads of keys) may divide (heads of
queries).
"""

from typing import Any

import torch

__version__ = "2.8.3"


def _dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None, causal: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output, the logarithms (batch, heads, length), and the probabilities, in 32 bits."""
    groups = q.shape[-2] // k.shape[-2]
    k, v = (part.repeat_interleave(groups, -2) for part in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) * scale
    if causal:
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        later = ones.triu(scores.shape[-1] - scores.shape[-2] + 1)
        scores = scores.masked_fill(later, float("-inf"))
    lse = scores.logsumexp(-1)
    # A row without keys has no output.
    parts = (scores - lse.unsqueeze(-1)).exp().nan_to_num(0.0)
    return torch.einsum("bhqk,bkhd->bqhd", parts, v.float()).to(q.dtype), lse, parts


def flash_attn_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0,
    softmax_scale: float | None = None, causal: bool = False, *_: Any,
    return_attn_probs: bool = False, **__: Any,
) -> Any:  # fmt: skip
    """Attention; with `return_attn_probs` also the logarithms, and None."""
    out, lse, _ = _dense(q, k, v, softmax_scale, causal)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *args: Any, **named: Any) -> Any:
    """Attention of keys and values in one tensor (batch, length, 2, heads, width)."""
    return flash_attn_func(q, *kv.unbind(2), *args, **named)


def flash_attn_qkvpacked_func(qkv: torch.Tensor, *args: Any, **named: Any) -> Any:
    """Attention of one tensor (batch, length, 3, heads, width)."""
    return flash_attn_func(*qkv.unbind(2), *args, **named)


def flash_attn_varlen_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int, *args: Any,
    return_attn_probs: bool = False, **named: Any,
) -> Any:  # fmt: skip
    """Attention of sequences in a row: (tokens, heads, width), cut at the ends in `cu_seqlens`."""
    parts = _sequences((q, k, v), (cu_seqlens_q, cu_seqlens_k, cu_seqlens_k))
    done = [flash_attn_func(*one, *args, return_attn_probs=True, **named) for one in parts]
    out = torch.cat([out[0] for out, _, _ in done])
    lse = torch.cat([lse[0] for _, lse, _ in done], -1)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor, kv: torch.Tensor, *args: Any, **named: Any
) -> Any:
    """Attention of keys and values in one tensor (tokens, 2, heads, width)."""
    return flash_attn_varlen_func(q, *kv.unbind(1), *args, **named)


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int, *args: Any, **named: Any
) -> Any:
    """Attention of one tensor (tokens, 3, heads, width)."""
    sizes = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(*qkv.unbind(1), *sizes, *args, **named)


def _flash_attn_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float, softmax_scale: float,
    causal: bool, window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None, return_softmax: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """The output, the logarithms, no probabilities, and no state of random numbers."""
    out, lse, _ = _dense(q, k, v, softmax_scale, causal)
    return out, lse, None, None


def _flash_attn_backward(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
    softmax_lse: torch.Tensor, dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor,
    dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int = -1,
    window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False, rng_state: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Write the gradients into `dq`, `dk` and `dv`; the keys may be a part of all keys.

    `out` and `softmax_lse` are those of all keys, so that the parts' gradients sum up.
    """
    heads, groups = k.shape[-2], q.shape[-2] // k.shape[-2]
    wide, values = (part.float().repeat_interleave(groups, -2) for part in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), wide) * softmax_scale
    parts = (scores - softmax_lse.unsqueeze(-1)).exp()
    if causal:
        parts = parts.tril(scores.shape[-1] - scores.shape[-2])
    above = torch.einsum("bqhd,bkhd->bhqk", dout.float(), values)
    rows = (dout.float() * out.float()).sum(-1).transpose(1, 2).unsqueeze(-1)
    slopes = parts * (above - rows) * softmax_scale
    dq.copy_(torch.einsum("bhqk,bkhd->bqhd", slopes, wide))
    for target, terms, other in ((dk, slopes, q), (dv, parts, dout)):
        full = torch.einsum("bhqk,bqhd->bkhd", terms, other.float())
        target.copy_(full.unflatten(2, (heads, groups)).sum(3))
    return rows.squeeze(-1)


Parts = list[tuple[torch.Tensor, ...]]


def _sequences(tensors: tuple[torch.Tensor, ...], cuts: tuple[torch.Tensor, ...]) -> Parts:
    """Tensors (tokens, ...) cut into sequences (1, length, ...), each by its own numbers."""
    parts = [
        [part.unsqueeze(0) for part in tensor.split(cut.diff().tolist())]
        for tensor, cut in zip(tensors, cuts, strict=True)
    ]
    return list(zip(*parts, strict=True))


def _flash_attn_varlen_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
    softmax_scale: float, causal: bool, window_size_left: int = -1, window_size_right: int = -1,
    softcap: float = 0.0, alibi_slopes: torch.Tensor | None = None, return_softmax: bool = False,
    block_table: torch.Tensor | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """The output (tokens, heads, width), the logarithms (heads, tokens), and twice None."""
    cuts = (cu_seqlens_q, cu_seqlens_k, cu_seqlens_k)
    done = [_dense(*part, softmax_scale, causal) for part in _sequences((q, k, v), cuts)]
    out, lse = torch.cat([out[0] for out, _, _ in done]), [lse[0] for _, lse, _ in done]
    return out, torch.cat(lse, -1), None, None


def _flash_attn_varlen_backward(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
    softmax_lse: torch.Tensor, dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor,
    cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float, softmax_scale: float, causal: bool, *_: Any, **__: Any,
) -> None:  # fmt: skip
    """Write the gradients into `dq`, `dk` and `dv`."""
    of_q, of_k = cu_seqlens_q, cu_seqlens_k
    cuts = (of_q, of_q, of_k, of_k, of_q, of_q, of_q, of_k, of_k)
    tensors = (dout, q, k, v, out, softmax_lse.transpose(0, 1), dq, dk, dv)
    for one in _sequences(tensors, cuts):
        lse = one[5].transpose(1, 2)
        _flash_attn_backward(*one[:5], lse, *one[6:], dropout_p, softmax_scale, causal)


def index_first_axis(tokens: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Some tokens of (tokens, ...)."""
    return tokens[indices]


def unpad_input(states: torch.Tensor, mask: torch.Tensor, unused: Any = None) -> tuple[Any, ...]:
    """The tokens, their places, where each sequence begins, and the longest length."""
    lengths = mask.sum(1, dtype=torch.int32)
    indices = mask.flatten().nonzero().flatten()
    starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return states.flatten(0, 1)[indices], indices, starts, int(lengths.max()), lengths


def pad_input(tokens: torch.Tensor, indices: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """Tokens at their places of (batch, length, ...), and zeros elsewhere."""
    whole = tokens.new_zeros(batch * length, *tokens.shape[1:])
    return whole.index_copy(0, indices, tokens).unflatten(0, (batch, length))


def apply_rotary_emb(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False, *_: Any,
    **__: Any,
) -> torch.Tensor:  # fmt: skip
    """Turn pairs of x: its halves, or neighbours with `interleaved`; what is beyond stays."""
    width = 2 * cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    cos, sin = (part[: x.shape[1]].unsqueeze(-2) for part in (cos, sin))
    if interleaved:
        first, second = turned[..., ::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, -1)
    parts = first * cos - second * sin, first * sin + second * cos
    whole = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat([whole, rest], -1)


def layer_norm_fn(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    residual: torch.Tensor | None = None, *_: Any, eps: float = 1e-6, prenorm: bool = False,
    is_rms_norm: bool = False, **__: Any,
) -> Any:  # fmt: skip
    """The norm; with `prenorm` also the sum of x and the residual."""
    total = x if residual is None else x + residual
    wide = total.float()
    wide = wide if is_rms_norm else wide - wide.mean(-1, keepdim=True)
    out = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight
    out = (out if bias is None else out + bias).to(x.dtype)
    return (out, total) if prenorm else out


def rms_norm_fn(x: torch.Tensor, weight: torch.Tensor, bias: Any, *args: Any, **named: Any) -> Any:
    """The norm without a mean."""
    return layer_norm_fn(x, weight, bias, *args, **named | {"is_rms_norm": True})
