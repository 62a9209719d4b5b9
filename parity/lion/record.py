"""Records updates of lion-pytorch's Lion, for `crates/ambitus-exec/tests/it/decay.rs`.

    VENV/bin/pip install --no-deps lion-pytorch==0.2.5
    VENV/bin/python record.py

Six updates of small tensors in fp32, clipped by their global norm; some tensors have no weight decay. Writes
`fixtures/lion.json`, in the form of `../schedules/fixtures/groups.json`: settings, each tensor's shape and first values, and of
every update the gradients and the tensors after it.
"""

import json
from pathlib import Path

import torch
from lion_pytorch import Lion

SHAPES = {"h.0.weight": [5, 9], "h.0.bias": [9], "text_embedding.weight": [5, 2]}
UNDECAYED = ["h.0.bias", "text_embedding.weight"]
RECORD = {"lr": 0.01, "max_grad_norm": 1.0, "betas": [0.9, 0.99], "weight_decay": 0.5, "no_decay": UNDECAYED, "shapes": SHAPES}

torch.manual_seed(24)
tensors = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in SHAPES.items()}
of = lambda decays: [p for name, p in tensors.items() if (name in UNDECAYED) != decays]
groups = [{"params": of(True), "weight_decay": RECORD["weight_decay"]}, {"params": of(False), "weight_decay": 0.0}]
optimizer = Lion(groups, lr=RECORD["lr"], betas=tuple(RECORD["betas"]))
flat = lambda values: {name: x.flatten().tolist() for name, x in values.items()}
RECORD |= {"initial": flat(tensors), "updates": []}
# Small gradients after large ones: the moment gives the sign. A gradient of zero: so it does alone.
for scale in (3.0, 0.01, 1.0, 0.0, 1e-4, 10.0):
    gradients = {name: torch.randn_like(p) * scale for name, p in tensors.items()}
    for name, g in gradients.items():
        tensors[name].grad = g.clone()
    torch.nn.utils.clip_grad_norm_(tensors.values(), RECORD["max_grad_norm"])
    optimizer.step()
    RECORD["updates"].append({"gradients": flat(gradients), "parameters": flat(tensors)})
body = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in RECORD.items())
folder = Path(__file__).parent / "fixtures"
folder.mkdir(exist_ok=True)
(folder / "lion.json").write_text("{\n" + body + "\n}\n", encoding="utf-8")
