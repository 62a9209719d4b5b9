"""Random Piper models and batches that are in no fixture, through the `ambitus` binary and every plan option, against piper1-gpl.

    PIPER1=/path/to/piper1-gpl python sweep.py BINARY [--count 20] [--seed N] [--keep DIR]

Each case is run with several option sets. Checked: every loss, the path of every clip and every gradient of both players; equal bits
with recompute on and off and at any thread count; the "reordered" tolerance between splits into micro-batches. Ranks are left out: a model
of two players has one. The seed is printed; the same seed gives the same cases.

Gradients of `dp.*` are ill-conditioned. They are held to the usual tolerance or, where that is more, to twice what the reference in
fp32 is off from itself in float64 (the largest of three orders of its sums); the duration loss likewise. A case is drawn again where fp32 does not
tell: two sums of the search are within 1e-4 of each other, or the reference has another gradient only to a quarter of the tolerance
(something is near the kink of a rectifier, also where other orders of sums did not pass it, or of an absolute value).
"""

from __future__ import annotations

import math
import random
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from make import hyper_parameters, make_batch, make_model
from reference import DP, Clip, Gradients, dp_errors, gradients, load, otherwise, save_batch
from safetensors.torch import load_file

sys.path.append(str(Path(__file__).resolve().parent.parent))
import sweep_sets  # noqa: E402
from compare import GRADIENT_TOLERANCE, LOSS_TOLERANCE, REORDERED_EACH, REORDERED_LOSS, Row, compare  # noqa: E402
from sweep_sets import plan_sets, run_sets  # noqa: E402

TIE = 1e-4  # of the larger of two sums
CLEAR = 0.25  # of the tolerance


@dataclass
class Want:
    found: Gradients
    duration: float  # how far the duration loss is from float64
    errors: dict[str, float]  # and each gradient of dp.*


@dataclass
class Verdict:
    loss: float
    rows: list[Row]
    wrong: list[str]

    @property
    def holds(self) -> bool:
        return not self.wrong and self.rows[0].ratio <= 1

    def line(self) -> str:
        worst = self.rows[0] if self.rows else Row("none", 0, math.inf)
        return f"{'ok  ' if self.holds else 'FAIL'} loss.g {self.loss:.6f}  worst gradient {worst.ratio:.3f} of allowed at {worst.name}"


def rows_of(want: dict[str, torch.Tensor], got: dict[str, torch.Tensor], tolerance: float, errors: dict[str, float]) -> tuple[list[Row], list[str]]:
    """As `compare` has them, the duration predictor, the generator's others and the discriminators each by themselves. `errors`: of
    dp.*, twice of which is allowed. The gradient of the keys' bias is zero but for rounding, which is beside its matrix's here."""
    rows, wrong = [], [f"unexpected: {n}" for n in got if n not in want]
    for part in (lambda n: n.startswith(DP), lambda n: n.startswith("model_g.") and not n.startswith(DP), lambda n: n.startswith("model_d.")):
        some, problems = compare({n: g for n, g in want.items() if part(n)}, {n: g for n, g in got.items() if part(n)}, tolerance)
        rows, wrong = rows + some, wrong + [p for p in problems if not p.startswith("extra")]
    for row in rows:
        allowed = 2 * errors.get(row.name, 0)
        if row.name.endswith("conv_k.bias"):
            allowed = 0.1 * tolerance * want[row.name.replace("bias", "weight")].double().norm().item()
        if row.ratio > 1 and allowed:
            row.ratio = min(row.ratio, (got[row.name].double() - want[row.name].double()).norm().item() / allowed)
    return sorted(rows, key=lambda r: -r.ratio), wrong


def losses_wrong(want: dict[str, float], got: dict[str, torch.Tensor], tolerance: float, duration: float) -> list[str]:
    """`duration`: how far the duration loss may be off in any case."""
    wrong = [f"unexpected: {n}" for n in got if n not in want]
    for name, x in want.items():
        y = got.get(name, torch.zeros(0))
        allowed = max(tolerance * abs(x), duration if name in ("loss.dur", "loss.g") else 0)
        if list(y.shape) != [1] or not abs(float(y) - x) <= allowed:
            wrong.append(f"{name}: {y.tolist()}, not {x!r}")
    return wrong


