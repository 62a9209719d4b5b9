"""Is what the search chooses the fastest plan that fits? Against every combination that it chooses from (`ambitus plan --lattice`).

    cargo build --release && python3 recipes/orpheus-tiny/make.py && python3 recipes/parler-tiny/make.py && python3 recipes/musicgen-tiny/make.py
    python3 benches/planning/lattice.py [--budgets 8] [--only orpheus]

Nothing is run: peaks and seconds are those of plans. Budgets lie evenly between the least and the most that any combination needs.
Some of the combinations are typed again as they are printed, and must give the plan that was printed. Needs only the standard
library. Writes benches/results/<date>-lattice-cpu.md and prints it.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
from result import commit, load, processor, table, write  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
MODELS = {
    "F5-TTS, quickstart": ["recipes/quickstart.yaml"],
    "Orpheus, tiny": ["recipes/orpheus-tiny.yaml", "--assume", "24x6s,8x12s"],
    "Parler-TTS, tiny": ["recipes/parler-tiny.yaml", "--assume", "24x4s,8x6s"],
    "MusicGen, tiny": ["recipes/musicgen-tiny.yaml", "--assume", "16x6s"],
}
CARDS = ("rtx2060", "rtx3060", "h100")
LEVELS = ("same", "reordered", "changed")


def plan(binary: str, arguments: list[str]) -> dict:
    done = subprocess.run([binary, "plan", *arguments, "--json"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in (0, 3):  # 3: does not fit
        raise SystemExit(f"exit code {done.returncode} of {arguments}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def budgets(binary: str, base: list[str], n: int) -> list[int]:
    peaks = [c["peak_bytes"] for c in plan(binary, [*base, "--lattice"])["lattice"]]
    return [min(peaks) + (max(peaks) - min(peaks)) * i // (n - 1) for i in range(n)]


def typed_again(binary: str, base: list[str], combination: dict) -> None:
    again = plan(binary, [*base, *combination["options"].split()])
    if not again["fits"] or abs(again["step_seconds"] / combination["seconds"] - 1) > 1e-9 or again["peak_bytes"] > combination["peak_bytes"]:
        raise SystemExit(f"typed again it is another plan: {base} {combination}: {again['peak_bytes']} bytes, {again['step_seconds']} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ambitus", default=str(ROOT / "target/release/ambitus"))
    parser.add_argument("--budgets", type=int, default=8)
    parser.add_argument("--only", default="", help="models whose name contains this, in any case")
    args = parser.parse_args()
    draws, rows, longest = random.Random(1), [], 0.0
    for name, recipe in MODELS.items():
        if args.only.lower() not in name.lower():
            continue
        for card in CARDS:
            for level in LEVELS:
                base = [*recipe, "--card", card, "--numerics", level]
                ratios, size = [], 0
                for i, budget in enumerate(budgets(args.ambitus, base, args.budgets)):
                    within = [*base, "--memory", f"{budget}B"]
                    found = plan(args.ambitus, [*within, "--lattice"])
                    fitting = [c for c in found["lattice"] if c["verdict"] in ("chosen", "slower")]
                    size, longest = len(found["lattice"]), max(longest, found["search_seconds"])
                    if not fitting and not found["fits"]:
                        continue
                    ratios.append(found["step_seconds"] / fitting[0]["seconds"] if found["fits"] else float("inf"))
                    if i % 3 == 2:
                        typed_again(args.ambitus, within, draws.choice(fitting))
                rows.append(f"| {name} | {card} | {level} | {size} | {len(ratios)} | {max(ratios):.4f} |")
    facts = [
        f"processor: {processor()}; {load()}",
        f"Ambitus {commit()}; `python3 benches/planning/lattice.py`",
        "predicted seconds of an update, by the plan that was chosen, over those of the fastest combination that fits the budget; the most of all budgets. Infinite: a combination fits, and none was found",
        f"the longest search took {longest:.2f} s",
    ]
    write("lattice-cpu", "The search against every combination", facts, table(["model", "card", "numerics", "combinations", "budgets", "chosen / fastest, most"], rows))


if __name__ == "__main__":
    main()
