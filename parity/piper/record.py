"""Writes fixtures/{base,speakers,plain}: a folder as a trainer leaves it (`model.ckpt`, `config.json`), `batch.safetensors`, and
`expected.safetensors` with the losses, paths and every gradient of both players.

    PIPER1=/path/to/piper1-gpl python record.py [--debug DIR]

Checked on the way: gradients beside finite differences, in float64; clips one at a time beside the padded batch; the search beside
every path there is. --debug DIR writes DIR/NAME.safetensors as well: `clips.i.STAGE` of every stage, [T, C]; of the discriminators
`clips.i.maps.D.LAYER.{made,real}` [C, n] or [C, n, period], and the nearest decision of the alignment.
"""

from __future__ import annotations

import argparse
import itertools
import math
import shutil
from pathlib import Path

import numpy as np
import torch
from make import hyper_parameters, make_batch, make_model
from reference import DP, Clip, Gradients, Players, dp_errors, gradients, load, losses, otherwise, save_batch, save_gradients, search
from safetensors.torch import save_file

FIXTURES = Path(__file__).resolve().parent / "fixtures"
SMALL = dict(scale=(2, 4, 4, 4, 4, 4), groups=(1, 2, 2, 4, 2, 1), period=(2, 3, 4, 4, 4))
# Hyper-parameters, sizes, phonemes and frames of the clips.
CASES = {
    # A clip of one slice.
    "base": (dict(inter=4, hidden=6), SMALL, [(9, 14), (5, 23), (4, 8)]),
    # The older trainer's hyper-parameters, with paths among them.
    "speakers": (
        dict(
            num_speakers=3, gin_channels=4, resblock="1", kernels=(3, 5), dilations=((1, 3, 5), (1, 2, 3)), rates=(4, 2, 2), channels=16, up_kernels=(8, 4, 4),
            win_length=48, mel_channels=8, mel_fmin=60.0, mel_fmax=7000.0, inter=4, hidden=6, heads=3, older=True,
        ),
        SMALL, [(3, 12), (8, 17), (5, 9)],
    ),
    # Sequences are lists; factors are not the usual ones.
    "plain": (
        dict(sample_rate=16000, use_sdp=False, rates=(8, 2), up_kernels=(12, 4), inter=6, hidden=8, heads=1, layers=1, kernel=5, c_mel=30, c_kl=0.5, lists=True),
        SMALL, [(11, 19), (6, 9), (1, 10)],
    ),
}  # fmt: skip
SEEDS = {"base": 1, "speakers": 3, "plain": 3}


def check_search() -> None:
    """The path's sum is the largest of all paths'."""
    g = np.random.default_rng(0)
    for frames, rows in [(1, 1), (4, 1), (4, 4), (7, 3), (9, 5)]:
        values = g.standard_normal((frames, rows))
        paths = [np.searchsorted(ends, np.arange(frames), side="right") for ends in itertools.combinations(range(1, frames), rows - 1)]
        best = max(paths, key=lambda path: values[np.arange(frames), path].sum())
        assert (search(values)[0] == best).all()


def check_gradients(exact: Players, clips: list[Clip], want: Gradients) -> float:
    """In float64 and on given paths, the slope of a loss along a random direction of one tensor beside its gradient; the largest
    difference, of what is allowed. What the duration loss has of other tensors is no gradient: its inputs are detached."""
    g, worst, step = torch.Generator().manual_seed(0), 0.0, 1e-6
    for player in "gd":
        named = exact.named(player)
        for name in sorted(named)[:: max(1, len(named) // 25)]:
            p = named[name]
            if want.grads[name].norm() < 1e-9:
                continue
            direction = torch.randn(p.shape, generator=g, dtype=torch.float64)
            ends = []
            for sign in (1, -1):
                with torch.no_grad():
                    p += sign * step * direction
                of = gradients(exact, clips, want.paths).losses
                ends.append(of[f"loss.{player}"] - (of["loss.dur"] if player == "g" and not name.startswith(DP) else 0))
                with torch.no_grad():
                    p -= sign * step * direction
            slope, wanted = (ends[0] - ends[1]) / (2 * step), float((want.grads[name] * direction).sum())
            # What is left is the step's curvature, and the rounding of the losses themselves.
            allowed = 1e-4 * max(abs(wanted), 0.1 * float(want.grads[name].norm())) + 1e-14 * want.losses[f"loss.{player}"] / step
            worst = max(worst, abs(slope - wanted) / allowed)
            assert worst < 1, (name, slope, wanted)
    return worst


def check_padded(exact: Players, clips: list[Clip], want: Gradients) -> None:
    """The trainer's padded batch has the same losses and gradients: no padding enters where every clip has a slice's frames."""
    padded = gradients(exact, clips, want.paths, together=True)
    assert all(abs(padded.losses[n] / x - 1) < 1e-12 for n, x in want.losses.items())
    for name, g in want.grads.items():
        assert (padded.grads[name] - g).norm() <= 1e-9 * g.norm() + 1e-12, name
    assert all(torch.equal(a, b) for a, b in zip(gradients(exact, clips, together=True).paths, want.paths))


def save_stages(players: Players, clips: list[Clip], path: Path) -> None:
    tensors = {}
    for i, clip in enumerate(clips):
        out = losses(players, [clip])
        for name, x in out.stages.items():
            x = x.detach()[0]
            tensors[f"clips.{i}.{name}"] = (x if name.startswith("maps.") else x.T).contiguous()
        tensors |= {f"clips.{i}.loss.{n}": x.detach().reshape(1) for n, x in {**out.parts, "g": out.g, "d": out.d}.items()}
        tensors |= {f"clips.{i}.path": out.paths[0], f"clips.{i}.nearest": torch.tensor(out.nearest)}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--debug", type=Path)
    args = parser.parse_args()
    check_search()
    for name, (given, sizes, lengths) in CASES.items():
        directory, said = FIXTURES / name, hyper_parameters(**given)
        shutil.rmtree(directory, ignore_errors=True)
        make_model(directory, SEEDS[name], said, sizes, coarse=True)
        clips = make_batch(SEEDS[name], said, lengths)
        save_batch(clips, directory / "batch.safetensors")
        players, double = load(directory), load(directory, torch.float64)
        found = gradients(players, clips)
        exact = gradients(double, clips, found.paths)
        errors = dp_errors(exact, [found, *otherwise(players, clips, found.paths)])
        save_gradients(found, errors, directory / "expected.safetensors")
        assert found.nearest > 1e-3, "a near tie"
        for loss, x in found.losses.items():
            assert abs(x / exact.losses[loss] - 1) < 3e-6, (loss, x, exact.losses[loss])
        check_padded(double, clips, exact)
        worst = check_gradients(double, clips, exact)
        relative = {n: e / max(float(exact.grads[n].norm()), 1e-9) for n, e in errors.items()}
        ill = max(relative, key=relative.get)
        assert relative[ill] < 2e-4, (ill, relative[ill])
        total = math.sqrt(sum(float(g.square().sum()) for g in exact.grads.values()))
        size = sum(f.stat().st_size for f in directory.iterdir())
        print(f"{name}: {({n: round(x, 6) for n, x in found.losses.items()})}, all gradients {total:.3e}, nearest decision {found.nearest:.1e}")
        print(f"  finite differences at {worst:.2f} of what is allowed; of dp.* fp32 is {relative[ill]:.1e} off at {ill}; {size} bytes", flush=True)
        if args.debug:
            save_stages(players, clips, args.debug / f"{name}.safetensors")


if __name__ == "__main__":
    main()