def split(out: Path) -> tuple[dict, dict, dict]:
    """Losses, gradients by the names of model.ckpt, and the rest."""
    tensors = load_file(str(out))
    losses = {n: t for n, t in tensors.items() if n.startswith("loss.")}
    grads = {n.removeprefix("grad."): t for n, t in tensors.items() if n.startswith("grad.")}
    return losses, grads, {n: t for n, t in tensors.items() if not n.startswith(("loss.", "grad."))}


def judge(want: Want, out: Path) -> Verdict:
    losses, grads, other = split(out)
    paths = {f"clips.{i}.path": p for i, p in enumerate(want.found.paths)}
    wrong = [f"unexpected: {n}" for n in other if n not in paths]
    wrong += losses_wrong(want.found.losses, losses, LOSS_TOLERANCE, 2 * want.duration)
    differ = [n for n, p in paths.items() if n not in other or other[n].dtype != torch.int64 or not torch.equal(other[n], p)]
    rows, names = rows_of(want.found.grads, grads, GRADIENT_TOLERANCE, want.errors)
    return Verdict(float(losses.get("loss.g", torch.tensor([math.nan]))[0]), rows, wrong + [f"{n}: another path" for n in differ] + names)


def reordered(want: Want, a: Path, b: Path) -> list[str]:
    """What is beyond the "reordered" tolerance between two outputs of ambitus."""
    (losses_a, grads_a, other_a), (losses_b, grads_b, other_b) = split(a), split(b)
    wrong = losses_wrong({n: float(x) for n, x in losses_a.items()}, losses_b, REORDERED_LOSS, 2 * want.duration)
    rows, names = rows_of(grads_a, grads_b, REORDERED_EACH, want.errors)
    wrong += [f"{n}: another path" for n, p in other_a.items() if n not in other_b or not torch.equal(p, other_b[n])]
    return wrong + names + [f"{r.name}: {r.ratio:.2f} of the reordered tolerance" for r in rows if r.ratio > 1]


