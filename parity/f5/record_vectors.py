"""Records what the package does around the model: text, mel, resampling, schedules, the optimizer.

    python record_vectors.py          needs espeak-ng on the path for two speech-like waveforms

Writes into fixtures/: text_vectors.json, mel_vectors.safetensors, resample_vectors.safetensors; into ../schedules/fixtures/: trainer.json.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import soundfile
import torch
import torchaudio
from ema_pytorch import EMA
from safetensors.torch import save_file
from torch.optim import AdamW
from torch.optim.lr_scheduler import LinearLR, SequentialLR

import reference  # noqa: F401  (makes the package importable)
from f5_tts.model import modules
from f5_tts.model.utils import convert_char_to_pinyin
from texts import TEXTS

HERE = Path(__file__).parent / "fixtures"
RATE = 24_000


def text_vectors() -> None:
    rows = [{"text": t, "tokens": tokens} for t, tokens in zip(TEXTS, convert_char_to_pinyin(TEXTS))]
    body = ",\n".join(json.dumps(r, ensure_ascii=False) for r in rows)
    (HERE / "text_vectors.json").write_text(f"[\n{body}\n]\n", encoding="utf-8")
    print(f"text: {len(rows)} sentences")


def espeak(text: str, voice: str, start: float, seconds: float) -> tuple[torch.Tensor, int]:
    """A piece of synthetic speech [samples] and its rate."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.wav"
        subprocess.run(["espeak-ng", "-v", voice, "-w", str(path), text], check=True)
        samples, rate = soundfile.read(path, dtype="float32")
    first = int(start * rate)
    return torch.from_numpy(samples[first : first + int(seconds * rate)]).contiguous(), rate


def sweep(rate: int, seconds: float, top: float) -> torch.Tensor:
    """A linear sine sweep from 0 to `top` Hz, amplitude 0.5."""
    t = torch.arange(int(rate * seconds), dtype=torch.float64) / rate
    return (0.5 * torch.sin(torch.pi * top / seconds * t * t)).float()


def mel_vectors() -> None:
    torch.manual_seed(0)
    speech, rate = espeak("The quick brown fox jumps over the lazy dog.", "en", 0.35, 0.12)
    impulse = torch.zeros(1500)
    impulse[700] = 1.0
    waves = {
        "noise": torch.randn(3001) * 0.1,
        "sweep": sweep(RATE, 0.1, 12_000.0),
        "speech": torchaudio.transforms.Resample(rate, RATE)(speech),
        "impulse": impulse,
        "shortest": torch.randn(513) * 0.3,  # reflection needs more than n_fft/2 samples
        "silence": torch.zeros(1024),
        "whole_hops": torch.randn(8 * 256) * 0.9,
        "faint": torch.randn(900) * 1e-5,  # around the 1e-5 clamp
    }
    tensors = {}
    for name, wave in waves.items():
        log = modules.get_vocos_mel_spectrogram(wave[None])[0]
        (transform,) = modules.vocos_mel_stft_cache.values()  # the package's own transform, before clamp and log
        linear = transform(wave[None])[0]
        assert torch.equal(linear.clamp(min=1e-5).log(), log)
        # [frames, 100], as batches hold it; the package computes [100, frames]
        tensors |= {f"{name}.wave": wave, f"{name}.linear": linear.T.contiguous(), f"{name}.log": log.T.contiguous()}
    save_file(tensors, str(HERE / "mel_vectors.safetensors"))
    lengths = (f"{n} {len(w)} samples -> {len(tensors[f'{n}.log'])} frames" for n, w in waves.items())
    print("mel:", ", ".join(lengths))


