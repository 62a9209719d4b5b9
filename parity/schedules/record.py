"""Records the learning rates of torch's and transformers' schedulers, fixtures/rates.json, and updates of torch's AdamW with two
groups, fixtures/groups.json.

    VENV/bin/python parity/schedules/record.py

Needs torch and transformers (parity/requirements.txt, parity/README.md). Each entry has a recipe's `schedule`, `warmup`, `total`
and `per_epoch` (updates in an epoch), and the rate of every update. `groups.json` has the settings, each tensor's name, shape and first values, which have no decay, and of
each update the gradients, their norm and what the tensors are then.
"""

import json
from pathlib import Path

import torch
import transformers
from torch.optim import lr_scheduler as t
from transformers import optimization as h

HERE = Path(__file__).parent
BASE = 2e-4


def rates(make, total: int, every: int = 1) -> list[float]:
    """The rate that each update uses; the scheduler steps after every `every` updates."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=BASE)
    scheduler = make(optimizer)
    out = []
    for update in range(total):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if (update + 1) % every == 0:
            scheduler.step()
    return out


def groups() -> dict:
    """Six clipped updates of matrices and vectors, of which some have no weight decay."""
    torch.manual_seed(18)
    shapes = {"h.0.weight": [4, 3], "h.0.bias": [3], "h.0.ln_1.weight": [3], "text_embedding.weight": [5, 2], "norm.gamma": [3]}
    undecayed = ["h.0.bias", "h.0.ln_1.weight", "text_embedding.weight"]
    record = {"lr": 0.05, "max_grad_norm": 1.0, "betas": [0.9, 0.96], "eps": 1e-8, "weight_decay": 0.1, "no_decay": undecayed}
    tensors = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    of = lambda decays: [p for name, p in tensors.items() if (name in undecayed) != decays]
    optimizer = torch.optim.AdamW(
        [{"params": of(True), "weight_decay": record["weight_decay"]}, {"params": of(False), "weight_decay": 0.0}],
        lr=record["lr"], betas=record["betas"], eps=record["eps"],
    )
    flat = lambda values: {name: x.flatten().tolist() for name, x in values.items()}
    record |= {"shapes": shapes, "initial": flat(tensors), "updates": []}
    for scale in (3.0, 0.1, 1.0, 0.0, 1e-4, 10.0):
        gradients = {name: torch.randn_like(p) * scale for name, p in tensors.items()}
        for name, g in gradients.items():
            tensors[name].grad = g.clone()
        norm = torch.nn.utils.clip_grad_norm_(tensors.values(), record["max_grad_norm"])
        optimizer.step()
        record["updates"].append({"gradients": flat(gradients), "norm": float(norm), "parameters": flat(tensors)})
    return record


def main() -> None:
    body = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in groups().items())
    (HERE / "fixtures/groups.json").write_text("{\n" + body + "\n}\n", encoding="utf-8")
    cases = []

    def case(schedule, warmup, total, make, every=1):
        cases.append({"schedule": schedule, "warmup": warmup, "total": total, "per_epoch": every, "rates": rates(make, total, every)})

    for w, n in [(0, 40), (7, 60), (1, 9)]:
        case({"kind": "linear"}, w, n, lambda o: h.get_linear_schedule_with_warmup(o, w, n))
        case({"kind": "constant"}, w, n, lambda o: h.get_constant_schedule_with_warmup(o, w))
        for cycles in [0.5, 1.5]:
            case({"kind": "cosine", "cycles": cycles}, w, n, lambda o: h.get_cosine_schedule_with_warmup(o, w, n, cycles))
        for cycles in [1, 3]:
            case({"kind": "cosine-restarts", "cycles": cycles}, w, n, lambda o: h.get_cosine_with_hard_restarts_schedule_with_warmup(o, w, n, cycles))
        case({"kind": "cosine", "floor": 0.1}, w, n, lambda o: h.get_cosine_with_min_lr_schedule_with_warmup(o, w, n, min_lr_rate=0.1))
        case({"kind": "linear", "floor": 1e-7 / BASE}, w, n, lambda o: h.get_polynomial_decay_schedule_with_warmup(o, w, n))
        case({"kind": "inverse-sqrt"}, w, n, lambda o: h.get_inverse_sqrt_schedule(o, w))
        case({"kind": "inverse-sqrt", "timescale": 12}, w, n, lambda o: h.get_inverse_sqrt_schedule(o, w, 12))
    for every in [1, 5]:
        per = {} if every == 1 else {"per": "epoch"}
        case({"kind": "exponential", "gamma": 0.97, **per}, 0, 60, lambda o: t.ExponentialLR(o, 0.97), every)
        case({"kind": "milestones", "at": [2, 5, 9], **per}, 0, 60, lambda o: t.MultiStepLR(o, [2, 5, 9]), every)
        case({"kind": "milestones", "at": [3, 3.5], "gamma": 0.5, **per}, 0, 60, lambda o: t.MultiStepLR(o, [3, 4], 0.5), every)
        for first, growth in [(4, 1), (3, 2), (1, 3)]:
            floor = 0.05
            make = lambda o: t.CosineAnnealingWarmRestarts(o, first, growth, eta_min=floor * BASE)
            case({"kind": "warm-restarts", "period": first, "growth": growth, "floor": floor, **per}, 0, 70, make, every)
    # Its sixth fall begins where a logarithm misses a whole number.
    case({"kind": "warm-restarts", "period": 1, "growth": 3}, 0, 130, lambda o: t.CosineAnnealingWarmRestarts(o, 1, 3))
    case({"kind": "cosine", "floor": 0.2}, 0, 50, lambda o: t.CosineAnnealingLR(o, 50, eta_min=0.2 * BASE))
    f5 = lambda w, n: lambda o: t.SequentialLR(o, [t.LinearLR(o, 1e-8, 1.0, w), t.LinearLR(o, 1.0, 1e-8, n - w)], [w])
    case({"kind": "linear", "start": 1e-8, "floor": 1e-8}, 12, 60, f5(12, 60))
    exponential = lambda o: t.SequentialLR(o, [t.LinearLR(o, 0.25, 1.0, 8), t.ExponentialLR(o, 0.9)], [8])
    case({"kind": "exponential", "gamma": 0.9, "start": 0.25}, 8, 40, exponential)

    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    lines = ",\n".join(json.dumps(c) for c in cases)
    (HERE / "fixtures").mkdir(exist_ok=True)
    (HERE / "fixtures/rates.json").write_text(f'{{"versions": {json.dumps(versions)}, "base": {BASE}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{len(cases)} schedules")


if __name__ == "__main__":
    main()
