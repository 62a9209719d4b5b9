"""Records what the package makes of two small vocoders, for `crates/ambitus/tests/it/vocos.rs`.

    VENV/bin/pip install scipy einops==0.8.2 huggingface_hub
    VENV/bin/pip install --no-deps vocos==0.1.0 encodec==0.1.1
    VENV/bin/python record.py

`fixtures/center`: the published mel frames and hop with few channels, pytorch_model.bin. `fixtures/same`: another window that is
no multiple of its hop, padding "same", safetensors. Weights are random, of 16 bits. expected.safetensors: `mel` [T, M] and
the `wave` [n] that the package decodes from it.
"""

from pathlib import Path

import torch
from reference import config, decode, random_mel, random_vocoder, save
from safetensors.torch import save_file

CASES = {
    "center": (config(100, 8, 12, 2, 1024, 256, "center"), 30, "pytorch_model.bin"),
    "same": (config(12, 6, 10, 3, 40, 14, "same"), 70, "model.safetensors"),
}

for name, (shape, frames, file) in CASES.items():
    folder = Path(__file__).parent / "fixtures" / name
    model = random_vocoder(shape, folder, 20_261_123, 0.2, torch.float16)
    save(model, folder, file, torch.float16)
    mel = random_mel(frames, shape["backbone"]["init_args"]["input_channels"], 7)
    wave = decode(model, mel)
    print(f"{name}: {len(wave)} samples, largest {abs(wave).max():.3f}")
    save_file({"mel": torch.tensor(mel), "wave": torch.tensor(wave)}, folder / "expected.safetensors")
