"""Records what transformers' EncodecModel makes of three small codecs, and that audiocraft's own classes make the same of them.

    VENV/bin/pip install transformers==4.57.6 PyYAML
    VENV/bin/pip download --no-deps --no-binary :all: audiocraft==1.3.0   # its dependencies are not needed, nor is it installed
    tar xf audiocraft-1.3.0.tar.gz --strip-components 1 -C VENV/lib/python3.11/site-packages audiocraft-1.3.0/audiocraft
    VENV/bin/python record.py

fixtures/NAME/LAYOUT, a folder for each spelling of the same tensors (random, of 16 bits; `reference.LAYOUTS`): whose folder it is
(transformers' own, a MusicGen model's, audiocraft's), and how weight norm is spelt.

`hop` has the strides of the 32 kHz codec, `two` two memory layers and reflected ends, `causal` what other codecs have: causal
convolutions, zeros at the ends, convolutions in shortcuts, two residual units. expected.safetensors: `wave`; for N of its samples, from
the start, `codes.N` i64 [C, F] and `audio.N`, every STEP-th sample of what is decoded from them.
"""

import shutil
from pathlib import Path

import numpy as np
import torch
from reference import SMALL, Codec, random_codec, save, sound, to_audiocraft
from safetensors.torch import save_file

STEP = 17
CASES = {
    "hop": (dict(SMALL, num_lstm_layers=1, codebooks=2), ("musicgen-g-v",), (6400, 6401, 639)),
    "two": (dict(SMALL, upsampling_ratios=[5, 4]), ("native-original", "native-g-v", "musicgen-original", "audiocraft-g-v"), (12000, 5001, 1)),
    "causal": (
        dict(SMALL, upsampling_ratios=[4, 3], use_causal_conv=True, trim_right_ratio=0.5, pad_mode="constant", use_conv_shortcut=True, num_residual_layers=2),
        ("native-folded", "audiocraft-g-v"),
        (7000, 1001, 7),
    ),
}  # fmt: skip


def of_audiocraft(codec: Codec) -> Codec:
    """audiocraft's own of the same tensors."""
    config = codec.config
    own = Codec(config, True)
    first, each = (2 if config.get("num_lstm_layers", 2) else 1) + 1, config.get("num_residual_layers", 1) + 2
    ups = {f"decoder.layers.{first + i * each}" for i in range(len(config["upsampling_ratios"]))}
    own.module.load_state_dict(to_audiocraft(codec.state(), ups), strict=True)
    return own


def main() -> None:
    for name, (config, layouts, lengths) in CASES.items():
        wave = sound(np.random.default_rng(7), max(lengths))
        # No near ties in a fixture: the second nearest entry is further off than rounding can move it.
        for seed in range(2000):
            codec = random_codec(config, seed, dtype=torch.float16)
            codes = {n: codec.encode(wave[:n]) for n in lengths}
            least = min(codec.margin(wave[:n], c) for n, c in codes.items())
            if least > 1e-4:
                break
        own, out = of_audiocraft(codec), {"wave": torch.from_numpy(wave)}
        for n, c in codes.items():
            assert torch.equal(own.encode(wave[:n]), c), "audiocraft's codes differ"
            audio = codec.decode(c)
            assert np.array_equal(own.decode(c), audio), "audiocraft's audio differs"
            assert codec.excess(wave[:n], c).max() < 1e-6
            out |= {f"codes.{n}": c.contiguous(), f"audio.{n}": torch.tensor(audio[::STEP].copy())}
            distinct = [len(set(row.tolist())) for row in c]
            print(f"{name} {n}: {c.shape[1]} frames, distinct codes {distinct}, {len(audio)} samples, deviation {audio.std():.2f}")
        folder = Path(__file__).parent / "fixtures" / name
        shutil.rmtree(folder, ignore_errors=True)
        for layout in layouts:
            save(own if layout.startswith("audiocraft") else codec, folder / layout, layout, torch.float16)
        save_file(out, folder / "expected.safetensors")
        print(f"{name}: seed {seed}, margin {least:.1e}, {sum(f.stat().st_size for f in folder.rglob('*.*') if f.is_file())} bytes")


if __name__ == "__main__":
    main()
