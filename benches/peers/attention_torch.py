"""PyTorch's attention alone, forward and backward, as a peer of `cargo xtask gpu fast`: `scaled_dot_product_attention` in bf16 by the
backends `flash` and `cudnn`.

    python attention_torch.py --serve CLIPS,TOKENS,HEADS,KEY_HEADS,CHANNELS,CAUSAL ...

Serves rounds as `torch_rounds.py` does; a round's JSON line has, for each shape and backend, milliseconds of one forward and one backward
pass by CUDA events over `STEPS` of them, or what went wrong. Tensors are [clips, tokens, heads, channels] in memory, as a model's
projections leave them; all clips have the same length, so nothing is padded.
"""

from __future__ import annotations

import json
import sys

import torch_rounds  # noqa: F401 (it says what to do where torch is missing)
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

STEPS = 10
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def timed(work) -> float:
    """Milliseconds of one call."""
    work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(STEPS):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / STEPS


class Shape:
    def __init__(self, text: str) -> None:
        clips, tokens, heads, key_heads, channels, causal = (int(n) for n in text.split(","))
        draw = lambda heads: torch.randn(clips, tokens, heads, channels, device="cuda", dtype=torch.bfloat16)  # noqa: E731
        self.q, self.k, self.v = (draw(n).transpose(1, 2).requires_grad_() for n in (heads, key_heads, key_heads))
        self.d_o = draw(heads).transpose(1, 2)
        self.options = dict(is_causal=bool(causal), enable_gqa=heads != key_heads)

    def measure(self, backend: str) -> dict:
        try:
            with sdpa_kernel(BACKENDS[backend]):
                forward = lambda: scaled_dot_product_attention(self.q, self.k, self.v, **self.options)  # noqa: E731
                forward_ms = timed(forward)
                o = forward()
                backward_ms = timed(lambda: torch.autograd.grad(o, (self.q, self.k, self.v), self.d_o, retain_graph=True))
            return {"forward_ms": forward_ms, "backward_ms": backward_ms}
        except RuntimeError as error:
            return {"why": str(error).splitlines()[0]}


def main() -> None:
    shapes = [Shape(text) for text in sys.argv[1:] if text != "--serve"]
    answer = lambda: {"torch": torch.__version__, "shapes": [{b: s.measure(b) for b in BACKENDS} for s in shapes]}  # noqa: E731
    answer()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "go":
            print(json.dumps(answer()), flush=True)


if __name__ == "__main__":
    main()
