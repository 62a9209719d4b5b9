"""Seconds that `ambitus generate` and the F5-TTS package take for the frames of one clip, taking turns on the same machine.

    python flow.py --python PEER_PYTHON --bench DIR --ours target/release/ambitus [--rounds 9]

DIR is what `parity/f5/make_bench_model.py DIR` wrote: DiT v1, 8 blocks, width 512. PEER_PYTHON is an interpreter with
parity/requirements.txt installed. The reference is the first clip of DIR/batch.safetensors; as many frames are generated as it has, for the same words.
Loading is in neither side's time; the frames are compared in every round. The side that goes first alternates.
Writes benches/results/<date>-<name>.md and prints it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
from peer import Peer, told  # noqa: E402
from result import commit, load, processor, table, write  # noqa: E402
from run import row  # noqa: E402

HERE = Path(__file__).resolve().parent
# Seconds of speech in a frame.
FRAME = 256 / 24_000


def clip(args: argparse.Namespace, to: Path) -> Path:
    """The clip of which the second half is to be generated."""
    code = "import sys, torch; from safetensors.torch import load_file, save_file; t = load_file(sys.argv[1]); torch.manual_seed(3); "
    code += "mel, text = t['clips.0.mel'], t['clips.0.text']; n = 2 * len(mel); out = {'ref_mel': mel, 'text': text.repeat(2), "
    code += "'frames': torch.tensor([n]), 'x0': torch.randn(n, 100)}; save_file({f'clips.0.{k}': v for k, v in out.items()}, sys.argv[2])"
    subprocess.run([args.python, "-c", code, str(args.bench / "batch.safetensors"), str(to)], check=True)
    return to


def ours(args: argparse.Namespace, batch: Path, to: Path) -> dict:
    """What one run says of itself; its frames are in `to`."""
    command = [args.ours, "generate", "--model", args.bench / "model", "--batch", batch, "--out", to, "--json"]
    command += ["--steps", args.steps, "--cfg", args.cfg, "--sway", args.sway, "--threads", args.threads]
    return told(command)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--cfg", type=float, default=2.0)
    parser.add_argument("--sway", type=float, default=-1.0)
    parser.add_argument("--note", help="what else is to be known of the measurement")
    parser.add_argument("--name", default="flow-cpu", help="of the result file")
    args = parser.parse_args()

    theirs, own, errors, loads = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        batch, out = clip(args, Path(folder) / "batch.safetensors"), Path(folder) / "out.safetensors"
        flow = ["--steps", args.steps, "--cfg", args.cfg, "--sway", args.sway, "--threads", args.threads]
        peer = Peer([args.python, HERE / "flow_torch.py", args.bench / "model", batch, *flow])
        frames = ours(args, batch, out)["rows"]
        peer.ask(str(out))  # warm, both
        for i in range(args.rounds):
            turns = [lambda: own.append(ours(args, batch, out)), lambda: theirs.append(peer.ask(str(out)))]
            for turn in turns if i % 2 == 0 else reversed(turns):
                turn()
            errors.append(theirs[-1]["error"])
            loads.append(os.getloadavg()[0])
            print(f"round {i + 1}/{args.rounds}: ours {own[-1]['seconds']:.2f} s, theirs {theirs[-1]['seconds']:.2f} s", file=sys.stderr, flush=True)
        peer.close()
    about, own, theirs = peer.about, [o["seconds"] for o in own], [t["seconds"] for t in theirs]
    facts = [
        f"processor: {processor()}; both sides {args.threads} threads; {load(loads)}",
        f"PyTorch {about['torch']}, {about['package']}, Python {about['python']}; Ambitus {commit()}",
        f"DiT v1 of {about['parameters']:,} parameters, fp32; {frames} frames in all, half of them given; {args.steps} steps, guidance {args.cfg:g}, sway {args.sway:g}",
        f"{args.rounds} rounds, taking turns, loading in neither time; relative distance of the generated frames at most {max(errors):.1e}",
    ] + ([args.note] if args.note else [])
    rows = [
        row("the package, seconds", theirs, "{:.2f}"),
        row("Ambitus, seconds", own, "{:.2f}"),
        row("Ambitus, seconds of speech a second", [frames / 2 * FRAME / s for s in own], "{:.2f}"),
        row("**ours / theirs**", [a / b for a, b in zip(own, theirs)], "{:.2f}"),
    ]
    write(args.name, f"{args.name}: mel frames by the flow, Ambitus against the F5-TTS package", facts, table(["", "median", "lower quartile", "upper quartile", "least", "most"], rows))


if __name__ == "__main__":
    main()
