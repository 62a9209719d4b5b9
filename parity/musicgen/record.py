"""Writes fixtures/{base,stereo,packed}: a folder as its project saves it, `batch.safetensors`, `expected.safetensors` with loss and every
gradient.

    python record.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from make import make_batch, make_model, make_package
from reference import Clip, gradients, load, save_batch, save_gradients

FIXTURES = Path(__file__).resolve().parent / "fixtures"
TEXT = dict(d_model=12, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
DECODER = dict(vocab_size=20, num_codebooks=4, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, ffn_dim=32)
CASES = {
    # As the published ones: a projection, four codebooks.
    "base": dict(text=TEXT, decoder=DECODER),
    # Two channels in eight codebooks, no projection, fewer positions in the file than steps; fp16.
    "stereo": dict(
        text=TEXT | dict(d_model=16), decoder=DECODER | dict(num_codebooks=8, audio_channels=2, max_position_embeddings=8, dropout=0.1), dtype=torch.float16
    ),
    # audiocraft's checkpoint, with delays of its own; fp16.
    "packed": dict(text=TEXT, decoder=DECODER | dict(num_codebooks=3), delays=[0, 0, 2], dtype=torch.float16),
}
# Tokens of text, of which none is no text, and frames.
SHAPES = {"base": [(7, 12), (0, 9), (12, 5)], "stereo": [(9, 11), (3, 14)], "packed": [(0, 10), (6, 8), (4, 1)]}


@torch.no_grad()
def by_definition(model, clips: list[Clip]) -> float:
    """The loss from the packages' logits alone, step by step: codebook k's codes from its delay on."""
    count, total = len(model.delays), 0.0
    for k, late in enumerate(model.delays):
        scored = max(sum(max(c.frames - late, 0) for c in clips), 1)
        for clip in clips:
            for s in range(late, clip.frames):
                fed = torch.full((count, s + 1), DECODER["vocab_size"])
                for j, delay in enumerate(model.delays):
                    fed[j, 1 + delay :] = clip.codes[j, : max(s - delay, 0)]
                chances = model.logits(clip, fed)[k].double().log_softmax(-1)
                total -= chances[clip.codes[k, s - late]].item() / scored / count
    return total


# Of the models: such that no code without text is nearly another.
SEEDS = {"base": 4, "stereo": 1, "packed": 2}


def main() -> None:
    for name, config in CASES.items():
        seed = SEEDS[name]
        directory = FIXTURES / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        (make_package if name == "packed" else make_model)(directory, seed, **config)
        clips = make_batch(seed, config["decoder"], SHAPES[name])
        save_batch(clips, directory / "batch.safetensors")
        model = load(directory)
        loss, grads = gradients(model, clips)
        assert abs(loss / by_definition(model, clips) - 1) < 1e-6
        save_gradients(loss, grads, directory / "expected.safetensors")
        size = sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())
        print(f"{name}: loss {loss:.7f}, {size} bytes")


if __name__ == "__main__":
    main()
