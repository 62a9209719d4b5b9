"""Compares what `ambitus gradients` wrote with a reference's loss and gradients. Shared by the families."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

LOSS_TOLERANCE = 1e-5  # relative, against the package
GRADIENT_TOLERANCE = 1e-4  # of each gradient's norm, or of the floor below
REORDERED_LOSS, REORDERED_ALL, REORDERED_EACH = 1e-6, 1e-6, 5e-6  # the same sums in another order
FLOOR = 1e-3  # some gradients are mathematically zero (a bias before a normalisation): their rounding noise is judged by the whole gradient


@dataclass
class Row:
    name: str
    norm: float
    ratio: float  # |delta| / allowed; at most 1 holds


def compare(want: dict[str, torch.Tensor], got: dict[str, torch.Tensor], tolerance: float) -> tuple[list[Row], list[str]]:
    """Rows, worst first, and what is wrong with names and shapes."""
    wrong = [f"missing: {n}" for n in want if n not in got] + [f"extra: {n}" for n in got if n not in want]
    wrong += [f"{n}: shape {list(got[n].shape)}, not {list(want[n].shape)}" for n in want if n in got and got[n].shape != want[n].shape]
    total = math.sqrt(sum(g.double().square().sum().item() for g in want.values()))
    count = sum(g.numel() for g in want.values())
    rows = []
    for name, g in want.items():
        if name not in got or got[name].shape != g.shape:
            continue
        norm = g.double().norm().item()
        allowed = tolerance * max(norm, FLOOR * math.sqrt(g.numel() / count) * total)
        delta = (got[name].double() - g.double()).norm().item()
        rows.append(Row(name, norm, delta / allowed if math.isfinite(delta) else math.inf))
    return sorted(rows, key=lambda r: -r.ratio), wrong


def split(path: Path) -> tuple[float, dict[str, torch.Tensor], list[str]]:
    """Loss, gradients by name, and names that are neither these nor parts of the loss."""
    tensors = load_file(str(path))
    loss = tensors.pop("loss", torch.tensor([math.nan]))
    grads = {n.removeprefix("grad."): t for n, t in tensors.items() if n.startswith("grad.")}
    other = [f"unexpected: {n}" for n in tensors if not n.startswith(("grad.", "loss."))]
    if list(loss.shape) != [1]:
        other.append(f"loss has shape {list(loss.shape)}, not [1]")
    return float(loss.reshape(-1)[0]), grads, other


@dataclass
class Verdict:
    loss: float
    loss_error: float  # relative
    rows: list[Row]
    wrong: list[str]

    @property
    def holds(self) -> bool:
        return not self.wrong and self.loss_error <= LOSS_TOLERANCE and self.rows[0].ratio <= 1

    def line(self) -> str:
        worst = self.rows[0] if self.rows else Row("none", 0, math.inf)
        state = "ok  " if self.holds else "FAIL"
        return f"{state} loss {self.loss:.7f} (rel {self.loss_error:.1e})  worst gradient {worst.ratio:.3f} of allowed at {worst.name}"


def check_parts(want: dict[str, float], out: Path) -> list[str]:
    """What is wrong with the parts of the loss, `loss.NAME` of one number each."""
    got = {n: t for n, t in load_file(str(out)).items() if n.startswith("loss.")}
    wrong = [f"missing: {n}" for n in want if n not in got] + [f"unexpected: {n}" for n in got if n not in want]
    near = lambda a, t: list(t.shape) == [1] and abs(float(t) - a) <= LOSS_TOLERANCE * abs(a)  # noqa: E731
    return wrong + [f"{n}: {got[n].tolist()}, not {a!r}" for n, a in want.items() if n in got and not near(a, got[n])]


def check(want: tuple, out: Path) -> Verdict:
    """`want`: loss, gradients by name and, of a model that reports them, the parts of the loss."""
    loss, grads, other = split(out)
    rows, wrong = compare(want[1], grads, GRADIENT_TOLERANCE)
    other += check_parts(want[2] if len(want) > 2 else {}, out)
    return Verdict(loss, abs(loss - want[0]) / max(abs(want[0]), 1e-30) if math.isfinite(loss) else math.inf, rows, other + wrong)


def check_reordered(a: Path, b: Path) -> list[str]:
    """What is beyond the "reordered" tolerance between two outputs of ambitus."""
    (loss_a, grads_a, _), (loss_b, grads_b, _) = split(a), split(b)
    wrong = []
    if abs(loss_a - loss_b) > REORDERED_LOSS * abs(loss_a):
        wrong.append(f"loss {loss_a!r} and {loss_b!r}")
    delta = math.sqrt(sum((grads_a[n].double() - grads_b[n].double()).square().sum().item() for n in grads_a))
    total = math.sqrt(sum(g.double().square().sum().item() for g in grads_a.values()))
    if delta > REORDERED_ALL * total:
        wrong.append(f"all gradients together differ by {delta / total:.2e}")
    rows, names = compare(grads_a, grads_b, REORDERED_EACH)
    return wrong + names + [f"{r.name}: {r.ratio:.2f} of the reordered tolerance" for r in rows if r.ratio > 1]


def bit_equal(a: Path, b: Path) -> list[str]:
    """Names whose bits differ."""
    one, two = load_file(str(a)), load_file(str(b))
    if one.keys() != two.keys():
        return ["different names"]
    return [n for n in one if one[n].shape != two[n].shape or not torch.equal(one[n].contiguous().view(torch.int32), two[n].contiguous().view(torch.int32))]


def main(reference, description: str) -> int:
    """The command line of a family's check.py. `reference` has `load`, `load_batch` and `gradients`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("batch", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    verdict = check(reference.gradients(reference.load(args.model), reference.load_batch(args.batch)), args.out)
    print(f"{'|delta|/allowed':>15}  {'|reference|':>11}  gradient")
    for row in verdict.rows if args.all else verdict.rows[:12]:
        print(f"{row.ratio:>15.4f}  {row.norm:>11.4e}  {row.name}")
    for problem in verdict.wrong:
        print(problem)
    print(verdict.line())
    return 0 if verdict.holds else 1

