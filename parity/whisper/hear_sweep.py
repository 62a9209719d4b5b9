"""Compares `ambitus transcribe` with openai-whisper on random models over the package's own vocabulary.

    python hear_sweep.py BINARY --count N [--seed S]

Of each model a drawn sound is heard at temperature 0 (text, segments, word times within 20 ms), and drawn texts are scored (words, sums of
log-probabilities to 1e-5).
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import wave
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import whisper
from whisper.model import Whisper
from whisper.tokenizer import get_tokenizer

import draw
import package

STEP = 0.0201
TEXTS = [
    "Hello, world! It's 3.14 o'clock (or so).", "naïve café — “quoted” … déjà vu", "日本語のテキストです。", "多言語 mixed 文章 ok?", "emoji 🙂🙃 here",
    "a\tb  c", "UPPER lower MiXeD 1,000,000", "don't won't I'll she'd", "[brackets] {braces} <tags>", "e\u0301 combining", "ทดสอบภาษาไทย", "-- dashes - and 'quotes'",
]


def merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The pair that each token is made of: what byte pair encoding leaves of it by the tokens before it."""
    out = []
    for word, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(word) < 2:
            continue
        parts = [bytes([b]) for b in word]
        while len(parts) > 2:
            pairs = [ranks.get(a + b, rank) for a, b in zip(parts, parts[1:])]
            i = min(range(len(pairs)), key=pairs.__getitem__)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        out.append(tuple(parts))
    return out


def tokenizer_json() -> dict:
    t = get_tokenizer(True, num_languages=99, language="en", task="transcribe")
    ranks = t.encoding._mergeable_ranks
    with mock.patch.object(package, "NAMES", []):
        out = package.tokenizer_json(ranks, merges(ranks))
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    out["added_tokens"] = [dict(id=i, content=name, **flags) for name, i in sorted(t.special_tokens.items(), key=lambda item: item[1])]
    return out


def save_wave(path: Path, audio: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(draw.RATE)
        file.writeframes(audio.tobytes())


def close(a: float, b: float, by: float, what: object) -> None:
    assert abs(a - b) <= by, (a, b, what)


def run(binary: str, *args: object) -> list[dict]:
    done = subprocess.run([binary, "transcribe", *map(str, args), "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(line["measured_bytes"] <= line["planned_bytes"] for line in lines), lines
    return lines


@torch.no_grad()
def one(binary: str, seed: int, vocabulary: dict) -> None:
    r = random.Random(seed)
    heads, layers = r.choice([1, 2, 4]), r.randint(1, 4)
    cfg = draw.config(
        vocab_size=51865, d_model=8 * heads, num_mel_bins=80, encoder_layers=r.randint(1, 2), decoder_layers=layers, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=32 * heads, decoder_ffn_dim=32 * heads, max_source_positions=1500, max_target_positions=448,
        eos_token_id=50257, pad_token_id=50257, bos_token_id=50257, decoder_start_token_id=50258,
    )
    made = draw.model(cfg, seed)
    # Less sure of one token than of all others.
    made.model.decoder.embed_tokens.weight.mul_(r.choice([0.5, 1.0, 2.0]))
    looks = sorted({(r.randrange(layers), r.randrange(heads)) for _ in range(3)})
    model = package.package_model(made, looks)
    samples = r.randint(8000, 70 * draw.RATE)
    audio = (draw.sound(samples, seed).float() * 20000 * (1 + torch.sin(torch.arange(samples) / 30000))).numpy().astype(np.int16)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        draw.save(made, folder / "model", torch.float32, dict(alignment_heads=[list(h) for h in looks], is_multilingual=True, eos_token_id=50257))
        (folder / "model" / "tokenizer.json").write_text(json.dumps(vocabulary))
        save_wave(folder / "a.wav", audio)
        clip = audio[: 20 * draw.RATE]
        save_wave(folder / "b.wav", clip)
        got = run(binary, folder / "a.wav", "--model", folder / "model", "--no-fallback")[0]
        pcm = torch.from_numpy(audio.astype(np.float32) / 32768)
        want = whisper.transcribe(model, pcm, temperature=0.0, word_timestamps=True, verbose=None, fp16=False)
        assert got["language"] == want["language"], (got["language"], want["language"])
        segments = [s for s in want["segments"] if s["text"]]
        assert [s["text"] for s in got["segments"]] == [s["text"] for s in segments]
        for have, of in zip(got["segments"], segments):
            close(have["start"], of["start"], STEP, of)
            close(have["end"], of["end"], STEP, of)
            assert [w["word"] for w in have["words"]] == [w["word"] for w in of["words"]]
            for a, b in zip(have["words"], of["words"]):
                close(a["start"], b["start"], STEP, (a, b))
                close(a["end"], b["end"], STEP, (a, b))
        texts = r.sample(TEXTS, 4)
        (folder / "texts").write_text("\n".join(texts))
        language = r.choice(["en", "de", "ja", "zh"])
        lines = run(binary, *[folder / "b.wav"] * 4, "--model", folder / "model", "--text", folder / "texts", "--language", language)
        own = get_tokenizer(True, num_languages=99, language=language, task="transcribe")
        mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(torch.from_numpy(clip.astype(np.float32) / 32768)))
        for line, text in zip(lines, texts):
            ids = own.encode(" " + text.strip())
            every = [*own.sot_sequence, own.no_timestamps, *ids, own.eot]
            logprobs = model(mel[None], torch.tensor([every])).double().log_softmax(-1)[0]
            words, of_words = own.split_to_word_tokens(ids)
            assert [w["word"] for w in line["words"]] == words, (line["words"], words)
            at = len(own.sot_sequence)
            for have, tokens in zip(line["words"], of_words):
                want = sum(float(logprobs[at + i, id]) for i, id in enumerate(tokens))
                close(have["logprob"], want, 1e-5 * max(1, abs(want)), have)
                at += len(tokens)
            close(line["end_logprob"], float(logprobs[at, own.eot]), 1e-4, line)
    print(f"seed {seed}: {samples / draw.RATE:.1f} s, {len(segments)} segments, {sum(len(s['words']) for s in segments)} words", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    torch.set_num_threads(1)
    vocabulary = tokenizer_json()
    for seed in range(a.seed, a.seed + a.count):
        one(a.binary, seed, vocabulary)
    print(f"{a.count} models alike")


if __name__ == "__main__":
    main()