def random_case(rng: random.Random) -> tuple[dict, dict, dict]:
    """Arguments of `hyper_parameters`, of `shapes` and of `make_model`."""
    rates = rng.choice([(4, 4), (8, 2), (2, 2, 4), (4, 2, 2), (5, 2), (2, 3, 2), (8, 4), (2, 2, 2, 2), (16,), (3, 8)])
    hop, frames = math.prod(rates), rng.choice([4, 5, 8, 8, 13])
    one, kinds = rng.random() < 0.5, rng.randint(1, 3)
    filters = rng.choice([n for n in (hop, 2 * hop, 3 * hop, 4 * hop, 40, 64, 90) if n >= hop and n % 2 == hop % 2 == 0 and (n - hop) // 2 < frames * hop])
    speakers = rng.choice([1, 1, 2, 5])
    heads, hidden = rng.choice([(1, 7), (1, 10), (2, 8), (2, 12), (3, 9), (3, 12), (4, 8), (4, 16)])
    rate = rng.choice([16000, 22050, 24000, 44100])
    given = dict(
        sample_rate=rate, num_symbols=rng.randint(8, 50), num_speakers=speakers,
        gin_channels=0 if speakers == 1 or rng.random() < 0.1 else rng.randint(2, 9), use_sdp=rng.random() < 0.65,
        resblock="1" if one else "2", kernels=tuple(rng.choice([3, 3, 5, 7, 11]) for _ in range(kinds)),
        dilations=tuple(tuple(rng.choice([1, 1, 2, 3, 5, 6]) for _ in range(3 if one else 2)) for _ in range(kinds)),
        rates=rates, channels=rng.choice([2, 3]) * 2 ** len(rates), up_kernels=tuple(u + 2 * rng.choice([0, u // 2, u // 2, rng.randint(0, u)]) for u in rates),
        filter_length=filters, win_length=rng.choice([filters, filters, rng.randint(max(2, filters // 2), filters)]), segment_size=frames * hop,
        mel_channels=rng.randint(3, 20), mel_fmin=rng.choice([0.0, 0.0, 80.0]), mel_fmax=rng.choice([None, None, rate / 3]),
        inter=2 * rng.randint(1, 5), hidden=hidden, filters=rng.randint(2, 24), heads=heads, layers=rng.randint(1, 3), kernel=rng.choice([1, 2, 3, 3, 3, 5]),
        c_mel=rng.choice([45, 45, 20]), c_kl=rng.choice([1.0, 1.0, 0.5]), older=rng.random() < 0.3, lists=rng.random() < 0.3,
    )  # fmt: skip
    sizes = dict(
        posterior=rng.choice([16, 16, 1, 3]), flow=rng.choice([4, 4, 1, 2]), duration=rng.randint(6, 24),
        scale=(rng.choice([4, 8]), *(4 * rng.randint(1, 3) for _ in range(5))), groups=(1, *(rng.choice([1, 2, 4]) for _ in range(4)), 1),
        period=tuple(rng.randint(2, 8) for _ in range(5)),
    )  # fmt: skip
    return given, sizes, dict(gain=rng.choice([0.7, 1.0]), spline=rng.choice([0.2, 0.5, 0.5]), trained=rng.random() < 0.2)


def random_lengths(rng: random.Random, frames: int) -> list[tuple[int, int]]:
    """Phonemes and frames of clips; a slice has `frames`. A few have more phonemes than frames, which no path fits."""
    lengths = []
    for _ in range(rng.randint(1, 4)):
        length = rng.choice([frames, frames + rng.randint(0, 8), rng.randint(frames, frames + 40)])
        lengths.append((rng.randint(1, min(length, 24)) if rng.random() < 0.95 else length + rng.randint(1, 4), length))
    return lengths


def draw(work: Path, rng: random.Random, seed: int) -> tuple[str, dict, list[Clip], Want] | None:
    """A model and a batch in `work`, in words too; None where fp32 does not tell."""
    given, sizes, more = random_case(rng)
    said = hyper_parameters(**given)
    lengths = random_lengths(rng, said["segment_size"] // said["hop_length"])
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    make_model(work / "model", seed, said, sizes, **more)
    clips = make_batch(seed, said, lengths)
    save_batch(clips, work / "batch.safetensors")
    players, double = load(work / "model"), load(work / "model", torch.float64)
    found = gradients(players, clips)
    exact, ways = gradients(double, clips, found.paths), [found, *otherwise(players, clips, found.paths)]
    want = Want(found, max(abs(of.losses["loss.dur"] - exact.losses["loss.dur"]) for of in ways), dp_errors(exact, ways))
    rows = [row for of in ways for row in rows_of(exact.grads, of.grads, GRADIENT_TOLERANCE, {})[0]]
    if found.nearest < TIE or any(r.ratio > CLEAR for r in rows if not r.name.startswith(DP)):
        return None
    return f"{given} {sizes} {more} clips {lengths}, nearest decision {found.nearest:.1e}", said, clips, want


def run_case(binary: str, work: Path, seed: int) -> int:
    """Number of failures."""
    rng, drawn = random.Random(seed), None
    while drawn is None:
        drawn = draw(work, rng, seed)
    words, said, clips, want = drawn
    print(f"case {seed}: {words}", flush=True)
    sets = plan_sets(rng, said["n_layers"], "*.conv_1,*.in_layers.0", [c.frames for c in clips], ranks=lambda like, micro_batch: [])
    return run_sets(
        binary, work, work / "model", work / "batch.safetensors", want, sets, judge=judge, reordered=lambda a, b: reordered(want, a, b)
    )  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(sweep_sets.main(run_case, __doc__))
