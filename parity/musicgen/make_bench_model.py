"""Writes the model, clips and batch of the side-by-side with PyTorch (`benches/peers/run.py --peer musicgen`).

    python make_bench_model.py DIR [--clips 4] [--frames 250]

DIR/model      decoder of 8 layers, d 512, ffn 2048, 8 heads, 4 codebooks of 2,048 codes, as transformers saves it (random weights), with a
               text encoder of width 768 and a codec of 640 samples a frame that are small otherwise, and a tokenizer of letters
DIR/data       the clips as 32 kHz WAV with same-name .txt of 32 tokens, each exactly `frames` frames
DIR/batch.safetensors   the same clips' ids, with codes by transformers' codec (`ambitus gradients` and the peer read it)
"""

from __future__ import annotations

import argparse
import random
import struct
import wave
from pathlib import Path

import torch
from make import make_model
from reference import Clip, load, save_batch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

RATE, HOP = 32_000, 640
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,"
PIECES = ["<pad>", "</s>", "<unk>", "▁", *LETTERS]
# With the space before them and their end, 32 tokens.
TEXTS = ["A slow piano plays in the rain", "Loud drums and a bass at night", "Strings that hum an even chord", "One flute over a choir of wind"]


def tokenizer() -> Tokenizer:
    """A Unigram of letters in T5's form."""
    made = Tokenizer(models.Unigram([(piece, 0.0 if i < 3 else -2.0) for i, piece in enumerate(PIECES)], unk_id=2))
    made.add_special_tokens(PIECES[:3])
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    return made


def noise(path: Path, samples: int, seed: int) -> torch.Tensor:
    """Writes noise whose loudness changes; returns it as it is read, [samples]."""
    rng, loud = random.Random(seed), lambda i: 4000 + 3000 * (i // 3200 % 3)
    values = [rng.randint(-loud(i), loud(i)) for i in range(samples)]
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, samples, "NONE", ""))
        file.writeframes(struct.pack(f"<{samples}h", *values))
    return torch.tensor(values) / 32768


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--clips", type=int, default=4)
    parser.add_argument("--frames", type=int, default=250)
    args = parser.parse_args()

    folder, data = args.directory / "model", args.directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    make_model(
        folder, seed=5, gain=0.5,
        text=dict(d_model=768, d_kv=8, num_heads=1, d_ff=8, num_layers=1, vocab_size=len(PIECES)),
        decoder=dict(vocab_size=2048, num_codebooks=4, hidden_size=512, num_hidden_layers=8, num_attention_heads=8, ffn_dim=2048),
    )  # fmt: skip
    words = tokenizer()
    words.save(str(folder / "tokenizer.json"))
    codec = load(folder).model.audio_encoder
    clips = []
    for i in range(args.clips):
        text = TEXTS[i % len(TEXTS)]
        sound = noise(data / f"clip{i}.wav", args.frames * HOP, i)
        (data / f"clip{i}.txt").write_text(text + "\n", encoding="utf-8")
        with torch.no_grad():
            codes = codec.encode(sound[None, None]).audio_codes
        clips.append(Clip(torch.tensor(words.encode(text).ids), codes.reshape(-1, codes.shape[-1])))
        assert (clips[-1].frames, len(clips[-1].text_ids)) == (args.frames, 32), (clips[-1].frames, len(clips[-1].text_ids))
    save_batch(clips, args.directory / "batch.safetensors")
    print(f"{args.directory}: model, {len(clips)} clips of {args.frames} frames, {len(set(clips[0].codes.flatten().tolist()))} distinct codes in the first")


if __name__ == "__main__":
    main()