def resample_vectors() -> None:
    torch.manual_seed(1)
    tensors = {}
    for rate in (8_000, 11_025, 16_000, 22_050, 32_000, 44_100, 48_000, 96_000):
        count = min(1_400, rate // 16) + 7  # not a whole number of the ratio's periods
        for name, wave in (("noise", torch.randn(count) * 0.2), ("sweep", sweep(rate, count / rate, rate / 2)[:count])):
            out = torchaudio.transforms.Resample(rate, RATE)(wave)
            tensors |= {f"{rate}.{name}.input": wave.contiguous(), f"{rate}.{name}.output": out.contiguous()}
    save_file(tensors, str(HERE / "resample_vectors.safetensors"))
    print(f"resample: {len(tensors) // 2} pairs")


def ema_sequence(start: int, updates: int) -> list[list]:
    """[step before the update, what EMA does, weight of the old EMA] for the trainer's arguments (all defaults)."""
    net = torch.nn.Linear(1, 1, bias=False)
    ema = EMA(net, include_online_model=False)
    if start:
        ema.step.fill_(start)
        ema.initted.fill_(True)
    rows = []
    for _ in range(updates):
        step, old = int(ema.step), 0.0
        ema.ema_model.weight.data.fill_(old)
        net.weight.data.fill_(1.0)
        ema.update()
        now = float(ema.ema_model.weight)
        if now == 0.0:
            rows.append([step, "keep", 1.0])
        elif step <= ema.update_after_step or not start and step == 0:
            assert now == 1.0
            rows.append([step, "copy", 0.0])
        else:
            rows.append([step, "blend", ema.get_current_decay()])
            assert abs((1.0 - now) - rows[-1][2]) < 1e-6
    return rows


def learning_rates(warmup: int, total: int, base: float = 1.0) -> list[float]:
    """The rate used by updates 0..total-1 under the trainer's schedule, and one more."""
    optimizer = AdamW([torch.nn.Parameter(torch.zeros(1))], lr=base)
    parts = [
        LinearLR(optimizer, start_factor=1e-8, end_factor=1.0, total_iters=warmup),
        LinearLR(optimizer, start_factor=1.0, end_factor=1e-8, total_iters=total - warmup),
    ]
    scheduler = SequentialLR(optimizer, schedulers=parts, milestones=[warmup])
    rates = []
    for _ in range(total + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def optimizer_sequence() -> dict:
    """Six clipped AdamW updates of two small tensors with given gradients: the trainer's optimizer and clip."""
    torch.manual_seed(2)
    params = [torch.nn.Parameter(torch.randn(5)), torch.nn.Parameter(torch.randn(3))]
    optimizer = AdamW(params, lr=0.01)
    record = {"lr": 0.01, "max_grad_norm": 1.0, "initial": [p.tolist() for p in params], "updates": []}
    for scale in (3.0, 0.1, 1.0, 0.0, 1e-4, 10.0):
        grads = [torch.randn_like(p) * scale for p in params]
        for p, g in zip(params, grads):
            p.grad = g.clone()
        norm = torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        record["updates"].append({"gradients": [g.tolist() for g in grads], "norm": float(norm), "parameters": [p.tolist() for p in params]})
    return record


def schedule_vectors() -> None:
    shapes = [(1, 10), (5, 50), (100, 300), (20, 21)]
    record = {
        "ema": {"beta": 0.9999, "update_after_step": 100, "update_every": 10, "inv_gamma": 1.0, "power": "2/3", "min_value": 0.0},
        "ema_from_0": ema_sequence(0, 301),
        "ema_from_1200000": ema_sequence(1_200_000, 21),
        "learning_rate": [{"warmup": w, "total": t, "base": 1.0, "rates": learning_rates(w, t)} for w, t in shapes],
        "adamw": optimizer_sequence(),
    }
    body = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in record.items())
    (HERE.parent.parent / "schedules" / "fixtures" / "trainer.json").write_text("{\n" + body + "\n}\n", encoding="utf-8")
    print("schedules: ema, learning rate, adamw")


def main() -> None:
    text_vectors()
    mel_vectors()
    resample_vectors()
    schedule_vectors()


if __name__ == "__main__":
    main()
