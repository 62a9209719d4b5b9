"""Is the automatic plan as fast as the best that can be found by measuring? The quickstart's model at several budgets.

    cargo build --release && python3 benches/techniques/search.py [--rounds 7] [--budgets 48,52,56,60,72]

At each budget (MiB) every candidate of `ambitus plan --json` that is planned in full and fits is run, taking turns with the automatic plan; a row says
how the automatic plan's step compares with the fastest candidate's. Needs only the standard library.
Writes benches/results/<date>-search-cpu.md and prints it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
from result import commit, load, processor, quartiles, table, write  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
RECIPE = {
    "model": {"dir": "recipes/quickstart/model"},
    "data": {"dir": "recipes/quickstart/clips", "max_seconds": 10, "validation": {"share": 0}},
    "batch": {"clips": 5},
    "updates": 20,
    "save_every": 0,
    "sample": False,
}


def ambitus(args: argparse.Namespace, command: list[str]) -> str:
    done = subprocess.run([args.ambitus, *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"exit code {done.returncode} of {command}\n{done.stderr[-2000:]}")
    return done.stdout


def step(args: argparse.Namespace, recipe: Path, budget: int, options: list[str]) -> float:
    with tempfile.TemporaryDirectory() as out:
        ambitus(args, ["train", str(recipe), "--memory", f"{budget}MiB", *options, "--run-dir", f"{out}/run"])
        return json.loads(Path(f"{out}/run/summary.json").read_text())["step_seconds_median"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ambitus", default=str(ROOT / "target/release/ambitus"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budgets", default="48,52,56,60,72")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        recipe = Path(directory) / "recipe.yaml"
        recipe.write_text(json.dumps(RECIPE | {"threads": args.threads}))  # JSON is YAML
        for budget in map(int, args.budgets.split(",")):
            plan = json.loads(ambitus(args, ["plan", str(recipe), "--memory", f"{budget}MiB", "--json"]))
            fitting = [c["options"] for c in plan["candidates"] if c["planned"] and c["verdict"] != "too_large"]
            # What a candidate does not name is fixed as the recipe's usual, or the search would choose again.
            usual = ["--micro-batch", "3200"]
            full = lambda o: shlex.split(o) + ([] if "--micro-batch" in o else usual) + ([] if "--checkpoint" in o else ["--checkpoint", "none"])
            times: dict[str, list[float]] = {o: [] for o in fitting}
            automatic: list[float] = []
            for i in range(args.rounds):
                turns = [lambda: automatic.append(step(args, recipe, budget, []))]
                turns += [lambda o=o: times[o].append(step(args, recipe, budget, full(o))) for o in fitting]
                for turn in turns if i % 2 == 0 else reversed(turns):
                    turn()
            best = min(times, key=lambda o: statistics.median(times[o]))
            ratios = [a / b for a, b in zip(automatic, times[best])]
            chosen = next(c["options"] for c in plan["candidates"] if c["verdict"] == "chosen") or "as given"
            rows.append(f"| {budget} | {chosen} | {statistics.median(automatic):.4f} | {len(fitting)} | {best or 'as given'} | {statistics.median(times[best]):.4f} | {quartiles(ratios, 3)} |")
            print(rows[-1], file=sys.stderr, flush=True)
    facts = [
        f"processor: {processor()}, {args.threads} threads; {load()}",
        f"Ambitus {commit()}; `python3 benches/techniques/search.py --rounds {args.rounds}`; recipe `{json.dumps(RECIPE)}`",
    ]
    columns = ["budget, MiB", "automatic plan", "its step, s", "candidates that fit", "fastest of them", "its step, s"]
    columns.append("automatic / fastest, median (quartiles)")
    write("search-cpu", "The automatic plan beside the best candidate by measurement", facts, table(columns, rows))


if __name__ == "__main__":
    main()
