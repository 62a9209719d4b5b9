"""Speech: samples of piper1-gpl's `SynthesizerTrn.infer` beside those of `ambitus generate`, on the same noise.

    PIPER1=/path/to/piper1-gpl python generate.py BINARY [--count N --seed S]     random voices, texts and scales, through the binary
    PIPER1=/path/to/piper1-gpl python generate.py --record                        writes generate.safetensors of the fixtures

A text is drawn again where fp32 does not tell how many frames a phoneme has: a duration is within `NEAR` of a whole number of frames.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import torch
from make import hyper_parameters, make_model
from reference import Players, load
from safetensors.torch import load_file, save_file
from sweep import random_case

sys.path.append(str(Path(__file__).resolve().parent.parent))
from sweep_sets import generate_main  # noqa: E402

FIXTURES = Path(__file__).resolve().parent / "fixtures"
TOLERANCE = 1e-4  # of a sample, which is at most 1
NEAR = 1e-3
MOST = 3000  # frames
SILENT = (0.0, 1.0, 0.0)  # no noise at all
USUAL = (0.667, 1.0, 0.8)


def infer(players: Players, clip: dict, g: torch.Generator) -> tuple[dict, bool]:
    """What `infer` makes of a clip, with the noise that it drew; and whether its durations are clear. Everything is [rows, columns]."""
    drawn, asked = {}, []
    randn, ceil = torch.randn, torch.ceil

    def of_durations(*size):
        return drawn.setdefault("noise_w", randn(size, generator=g))

    def of_frames(like):
        return drawn.setdefault("noise", randn(like.shape, generator=g))

    def whole(w):
        asked.append(w)
        return ceil(w)

    scale, length, scale_w = clip["scales"].tolist()
    ids = clip["phoneme_ids"][None]
    with torch.no_grad(), ExitStack() as now:
        for name, given in {"randn": of_durations, "randn_like": of_frames, "ceil": whole}.items():
            now.enter_context(patch.object(torch, name, given))
        wave, attn, _, _ = players.g.infer(
            ids, torch.tensor([ids.shape[1]]), clip.get("speaker"), noise_scale=scale, length_scale=length, noise_scale_w=scale_w
        )  # fmt: skip
    assert len(asked) == 1
    w = asked[0].flatten()
    near = (w - w.round()).abs() / w.clamp(min=1)
    out = {name: x[0].T for name, x in drawn.items()} | {"wave": wave.flatten(), "durations": attn[0, 0].sum(0).long()}
    return out, bool((near > NEAR).all()) and out["noise"].shape[0] <= MOST


def draw(players: Players, g: torch.Generator, phonemes: int, scales: tuple[float, float, float]) -> dict:
    """A text in a voice, and what the reference makes of it."""
    said = players.said
    while True:
        clip = {"phoneme_ids": torch.randint(players.g.n_vocab, (phonemes,), generator=g), "scales": torch.tensor(scales)}
        if said["num_speakers"] > 1:
            clip["speaker"] = torch.randint(said["num_speakers"], (1,), generator=g)
        made, clear = infer(players, clip, g)
        if clear:
            return clip | made


def save(clips: list[dict], path: Path) -> None:
    save_file({f"clips.{i}.{name}": t.contiguous() for i, c in enumerate(clips) for name, t in c.items()}, str(path))


def run(binary: str, folder: Path, clips: list[dict], threads: int) -> dict:
    save([{n: x for n, x in c.items() if n not in ("wave", "durations")} for c in clips], folder / "batch.safetensors")
    out = folder / "out.safetensors"
    command = [binary, "generate", "--model", folder / "model", "--batch", folder / "batch.safetensors", "--out", out, "--threads", threads]
    subprocess.run([str(c) for c in command], check=True, capture_output=True)
    return load_file(str(out))


def sweep(binary: str, count: int, first: int) -> None:
    worst = 0.0
    for seed in range(first, first + count):
        rng, g = random.Random(seed), torch.Generator().manual_seed(seed)
        given, sizes, more = random_case(rng)
        with tempfile.TemporaryDirectory() as folder:
            folder, said = Path(folder), hyper_parameters(**given)
            make_model(folder / "model", seed, said, sizes, **more)
            players = load(folder / "model")
            scales = [SILENT, USUAL, (round(rng.uniform(0, 1.5), 3), round(rng.uniform(0.3, 4), 3), round(rng.uniform(0, 1.2), 3))]
            clips = [draw(players, g, rng.choice([1, 2, 5, 20, 60]), s) for s in scales]
            kept = None
            for threads in (1, 2):
                got = run(binary, folder, clips, threads)
                assert kept is None or all(torch.equal(x, got[n]) for n, x in kept.items()), f"seed {seed}: other bits"
                kept = got
            # Without any noise none need be given.
            silent = run(binary, folder, [{n: x for n, x in clips[0].items() if not n.startswith("noise")}, *clips[1:]], 1)
            assert torch.equal(silent["clips.0.wave"], kept["clips.0.wave"]), f"seed {seed}: noise at a scale of 0"
            for i, clip in enumerate(clips):
                assert torch.equal(kept[f"clips.{i}.durations"], clip["durations"]), f"seed {seed}, clip {i}: other durations"
                error = float((kept[f"clips.{i}.wave"] - clip["wave"]).abs().max())
                worst = max(worst, error)
                assert error <= TOLERANCE, f"seed {seed}, clip {i}: {error:.1e}"
            frames = [len(c["noise"]) for c in clips]
            speakers = said["num_speakers"]
            print(f"seed {seed}: {speakers} speakers, sdp {said['use_sdp']}, resblock {said['resblock']}, {frames} frames of {said['hop_length']}: ok", flush=True)
    print(f"{count} cases, worst {worst:.1e} of {TOLERANCE}")


def record() -> None:
    for seed, name in enumerate(["base", "speakers", "plain"]):
        players, g = load(FIXTURES / name), torch.Generator().manual_seed(seed)
        # The last one is longer than a window.
        clips = [draw(players, g, phonemes, scales) for phonemes, scales in [(7, SILENT), (1, USUAL), (60, (0.5, 6.0, 0.4))]]
        save(clips, FIXTURES / name / "generate.safetensors")
        size = (FIXTURES / name / "generate.safetensors").stat().st_size
        print(f"{name}: {[len(c['noise']) for c in clips]} frames, loudest {max(float(c['wave'].abs().max()) for c in clips):.2f}, {size} bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    generate_main(record, sweep, __doc__)
