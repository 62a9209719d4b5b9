"""F5-TTS (default: F5TTS_v1_Base) trained by PyTorch alone, as a peer for one training step on an NVIDIA card.

    python f5_plain_torch.py [--device cuda|cpu] [--precision fp32|bf16|fp16] [--steps K] [--serve] [--compile] [sizes, see --help]

The layers, shapes and parameter names are those of the f5-tts package's DiT, written again so that nothing but torch is needed. A step
is the reference trainer's: one padded batch [B, N] with lengths, fresh spans, noise, times and condition drops, the flow's squared
error over the spans, backward, clip to norm 1, AdamW, and EMA every 10th step (the package's setting; `--ema-every 1` for each step).
As in the package's configurations, attention sees the pads and dropout is 0.1. Left out is only what makes the host wait for the card:
the loss is a masked sum over a count instead of an indexed mean, and it is read once per round. Weights are PyTorch's own
initialisation, without the package's zeros, so that every gradient is there from the first step. Timing and JSON: `torch_rounds.py`.

Checked with `--check` (on the CPU; needs f5-tts 1.1.22): the package's DiT under its CFM, and these, at a tiny size with the same
weights and seeds, agree to 1e-5 of each tensor's largest value in the prediction, the loss and every gradient, for unequal lengths,
with and without dropped conditions and with blocks recomputed.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import OrderedDict
from pathlib import Path

import torch_rounds as rounds  # first: it says what to do where torch is missing
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


SIZES = dict(dim=1024, depth=22, heads=16, head_dim=64, ff_mult=2, text_dim=512, conv_layers=4, mel=100, vocab=2545, dropout=0.1)


class Rotary(nn.Module):
    """Angles of interleaved pairs, base 10000; the same for every head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 10000.0 ** -(torch.arange(0, width, 2).float() / width))

    def forward(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.arange(n, device=self.inv_freq.device)[:, None] * self.inv_freq
        return angles.cos(), angles.sin()  # [N, width/2]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2).type_as(x)


class Time(nn.Module):
    def __init__(self, dim: int, width: int = 256) -> None:
        super().__init__()
        self.time_mlp = nn.Sequential(nn.Linear(width, dim), nn.SiLU(), nn.Linear(dim, dim))
        half = width // 2
        self.register_buffer("rates", torch.exp(torch.arange(half) * -(math.log(10000) / (half - 1))), persistent=False)

    def forward(self, time: torch.Tensor) -> torch.Tensor:
        angles = 1000 * time[:, None] * self.rates
        return self.time_mlp(torch.cat((angles.sin(), angles.cos()), -1))


class ResponseNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.zeros(1, 1, dim)), nn.Parameter(torch.zeros(1, 1, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.norm(dim=1, keepdim=True)  # over the sequence
        return self.gamma * (x * (size / (size.mean(-1, keepdim=True) + 1e-6))) + self.beta + x


class ConvNeXt(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv1d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1, self.grn, self.pwconv2 = nn.Linear(dim, 2 * dim), ResponseNorm(2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.dwconv(x.transpose(1, 2)).transpose(1, 2))
        return x + self.pwconv2(self.grn(F.gelu(self.pwconv1(h))))


class Text(nn.Module):
    def __init__(self, vocab: int, dim: int, layers: int, positions: int = 8192) -> None:
        super().__init__()
        self.text_embed = nn.Embedding(vocab + 1, dim)  # row 0 is the filler
        self.text_blocks = nn.ModuleList(ConvNeXt(dim) for _ in range(layers))
        angles = torch.outer(torch.arange(positions), 1 / 10000 ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("positions", torch.cat((angles.cos(), angles.sin()), -1), persistent=False)

    def forward(self, text: torch.Tensor, mask: torch.Tensor, drop: torch.Tensor) -> torch.Tensor:
        """text [B, Nt], padded by -1, becomes one token per frame; `drop` (one bool, on the device) makes them all the filler."""
        n = mask.shape[1]
        text = F.pad(text[:, :n] + 1, (0, max(0, n - text.shape[1]))).masked_fill(~mask, 0)
        filler = (text == 0)[..., None]
        h = (self.text_embed(text.masked_fill(drop, 0)) + self.positions[:n]).masked_fill(filler, 0)
        for block in self.text_blocks:
            h = block(h).masked_fill(filler, 0)
        return h


class ConvPosition(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        conv = lambda: nn.Conv1d(dim, dim, 31, padding=15, groups=16)  # noqa: E731
        self.conv1d = nn.Sequential(conv(), nn.Mish(), conv(), nn.Mish())

    def forward(self, x: torch.Tensor, pads: torch.Tensor) -> torch.Tensor:
        first, mish, second, _ = self.conv1d
        clear = lambda h: h.masked_fill(pads[:, None], 0)  # noqa: E731
        h = mish(clear(first(clear(x.transpose(1, 2)))))
        return mish(clear(second(h))).transpose(1, 2)


class Input(nn.Module):
    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.proj, self.conv_pos_embed = nn.Linear(width, dim), ConvPosition(dim)

    def forward(self, x: torch.Tensor, cond: torch.Tensor, text: torch.Tensor, pads: torch.Tensor) -> torch.Tensor:
        h = self.proj(torch.cat((x, cond, text), -1))
        return h + self.conv_pos_embed(h, pads)


class Modulation(nn.Module):
    def __init__(self, dim: int, parts: int) -> None:
        super().__init__()
        self.parts, self.linear = parts, nn.Linear(dim, parts * dim)

    def forward(self, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.linear(F.silu(t))[:, None].chunk(self.parts, -1)  # each [B, 1, dim]


def modulated(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, width: int, dropout: float) -> None:
        super().__init__()
        self.heads, inner = heads, heads * width
        self.to_q, self.to_k, self.to_v = nn.Linear(dim, inner), nn.Linear(dim, inner), nn.Linear(dim, inner)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, pads: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        h = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
        return self.to_out(h.transpose(1, 2).flatten(2)).masked_fill(pads[..., None], 0)


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, width: int, mult: int, dropout: float) -> None:
        super().__init__()
        self.attn_norm, self.attn = Modulation(dim, 6), Attention(dim, heads, width, dropout)
        first = nn.Sequential(nn.Linear(dim, mult * dim), nn.GELU(approximate="tanh"))
        self.ff = nn.Sequential(OrderedDict(ff=nn.Sequential(first, nn.Dropout(dropout), nn.Linear(mult * dim, dim))))

    def forward(self, x: torch.Tensor, t: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, pads: torch.Tensor) -> torch.Tensor:
        shift, scale, gate, ff_shift, ff_scale, ff_gate = self.attn_norm(t)
        x = x + gate * self.attn(modulated(x, scale, shift), cos, sin, pads)
        return x + ff_gate * self.ff(modulated(x, ff_scale, ff_shift))


class DiT(nn.Module):
    def __init__(self, dim, depth, heads, head_dim, ff_mult, text_dim, conv_layers, dropout, mel=100, vocab=2545, checkpoint=False) -> None:
        super().__init__()
        self.time_embed, self.text_embed, self.input_embed = Time(dim), Text(vocab, text_dim, conv_layers), Input(2 * mel + text_dim, dim)
        self.rotary_embed = Rotary(head_dim)
        self.transformer_blocks = nn.ModuleList(Block(dim, heads, head_dim, ff_mult, dropout) for _ in range(depth))
        self.norm_out, self.proj_out = Modulation(dim, 2), nn.Linear(dim, mel)
        self.checkpoint = checkpoint

    def forward(self, x: torch.Tensor, cond: torch.Tensor, text: torch.Tensor, time: torch.Tensor, mask: torch.Tensor, drop_text: torch.Tensor) -> torch.Tensor:
        t, pads = self.time_embed(time), ~mask
        h = self.input_embed(x, cond, self.text_embed(text, mask, drop_text), pads)
        cos, sin = self.rotary_embed(x.shape[1])
        for block in self.transformer_blocks:
            h = checkpoint(block, h, t, cos, sin, pads, use_reentrant=False) if self.checkpoint else block(h, t, cos, sin, pads)
        scale, shift = self.norm_out(t)
        return self.proj_out(modulated(h, scale, shift))


def flow_loss(model: nn.Module, x1: torch.Tensor, text: torch.Tensor, lengths: torch.Tensor, drops=(0.3, 0.2)) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and prediction; random numbers are drawn in the package's order."""
    b, n, channels = x1.shape
    at = torch.arange(n, device=x1.device)[None]
    long = (torch.empty(b, device=x1.device).uniform_(0.7, 1.0) * lengths).long()
    start = ((lengths - long) * torch.rand(b, device=x1.device)).long()
    span = (at >= start[:, None]) & (at < (start + long)[:, None])
    x0, time = torch.randn_like(x1), torch.rand(b, device=x1.device)
    drop_audio, drop_text = random.random() < drops[0], random.random() < drops[1]
    cond = torch.zeros_like(x1) if drop_audio or drop_text else x1.masked_fill(span[..., None], 0)
    noised = torch.lerp(x0, x1, time[:, None, None])
    drop = torch.full((), drop_text, device=x1.device)
    prediction = model(noised, cond, text, time, at < lengths[:, None], drop)
    error = F.mse_loss(prediction, x1 - x0, reduction="none").masked_fill(~span[..., None], 0)
    return error.sum() / (span.sum() * channels), prediction


def batch(args: argparse.Namespace, lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random clips: mel [B, N, mel], text [B, Nt] padded by -1, lengths [B]. Mel pads are 0."""
    long = torch.tensor(lengths)[:, None]
    tokens = (long // args.frames_per_token).clamp(min=1)
    mel = torch.randn(len(lengths), max(lengths), args.mel).masked_fill((torch.arange(max(lengths)) >= long)[..., None], 0)
    text = torch.randint(args.vocab, (len(lengths), int(tokens.max())))
    text = text.masked_fill(torch.arange(text.shape[1]) >= tokens, -1)
    return mel.to(args.device), text.to(args.device), long[:, 0].to(args.device)


def build(args: argparse.Namespace) -> tuple[rounds.Step, dict]:
    sizes = {name: getattr(args, name) for name in (*SIZES, "checkpoint")}
    lengths = [int(n) for n in args.lengths.split(",")] if args.lengths else [args.frames] * args.batch
    if not 0 < min(lengths) <= max(lengths) <= 8192:
        raise SystemExit("a clip has 1 to 8192 frames")
    with torch.device(args.device):
        model = DiT(**sizes).train()
    data, runs = batch(args, lengths), rounds.compiled(args, model)
    shape = sizes | {"batch": len(lengths), "frames": max(lengths), "lengths": lengths, "text": data[1].shape[1]}
    shape |= {"ema_every": args.ema_every, "parameters": sum(p.numel() for p in model.parameters())}
    return rounds.Step(args, model, lambda: flow_loss(runs, *data)[0], args.ema_every), shape


def check(args: argparse.Namespace) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "parity" / "f5"))
    try:
        import reference  # opens the package without its trainer's dependencies
        from f5_tts.model.cfm import CFM
    except ImportError as error:
        raise SystemExit(f"--check needs f5-tts and its model's dependencies (parity/requirements.txt): {error}")
    args.vocab, args.mel, args.device = 40, 100, "cpu"
    torch.manual_seed(args.seed)
    data = batch(args, [50, 37, 44])
    common = dict(dim=128, depth=2, heads=2, ff_mult=2, text_dim=64, conv_layers=2, dropout=0.0)
    theirs = reference.DiT(**common, dim_head=64, mel_dim=100, text_num_embeds=40, text_mask_padding=True)
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(torch.randn_like(p), alpha=0.02)  # it starts with zeros that would hide most gradients
    gradients = lambda model: {name: p.grad for name, p in model.named_parameters()}  # noqa: E731
    for case, drops, recompute in (("no drop", (0, 0), False), ("audio dropped", (1, 0), False), ("both dropped", (0, 1), False), ("recomputed", (0, 0), True)):
        ours = DiT(**common, head_dim=64, vocab=40, checkpoint=recompute)
        ours.load_state_dict(theirs.state_dict(), strict=True)
        theirs.zero_grad()
        cfm = CFM(theirs, audio_drop_prob=drops[0], cond_drop_prob=drops[1])
        results = []
        for forward in (lambda: cfm(data[0], data[1], lens=data[2])[::2], lambda: flow_loss(ours, *data, drops)):
            torch.manual_seed(args.seed + 1)
            loss, prediction = forward()
            loss.backward()
            results.append({"loss": loss, "prediction": prediction})
        rounds.agree(case, results[0] | gradients(theirs), results[1] | gradients(ours))
    print("the package and this script agree")


def main() -> None:
    p = rounds.parser(__doc__)
    for name, size in SIZES.items():
        p.add_argument("--" + name.replace("_", "-"), type=type(size), default=size)
    p.add_argument("--checkpoint", action="store_true", help="recompute each block in the backward pass (the package's checkpoint_activations)")
    p.add_argument("--batch", type=int, default=4, help="clips of --frames each")
    p.add_argument("--frames", type=int, default=800)
    p.add_argument("--lengths", help="frames of each clip instead, separated by commas; the longest is N")
    p.add_argument("--frames-per-token", type=int, default=6, help="the texts' length")
    p.add_argument("--ema-every", type=int, default=10, help="steps between two EMA updates; 0: no EMA")
    p.add_argument("--check", action="store_true", help="compare with the f5-tts package on the CPU")
    args = p.parse_args()
    if args.check:
        check(args)
    else:
        rounds.run(args, "f5_plain_torch", build)


if __name__ == "__main__":
    main()
