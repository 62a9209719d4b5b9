"""Records updates of torchao's AdamW8bit, for `crates/ambitus-testkit/tests/it/narrow.rs`.

    VENV/bin/pip install --no-deps torchao==0.9.0
    VENV/bin/python record.py

torchao's own map, quantisation and single-tensor update (not compiled: fp32, eager) on a weight of 4 blocks. Its
gradients are exact in 16 bits, so that the file is small. Writes `fixtures/adamw8bit.safetensors`: map_m, map_v [256]; w
[4, 256] before; of update t = 1 .. 5 gradient g.t and, after it, w.t, codes_m.t, scales_m.t, codes_v.t, scales_v.t.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torchao.prototype.low_bit_optim.adam import single_param_adam
from torchao.prototype.low_bit_optim.subclass_8bit import OptimState8bit

LR, BETAS, EPS, DECAY, UPDATES = 1e-3, (0.9, 0.999), 1e-8, 0.01, 5

torch.manual_seed(20_261_121)
w = torch.randn(4, 256)
m = OptimState8bit.zeros(w.shape, signed=True)
v = OptimState8bit.zeros(w.shape, signed=False)
out = {"map_m": m.qmap, "map_v": v.qmap, "w": w.clone()}
for t in range(1, UPDATES + 1):
    # Magnitudes over five decades within a block, and some elements without gradient.
    g = torch.randn(4, 256) * 10.0 ** (-5 * torch.rand(4, 256))
    g[torch.rand(4, 256) < 0.1] = 0.0
    g = g.half()
    single_param_adam(w, g, torch.tensor(float(t)), m, v, None, torch.tensor(LR), *BETAS, DECAY, EPS, True, False)
    out |= {f"g.{t}": g, f"w.{t}": w.clone()}
    for name, x in (("m", m), ("v", v)):
        out |= {f"codes_{name}.{t}": x.codes.clone(), f"scales_{name}.{t}": x.scale.clone()}
folder = Path(__file__).parent / "fixtures"
folder.mkdir(exist_ok=True)
save_file(out, folder / "adamw8bit.safetensors")
