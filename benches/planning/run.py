"""How long does planning take? `ambitus plan` of large models, no weights there: the whole command, and the search in it.

    cargo build --release && python3 benches/planning/run.py [--rounds 7] [--only orpheus]

Every command is run in turn, `--rounds` times. The whole command is measured from outside: wall time, and processor time (user
and system, of all threads), which says how much work it is where a machine is shared. The search is what `plan --json` says of
itself (`search_seconds`), in runs of their own, as that form leaves out the lines that people read. Needs only the standard
library. Writes benches/results/<date>-planning-cpu.md and prints it.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
from result import commit, load, processor, quartiles, table, write  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
# F5TTS_v1_Base, as its config.yaml says it, with so many blocks.
F5 = """model:
  name: F5TTS_v1_Base
  tokenizer: pinyin
  backbone: DiT
  arch: {{dim: 1024, depth: {depth}, heads: 16, ff_mult: 2, text_dim: 512, text_mask_padding: true, conv_layers: 4}}
  mel_spec: {{target_sample_rate: 24000, n_mel_channels: 100, hop_length: 256, win_length: 1024, n_fft: 1024, mel_spec_type: vocos}}
"""


def cases(directory: Path) -> list[tuple[str, list[str]]]:
    """What is planned: a name and the arguments."""
    recipes = {}
    for depth in (22, 60):
        model = directory / f"f5-{depth}"
        model.mkdir()
        (model / "config.yaml").write_text(F5.format(depth=depth))
        shutil.copy(ROOT / "recipes/quickstart/model/vocab.txt", model)
        recipe = directory / f"f5-{depth}.yaml"
        data = {"dir": "recipes/quickstart/clips", "cache": str(directory / "cache"), "max_seconds": 10}
        recipe.write_text(json.dumps({"model": {"dir": str(model), "from_scratch": True}, "data": data, "batch": {"frames": 3200}, "sample": False}))  # JSON is YAML
        recipes[depth] = str(recipe)
    f5 = [(f"F5, {depth} blocks, {card}", [recipes[depth], "--card", card]) for depth, card in ((22, "rtx3080"), (60, "rtx3080"), (60, "rtx4070"), (60, "rtx3090"), (60, "a800"))]
    orpheus = [
        ("Orpheus 3B, a800", ["recipes/orpheus-full.yaml", "--card", "a800"]),
        ("Orpheus 3B, 8192 tokens, a800", ["recipes/orpheus-full.yaml", "--card", "a800", "--micro-batch", "8192"]),
        ("Orpheus 3B, changed numerics, rtx4090", ["recipes/orpheus-24gb.yaml", "--card", "rtx4090"]),
        ("Orpheus 3B, LoRA, rtx4070", ["recipes/orpheus-lora.yaml", "--card", "rtx4070"]),
    ]
    return f5 + orpheus


def run(command: list[str]) -> tuple[float, float, str]:
    """Wall seconds, processor seconds and what it printed."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 3):  # 3: does not fit, which takes as long to say
        raise SystemExit(f"exit code {done.returncode} of {command}\n{done.stderr[-2000:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def shown(seconds: list[float]) -> str:
    return f"{quartiles(seconds, 2)}, least {min(seconds):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ambitus", default=str(ROOT / "target/release/ambitus"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="cases whose name contains this, in any case")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        wanted = [case for case in cases(Path(directory)) if args.only.lower() in case[0].lower()]
        measured: dict[str, tuple[list[float], list[float], list[float]]] = {name: ([], [], []) for name, _ in wanted}
        found: dict[str, str] = {}
        for name, case in wanted:
            run([args.ambitus, "plan", *case])  # the clips are prepared once, files are read once
        for i in range(args.rounds):
            for name, case in wanted:
                wall, processor_seconds, _ = run([args.ambitus, "plan", *case])
                plan = json.loads(run([args.ambitus, "plan", *case, "--json"])[2])
                for values, value in zip(measured[name], (wall, processor_seconds, plan["search_seconds"])):
                    values.append(value)
                first = plan["candidates"][0]
                found[name] = (first["options"] or "as given") if plan["fits"] else "does not fit"
            print(f"round {i + 1} of {args.rounds}", file=sys.stderr, flush=True)
    rows = [f"| {name} | {' | '.join(map(shown, values))} | {found[name]} |" for name, values in measured.items()]
    facts = [
        f"processor: {processor()}; the search uses 2 threads; {load()}",
        f"Ambitus {commit()}; `python3 benches/planning/run.py --rounds {args.rounds}`",
        "seconds: median (quartiles) of the rounds, and the least of them. Processor time is of all threads together",
    ]
    columns = ["plan", "whole command", "its processor time", "the search alone", "what it found"]
    write("planning-cpu", "How long planning takes", facts, table(columns, rows))


if __name__ == "__main__":
    main()
