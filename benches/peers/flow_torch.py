"""One peer: the F5-TTS package's `CFM.sample` on the CPU, a clip's frames whenever a line arrives on standard input.

    python flow_torch.py MODELDIR BATCH.safetensors [--threads 2] [--steps 32] [--cfg 2] [--sway -1]

BATCH is what `ambitus generate` reads, of one clip. Each line answers {"seconds", "error"}: of one call in fp32, and the relative L2
distance of the generated frames from those of the file that the line names.
The first line is {"torch", "package", "python", "parameters"}.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "parity" / "f5"))
import torch  # noqa: E402
from generate import reference, sampler  # noqa: E402
from safetensors.torch import load_file  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("batch", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--cfg", type=float, default=2.0)
    parser.add_argument("--sway", type=float, default=-1.0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = sampler(args.model)
    clip = {name.removeprefix("clips.0."): t for name, t in load_file(str(args.batch)).items()}
    given = len(clip["ref_mel"])

    parameters = sum(p.numel() for p in model.parameters())
    package = f"f5-tts {importlib.metadata.version('f5-tts')}"
    about = {"torch": torch.__version__, "package": package, "python": platform.python_version(), "parameters": parameters}
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        mel = reference(model, clip, args.steps, args.cfg, args.sway)[given:]
        seconds = time.perf_counter() - start
        ours = load_file(line.strip())["clips.0.mel"][given:]
        print(json.dumps({"seconds": seconds, "error": float((ours - mel).norm() / mel.norm())}), flush=True)


if __name__ == "__main__":
    main()
