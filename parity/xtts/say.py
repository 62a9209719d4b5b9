"""Speech: what coqui-tts' `Xtts.inference` makes of a clip and a text beside `ambitus say`, sample by sample.

    python say.py BINARY [--count N --seed S]     random models with the published vocoder's shape, clips, texts and speeds

A model is an `Xtts` of random weights in the released layout. The reference is conditioned on the clip with the lengths of config.json, and
writes greedily, one beam, with the package's penalty of repetition, as many codes as the binary at most. Samples must be within 1e-4 of the
largest and half a step of the file's 16 bits, and the binary within its plan; where the two likeliest codes are too near to tell, the case is drawn again.
"""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import subprocess
import tempfile
import wave
from pathlib import Path

import numpy as np
import torch
from make import random_like
from sweep import sweep_sets
from TTS.tts.configs.xtts_config import XttsConfig
from TTS.tts.layers.xtts.tokenizer import VoiceBpeTokenizer
from TTS.tts.models.xtts import Xtts, XttsArgs

PARITY = Path(__file__).resolve().parents[1]
VOCAB = PARITY / "xtts_text/fixtures/vocab.json"
_spec = importlib.util.spec_from_file_location("hifigan_reference", PARITY / "hifigan" / "reference.py")
hifigan = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(hifigan)

TEXTS = ["Hello there.", "It is 5 o'clock, Dr. Smith.", "A voice of its own, and $3.50!", "One, two, three."]
SPEEDS = [1.0, 0.8, 1.25, 1.7, 2.0, 0.5, 0.93]
AUDIO = 1e-4
PENALTY = 10.0  # of `Xtts.inference`
MARGIN = 1e-3


def make(folder: Path, rng: random.Random) -> Xtts:
    folder.mkdir()
    shutil.copy(VOCAB, folder / "vocab.json")
    dim, heads = rng.choice([(24, 2), (32, 4), (40, 5), (64, 4)])
    codes = rng.randint(40, 300)
    args = XttsArgs(
        gpt_layers=rng.randint(1, 3), gpt_n_model_channels=dim, gpt_n_heads=heads, decoder_input_dim=dim, d_vector_dim=512,
        gpt_num_audio_tokens=codes,
        gpt_start_audio_token=codes - 2, gpt_stop_audio_token=codes - 1, gpt_use_perceiver_resampler=True,
        cond_d_vector_in_each_upsampling_layer=rng.random() < 0.8,
    )  # fmt: skip
    config = XttsConfig(model_args=args, gpt_cond_chunk_len=rng.choice([2, 4, 6]), gpt_cond_len=rng.choice([3, 12, 30]), sound_norm_refs=rng.random() < 0.5)
    config.save_json(folder / "config.json")
    model = Xtts(config)
    model.tokenizer = VoiceBpeTokenizer(vocab_file=str(folder / "vocab.json"))
    model.init_models()
    seed = rng.randrange(1 << 30)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, p in model.gpt.named_parameters():
            # Of a larger gain the conditioning encoder amplifies rounding.
            p.copy_(random_like(name, p, 1.0 if name.startswith("conditioning_") else 1.5))
        hifigan.randomise(model.hifigan_decoder, seed, torch.float32)
        model.mel_stats.copy_(-(2 + 4 * torch.rand(80)))
    torch.save({"model": model.state_dict()}, folder / "model.pth")
    torch.save(model.mel_stats, folder / "mel_stats.pth")
    model.gpt.init_gpt_for_inference(kv_cache=True)
    model.eval()
    return model


def clip(path: Path, rng: random.Random) -> None:
    """A sound of the model's own rate."""
    n = round(22_050 * rng.uniform(0.5, 9))
    t, g = np.arange(n) / 22_050, np.random.default_rng(rng.randrange(1 << 30))
    x = sum(0.2 * np.sin(2 * np.pi * f * t * (1 + 0.1 * t)) for f in g.uniform(80, 3000, 4)) + 0.02 * g.standard_normal(n)
    with wave.open(str(path), "wb") as to:
        to.setnchannels(1), to.setsampwidth(2), to.setframerate(22_050)
        to.writeframes((np.clip(x, -1, 1) * 32767).astype("<i2").tobytes())


@torch.no_grad()
def reference(model: Xtts, sound: Path, text: str, speed: float, most: int) -> tuple[np.ndarray, float]:
    """Samples, and by how much of the largest logit the nearest decision was taken."""
    c = model.config
    latents, voice = model.get_conditioning_latents(
        str(sound), max_ref_length=c.max_ref_len, gpt_cond_len=c.gpt_cond_len, gpt_cond_chunk_len=c.gpt_cond_chunk_len, sound_norm_refs=c.sound_norm_refs
    )  # fmt: skip
    model.gpt.max_gen_mel_tokens = most
    margins, generate = [], model.gpt.generate

    def watched(*args, **more):
        codes, out = generate(*args, **more, return_dict_in_generate=True, output_scores=True)
        for scores in out.scores:
            top = scores[0].topk(2).values
            margins.append(float((top[0] - top[1]) / scores[0].abs().max()))
        return codes

    model.gpt.generate = watched
    try:
        said = model.inference(text, "en", latents, voice, do_sample=False, repetition_penalty=PENALTY, speed=speed)
    finally:
        del model.gpt.generate
    return said["wav"], min(margins)


def run_case(binary: str, directory: Path, seed: int) -> str:
    rng = random.Random(seed)
    model = make(directory / "model", rng)
    clip(directory / "clip.wav", rng)
    while True:
        text, speed, most = rng.choice(TEXTS), rng.choice(SPEEDS), rng.randint(2, 24)
        want, margin = reference(model, directory / "clip.wav", text, speed, most)
        if margin > MARGIN:
            break
    command = [binary, "say", str(directory / "model"), text, "--ref", str(directory / "clip.wav"), "--language", "en", "--greedy", "--speed", str(speed)]
    command += ["--max-new", str(most), "--threads", "2", "--json", "-o", str(directory / "out.wav")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    taken = json.loads(done.stdout)
    assert taken["measured_bytes"] <= taken["planned_bytes"], taken
    with wave.open(str(directory / "out.wav")) as f:
        assert f.getframerate() == 24_000
        got = np.frombuffer(f.readframes(f.getnframes()), "<i2") / 32767
    assert len(got) == len(want), f"{len(got)} samples, not {len(want)}"
    largest = np.abs(want).max()
    off = np.abs(got - np.clip(want, -1, 1)).max()
    assert off <= AUDIO * largest + 0.5 / 32767 + 1e-7, f"off by {off:.1e} of {largest:.1e}"
    return f"{len(want)} samples at speed {speed} of {most} codes at most: off by {off:.1e}, the largest is {largest:.2f}"


def sweep(binary: str, count: int, seed: int) -> None:
    for case in range(seed, seed + count):
        with tempfile.TemporaryDirectory() as directory:
            print(f"case {case}: {run_case(binary, Path(directory), case)}", flush=True)


if __name__ == "__main__":
    sweep_sets.generate_main(lambda: None, sweep, __doc__)
