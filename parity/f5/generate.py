"""Generation: mel frames of the package's `CFM.sample` beside those of `ambitus generate`, on the same noise.

    python generate.py BINARY [--count N --seed S]     random models, clips and settings, through the binary
    python generate.py --record                        writes generate.safetensors of the fixtures v1 and v0
"""

from __future__ import annotations

import random
import subprocess
import tempfile
from pathlib import Path

import torch
from make import make_model
from reference import MEL_CHANNELS, load
from safetensors.torch import load_file, save_file

from f5_tts.model import cfm  # noqa: E402  (reference opens the package)
from sweep import random_case
from sweep_sets import generate_main  # sweep says where it is

FIXTURES = Path(__file__).resolve().parent / "fixtures"
# Relative L2 over the generated frames.
TOLERANCE = 1e-4


def sampler(directory: Path) -> cfm.CFM:
    model = load(directory).eval()
    return cfm.CFM(transformer=model, mel_spec_kwargs=dict(n_mel_channels=MEL_CHANNELS), odeint_kwargs=dict(method="euler"))


def reference(model: cfm.CFM, clip: dict, steps: int, cfg: float, sway: float) -> torch.Tensor:
    """`sample` on the clip's noise: its only draw is `torch.randn(frames, 100)`."""
    frames, randn = int(clip["frames"]), torch.randn

    def given(*shape, **_):
        assert shape[0] == frames and shape[1] == MEL_CHANNELS
        return clip["x0"].clone()

    cfm.torch.randn = given
    try:
        out, _ = model.sample(clip["ref_mel"][None], clip["text"][None], frames, steps=steps, cfg_strength=cfg,
                              sway_sampling_coef=sway if sway != 0 else None)
    finally:
        cfm.torch.randn = randn
    return out[0]


def draw(g: torch.Generator, rng: random.Random, vocab: int) -> dict:
    reference, tokens = rng.randint(2, 40), rng.randint(1, 50)
    frames = max(reference, tokens) + rng.randint(1, 60)
    return {
        "ref_mel": torch.randn(reference, MEL_CHANNELS, generator=g),
        "text": torch.randint(vocab, (tokens,), generator=g),
        "frames": torch.tensor([frames]),
        "x0": torch.randn(frames, MEL_CHANNELS, generator=g),
    }


def save(clips: list[dict], path: Path) -> None:
    save_file({f"clips.{i}.{name}": t.contiguous() for i, c in enumerate(clips) for name, t in c.items()}, str(path))


def sweep(binary: str, count: int, first: int) -> None:
    worst = 0.0
    for seed in range(first, first + count):
        rng, g = random.Random(seed), torch.Generator().manual_seed(seed)
        arch, _ = random_case(rng)
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            make_model(folder / "model", seed, **arch)
            clips = [draw(g, rng, arch["vocab_size"]) for _ in range(rng.choice([1, 2, 3]))]
            save(clips, folder / "batch.safetensors")
            steps, cfg, sway = rng.choice([1, 5, 7, 8, 16, 32]), rng.choice([0.0, 1.0, 2.0]), rng.choice([-1.0, 0.0, 0.4])
            model = sampler(folder / "model")
            want = [reference(model, c, steps, cfg, sway) for c in clips]
            out = folder / "out.safetensors"
            for threads in ["1", "2"]:
                command = [binary, "generate", "--model", folder / "model", "--batch", folder / "batch.safetensors", "--out", out]
                command += ["--steps", steps, "--cfg", cfg, "--sway", sway, "--threads", threads]
                subprocess.run([str(c) for c in command], check=True, capture_output=True)
                got = load_file(str(out))
                for i, (clip, w) in enumerate(zip(clips, want)):
                    mel, n = got[f"clips.{i}.mel"], len(clip["ref_mel"])
                    assert torch.equal(mel[:n], clip["ref_mel"]), f"seed {seed}: the reference is not as it was"
                    error = float((mel[n:] - w[n:]).norm() / w[n:].norm())
                    worst = max(worst, error)
                    assert error <= TOLERANCE, f"seed {seed}, clip {i}: {error:.1e}"
            print(f"seed {seed}: {arch['variant']}, {len(clips)} clips, {steps} steps, cfg {cfg}, sway {sway}: ok", flush=True)
    print(f"{count} cases, worst {worst:.1e} of {TOLERANCE}")


def record() -> None:
    for seed, name in enumerate(["v1", "v0"]):
        rng, g = random.Random(seed), torch.Generator().manual_seed(seed)
        model = sampler(FIXTURES / name)
        clips = []
        for reference_frames, tokens, frames in [(5, 7, 12), (3, 2, 9)]:
            clip = {"ref_mel": torch.randn(reference_frames, MEL_CHANNELS, generator=g), "text": torch.randint(4, (tokens,), generator=g),
                    "frames": torch.tensor([frames]), "x0": torch.randn(frames, MEL_CHANNELS, generator=g)}
            clip["guided"] = reference(model, clip, 5, 2.0, -1.0)
            clip["plain"] = reference(model, clip, 4, 0.0, 0.0)
            clips.append(clip)
        save(clips, FIXTURES / name / "generate.safetensors")


if __name__ == "__main__":
    generate_main(record, sweep, __doc__)
