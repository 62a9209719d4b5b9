"""Llama decoder layers and a tied head trained by PyTorch alone, as a peer for one training step on an NVIDIA card.

    python llama_plain_torch.py [--chunked] [--device cuda|cpu] [--precision fp32|bf16|fp16] [--steps K] [--serve] [--compile] [sizes]

By default one layer of Llama 3.2 3B's shape under the vocabulary of Orpheus (156,940), 8192 tokens as one sequence: RMSNorm, grouped
queries with rotary positions (two halves, base 500000, no frequency scaling), causal scaled_dot_product_attention, SwiGLU, final norm,
the embedding again as the head, and the next token's cross-entropy. The loss is taken as transformers takes it, on all logits
at once in fp32; `--chunked` computes head and loss in pieces of `--chunk` tokens that are recomputed in the backward pass, the usual way
around the memory of the logits. A step is forward, backward, clip to norm 1, fused AdamW. No dropout, no EMA.
fp32 repeats the keys and values of a group before attention, since only the 16-bit fused kernels take fewer heads of them.
Tokens are random and weights are normal with deviation 0.02. Timing and JSON: `torch_rounds.py`.

Checked with `--check` (on the CPU; needs transformers, 4.57.1 was used): LlamaForCausalLM and this, at a tiny size with the same
weights (the names are transformers', less its `model.`), agree to 1e-5 of each tensor's largest value in the loss and every gradient,
whole and chunked.
"""

from __future__ import annotations

import argparse

import torch_rounds as rounds  # first: it says what to do where torch is missing
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

SIZES = dict(dim=3072, heads=24, kv_heads=8, head_dim=128, ffn=8192, vocab=156940, layers=1)
EPSILON = 1e-5
BASE = 500000.0


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [B, heads, T, d]; element i turns with element i + d/2. cos and sin are [T, d/2] in x's type."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim, self.group = head_dim, heads // kv_heads
        self.q_proj, self.o_proj = nn.Linear(dim, heads * head_dim, bias=False), nn.Linear(heads * head_dim, dim, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(dim, kv_heads * head_dim, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        cos, sin = cos.type_as(q), sin.type_as(q)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if q.dtype == torch.float32:
            k, v = (t.repeat_interleave(self.group, 1) for t in (k, v))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.dtype != torch.float32)
        return self.o_proj(h.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(dim, inner, bias=False), nn.Linear(dim, inner, bias=False)
        self.down_proj = nn.Linear(inner, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int, head_dim: int, ffn: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(dim, EPSILON), nn.RMSNorm(dim, EPSILON)
        self.self_attn, self.mlp = Attention(dim, heads, kv_heads, head_dim), FeedForward(dim, ffn)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


def head_loss(h: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum over the rows of h [T, dim]. A target of -100 does not count."""
    return F.cross_entropy(F.linear(h, weight).float(), targets, reduction="sum", ignore_index=-100)


class Llama(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int, head_dim: int, ffn: int, vocab: int, layers: int, chunk: int = 0) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, kv_heads, head_dim, ffn) for _ in range(layers))
        self.norm, self.chunk = nn.RMSNorm(dim, EPSILON), chunk
        self.register_buffer("rates", BASE ** -(torch.arange(0, head_dim, 2).float() / head_dim), persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The mean loss of predicting each next token of tokens [B, T]."""
        angles = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * self.rates
        cos, sin, h = angles.cos(), angles.sin(), self.embed_tokens(tokens)
        for layer in self.layers:
            h = layer(h, cos, sin)
        h, targets, weight = self.norm(h).flatten(0, 1), F.pad(tokens[:, 1:], (0, 1), value=-100).flatten(), self.embed_tokens.weight
        count = tokens.shape[0] * (tokens.shape[1] - 1)
        if not self.chunk:
            return head_loss(h, weight, targets) / count
        pieces = zip(h.split(self.chunk), targets.split(self.chunk))
        return sum(checkpoint(head_loss, a, weight, b, use_reentrant=False) for a, b in pieces) / count


def build(args: argparse.Namespace) -> tuple[rounds.Step, dict]:
    sizes = {name: getattr(args, name) for name in SIZES}
    if args.heads % args.kv_heads or args.head_dim % 2 or args.tokens < 2:
        raise SystemExit("--heads must be a multiple of --kv-heads, --head-dim even and --tokens at least 2")
    chunk = args.chunk if args.chunked else 0
    with torch.device(args.device):
        model = Llama(**sizes, chunk=chunk)
        tokens = torch.randint(args.vocab, (args.batch, args.tokens))
    runs = rounds.compiled(args, model)
    shape = sizes | {"batch": args.batch, "tokens": args.tokens, "chunk": chunk, "parameters": sum(p.numel() for p in model.parameters())}
    return rounds.Step(args, model, lambda: runs(tokens)), shape


def check(args: argparse.Namespace) -> None:
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise SystemExit(f"--check needs transformers: {error}")
    torch.manual_seed(args.seed)
    sizes = dict(hidden_size=96, num_attention_heads=6, num_key_value_heads=2, head_dim=32, intermediate_size=128, vocab_size=300, num_hidden_layers=2)
    config = LlamaConfig(**sizes, rms_norm_eps=EPSILON, rope_theta=BASE, tie_word_embeddings=True, attn_implementation="sdpa")
    theirs, tokens = LlamaForCausalLM(config), torch.randint(300, (2, 50))
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(torch.randn_like(p), alpha=0.05)
    loss = theirs(input_ids=tokens, labels=tokens).loss
    loss.backward()
    wanted = {"loss": loss} | {name: p.grad for name, p in theirs.model.named_parameters()}
    for case, chunk in (("whole", 0), ("chunked", 16)):
        ours = Llama(dim=96, heads=6, kv_heads=2, head_dim=32, ffn=128, vocab=300, layers=2, chunk=chunk)
        ours.load_state_dict(theirs.model.state_dict(), strict=True)
        loss = ours(tokens)
        loss.backward()
        rounds.agree(case, wanted, {"loss": loss} | {name: p.grad for name, p in ours.named_parameters()})
    print("transformers and this script agree")


def main() -> None:
    p = rounds.parser(__doc__)
    for name, size in SIZES.items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=size)
    p.add_argument("--batch", type=int, default=1, help="sequences")
    p.add_argument("--tokens", type=int, default=8192, help="of each sequence")
    p.add_argument("--chunked", action="store_true", help="head and loss in recomputed pieces")
    p.add_argument("--chunk", type=int, default=1024, help="tokens of a piece")
    p.add_argument("--check", action="store_true", help="compare with transformers on the CPU")
    args = p.parse_args()
    if args.check:
        check(args)
    else:
        rounds.run(args, "llama_plain_torch", build)


if __name__ == "__main__":
    main()
