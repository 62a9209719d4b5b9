"""Records what the package makes of a small DVAE and of mel front ends, for the tests of `ambitus-data`, `ambitus-models` and
`ambitus-families`.

    VENV/bin/pip install coqui-tts==0.28.0 transformers==4.57.6
    VENV/bin/python record.py

fixtures/small: `dvae.pth` and `mel_stats.pth` as the package's folders have them (random, of 16 bits). expected.safetensors: `wave`
[12288] at 22,050 Hz; for N of its samples, from the start, `codes.N` i64 and, of few, `mel.N` [80, M] (divided by the
statistics) and `decoded.N` [80, 4 codes].
fixtures/mels.safetensors: `wave` at 22,050 Hz, `conditioning` and `dvae` [80, M], not divided; `wave16`, `emphasised` and
`speaker` [64, M] of the speaker encoder's front end at 16 kHz, before and after its norm over time (`normed`).
"""

from pathlib import Path

import numpy as np
import torch
from reference import decode, encode, margins, mel, random_dvae, save, sound, stats
from safetensors.torch import save_file
from TTS.encoder.models.resnet import ResNetSpeakerEncoder
from TTS.tts.layers.xtts.dvae import dvae_wav_to_mel
from TTS.tts.models.xtts import wav_to_mel_cloning

HERE = Path(__file__).parent / "fixtures"
LENGTHS = (12288, 12287, 5000, 600)
SHORT = (5000, 600)


@torch.no_grad()
def dvae() -> None:
    norms = stats(80, 5)
    wave = sound(np.random.default_rng(3), max(LENGTHS))
    for seed in range(1000):
        model = random_dvae(mel(wave, norms), 6, 8, 48, 2, seed, torch.float16)
        least = min(float(margins(model, mel(wave[:n], norms)).min()) for n in LENGTHS)
        if least > 2e-3:
            break
    out = {"wave": torch.from_numpy(wave)}
    for n in LENGTHS:
        frames = mel(wave[:n], norms)
        codes = encode(model, frames)
        assert len(codes) == -(-(-(-frames.shape[1] // 2)) // 2) == n // 1024 + 1
        out[f"codes.{n}"] = codes
        if n in SHORT:
            out |= {f"mel.{n}": frames.contiguous(), f"decoded.{n}": decode(model, codes).contiguous()}
        print(f"{n} samples: {len(codes)} codes, {len(set(codes.tolist()))} distinct")
    save(model, norms, HERE / "small", torch.float16)
    save_file(out, HERE / "small" / "expected.safetensors")
    print(f"seed {seed}, margin {least:.1e}")


@torch.no_grad()
def mels() -> None:
    wave = sound(np.random.default_rng(4), 3000)
    x = torch.from_numpy(wave)[None]
    one = torch.ones(80)
    settings = dict(n_fft=2048, hop_length=256, win_length=1024, power=2, normalized=False, sample_rate=22050, f_min=0, f_max=8000, n_mels=80)
    out = {"wave": x[0], "conditioning": wav_to_mel_cloning(x, mel_norms=one, **settings)[0], "dvae": dvae_wav_to_mel(x, mel_norms=one)[0]}
    config = {"fft_size": 512, "win_length": 400, "hop_length": 160, "sample_rate": 16000, "preemphasis": 0.97, "num_mels": 64}
    encoder = ResNetSpeakerEncoder(layers=[1, 1, 1, 1], num_filters=[8, 8, 8, 8], log_input=True, use_torch_spec=True, audio_config=config)
    y = torch.from_numpy(sound(np.random.default_rng(5), 2001))[None]
    rows = (encoder.torch_spec(y) + 1e-6).log()
    out |= {"wave16": y[0], "emphasised": encoder.torch_spec[0](y)[0], "speaker": rows[0], "normed": encoder.instancenorm(rows)[0]}
    save_file({k: v.contiguous() for k, v in out.items()}, HERE / "mels.safetensors")
    print({k: tuple(v.shape) for k, v in out.items()})


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    mels()
    dvae()
