"""Tokens per second of `ambitus generate` and of transformers' `generate`, taking turns on the same machine.

    python decode.py --python PEER_PYTHON --bench DIR --ours target/release/ambitus [--rounds 9]

DIR is what `parity/orpheus/make_bench_model.py DIR --clips 8 --tokens 64` wrote: Llama, 8 layers, width 512, vocabulary 8192. PEER_PYTHON is an
interpreter with parity/requirements.txt installed. Each round measures the bandwidth of the memory (a sum over 256 MB), then both sides
once each with one sequence and with eight, and ours with bf16 weights; the side that goes first alternates. Loading is in neither side's
time, reading the prompts in both. Writes benches/results/<date>-<name>.md and prints it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
from peer import Peer, told  # noqa: E402
from result import commit, load, processor, table, write  # noqa: E402
from run import row  # noqa: E402

HERE = Path(__file__).resolve().parent
MANY = 8
# Ours beside fp32 with one sequence and with many: name of a column, sequences, precision.
OURS = {"one": (1, "fp32"), "many": (MANY, "fp32"), "pure": (1, "bf16-pure"), "mixed": (1, "bf16-mixed")}
THEIRS = {"their one": 1, "their many": MANY}


def unending(model: Path, to: Path) -> Path:
    """A copy of a model without stop tokens: every run writes as many tokens as it may."""
    shutil.copytree(model, to)
    for name in ["config.json", "generation_config.json"]:
        path = to / name
        if path.is_file():
            path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": None}))
    return to


def ours(args: argparse.Namespace, model: Path, batch: Path, sequences: int, precision: str) -> float:
    """Tokens per second of one run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [args.ours, "generate", "--model", model, "--batch", batch, "--out", Path(folder) / "out.safetensors", "--greedy", "--json"]
        command += ["--max-new", args.new, "--sequences", sequences, "--precision", precision, "--threads", args.threads]
        said = told(command)
    assert said["rows"] == sequences * args.new, said
    return said["rows"] / said["seconds"]


def first(python: str, batch: Path, n: int, to: Path) -> Path:
    """The first n prompts of a batch."""
    code = "import sys; from safetensors.torch import load_file, save_file as s; t = load_file(sys.argv[1]); n = int(sys.argv[2]); "
    code += "s({f'clips.{i}.input_ids': t[f'clips.{i}.input_ids'] for i in range(n)}, sys.argv[3])"
    subprocess.run([python, "-c", code, str(batch), str(n), str(to)], check=True)
    return to


def report(args: argparse.Namespace, about: dict, rounds: list[dict], loads: list[float]) -> None:
    column = lambda name: [r[name] for r in rounds]
    over = lambda a, b: [r[a] / r[b] for r in rounds]
    weights = 4 * about["parameters"]
    facts = [
        f"processor: {processor()}; both sides {args.threads} threads; {load(loads)}",
        f"PyTorch {about['torch']}, transformers {about['transformers']}, Python {about['python']}; Ambitus {commit()}",
        f"Llama of {about['parameters']:,} parameters, all of them read for every token: {weights / 1e6:.1f} MB in fp32; prompts of 64 tokens, {args.new} new ones, greedy",
        f"{len(rounds)} rounds, taking turns; the prompts' reading is in the times, loading is not; a ratio is of the same round",
    ] + ([args.note] if args.note else [])
    rows = [
        row("memory, GB/s", [x / 1e9 for x in column("bandwidth")], "{:.1f}"),
        row("transformers, 1 sequence, tokens/s", column("their one"), "{:.0f}"),
        row("Ambitus, 1 sequence, tokens/s", column("one"), "{:.0f}"),
        row(f"transformers, {MANY} sequences, tokens/s", column("their many"), "{:.0f}"),
        row(f"Ambitus, {MANY} sequences, tokens/s", column("many"), "{:.0f}"),
        row("Ambitus, 1 sequence, `bf16-pure`, tokens/s", column("pure"), "{:.0f}"),
        row("Ambitus, 1 sequence, `bf16-mixed`, tokens/s", column("mixed"), "{:.0f}"),
        row("**1 sequence, share of what reading the weights allows**", [r["one"] * weights / r["bandwidth"] for r in rounds], "{:.2f}"),
        row("**1 sequence, ours / theirs**", over("one", "their one"), "{:.2f}"),
        row(f"**{MANY} sequences, ours / theirs**", over("many", "their many"), "{:.2f}"),
        row(f"**{MANY} sequences / 1**", over("many", "one"), "{:.2f}"),
        row("**`bf16-pure` / fp32**", over("pure", "one"), "{:.2f}"),
        row("**`bf16-mixed` / fp32**", over("mixed", "one"), "{:.2f}"),
    ]
    columns = ["", "median", "lower quartile", "upper quartile", "least", "most"]
    write(args.name, f"{args.name}: tokens per second, Ambitus against transformers", facts, table(columns, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--note", help="what else is to be known of the measurement")
    parser.add_argument("--name", default="decode-cpu", help="of the result file")
    args = parser.parse_args()

    rounds, loads = [], []
    with tempfile.TemporaryDirectory() as folder:
        model = unending(args.bench / "model", Path(folder) / "model")
        batches = {n: first(args.python, args.bench / "batch.safetensors", n, Path(folder) / f"{n}.safetensors") for n in (1, MANY)}
        batch = args.bench / "batch.safetensors"
        peer = Peer([args.python, HERE / "decode_torch.py", model, batch, "--threads", args.threads, "--new", args.new])
        peer.ask("generate 1")  # warm
        for i in range(args.rounds):
            this = {"bandwidth": peer.ask("bandwidth")["bytes_per_second"]}
            turns = [(name, lambda n=n: n * args.new / peer.ask(f"generate {n}")["seconds"]) for name, n in THEIRS.items()]
            turns += [(name, lambda n=n, p=p: ours(args, model, batches[n], n, p)) for name, (n, p) in OURS.items()]
            # One sequence of both sides next to each other, then many, then ours alone.
            order = ["their one", "one", "their many", "many"] if i % 2 == 0 else ["one", "their one", "many", "their many"]
            for name, turn in sorted(turns, key=lambda t: order.index(t[0]) if t[0] in order else len(order)):
                this[name] = turn()
            rounds.append(this)
            loads.append(os.getloadavg()[0])
            print(f"round {i + 1}/{args.rounds}: {json.dumps({k: round(v) for k, v in this.items()})}, load {loads[-1]:.1f}", file=sys.stderr, flush=True)
        peer.close()
    report(args, peer.about, rounds, loads)


if __name__ == "__main__":
    main()
