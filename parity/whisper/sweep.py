"""Compares `ambitus generate` with transformers on random Whisper models.

    python sweep.py BINARY --count N [--seed S]
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

import draw

TOLERANCE = 1e-4


def one(binary: str, seed: int) -> float:
    r = random.Random(seed)
    heads = r.choice([1, 2, 4])
    dim = heads * r.choice([4, 8, 12, 64])
    vocab = r.randint(30, 3000)
    sizes = dict(
        vocab_size=vocab, d_model=dim, num_mel_bins=r.choice([80, 128]), encoder_layers=r.randint(1, 4), decoder_layers=r.randint(1, 4),
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=r.randint(8, 300), decoder_ffn_dim=r.randint(8, 300),
        max_source_positions=50 * r.choice([1, 2, 30]), max_target_positions=r.choice([40, 448]),
    )
    draws = lambda: [r.randrange(vocab) for _ in range(r.randint(0, vocab // 2))]
    never, first = (draws(), draws()) if r.random() < 0.5 else ([], [])
    generation = dict(eos_token_id=2, suppress_tokens=never, begin_suppress_tokens=first) if never or first else None
    made = draw.model(draw.config(**sizes), seed)
    new = r.randint(1, 20)
    clips = []
    for i in range(r.randint(1, 4)):
        wave = draw.sound(r.randint(1, 320 * made.config.max_source_positions), 100 * seed + i)
        prompt = [r.randrange(vocab) for _ in range(r.randint(1, 12))]
        clips.append({"wave": wave.float(), "prompt": torch.tensor(prompt)})
    wants = [draw.expected(made, c["wave"], c["prompt"].tolist(), new, never, first) for c in clips]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        draw.save(made, folder / "model", torch.float32, generation)
        draw.write(folder / "batch.safetensors", clips)
        command = [binary, "generate", "--model", folder / "model", "--batch", folder / "batch.safetensors", "--out", folder / "out.safetensors"]
        command += ["--logits", "--states", "--json", "--max-new", str(new), "--sequences", str(r.randint(1, 4))]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert said["measured_bytes"] <= said["planned_bytes"], said
        got = load_file(folder / "out.safetensors")
    worst = 0.0
    for i, want in enumerate(wants):
        assert got[f"clips.{i}.tokens"].tolist() == want["tokens"].tolist(), (i, got[f"clips.{i}.tokens"], want["tokens"])
        for leaf in ["states", "logits"]:
            have = got[f"clips.{i}.{leaf}"]
            assert have.shape == want[leaf].shape, (leaf, have.shape, want[leaf].shape)
            worst = max(worst, float((have - want[leaf]).abs().max() / want[leaf].abs().max()))
    assert worst < TOLERANCE, worst
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    torch.set_num_threads(1)
    worst = [one(a.binary, seed) for seed in range(a.seed, a.seed + a.count)]
    print(f"{a.count} models alike; the worst of states and logits is off by {max(worst):.1e} of the largest")


if __name__ == "__main__":
    main()
