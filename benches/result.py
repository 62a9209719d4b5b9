"""A result of a benchmark: a page in benches/results that says what was measured where. Shared by all of them."""

from __future__ import annotations

import datetime
import os
import statistics
import subprocess
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"{name}, {os.cpu_count()} logical cores"


def load(loads: Iterable[float] = ()) -> str:
    """The load average over a run, or now."""
    loads = list(loads)
    return f"load average over the run {min(loads):.1f} to {max(loads):.1f}" if loads else f"load average now {os.getloadavg()[0]:.1f}"


def commit() -> str:
    done = subprocess.run(["git", "-C", str(HERE), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def quartiles(values: list[float], digits: int) -> str:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def table(columns: list[str], rows: Iterable[str]) -> list[str]:
    return [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), *rows]


def write(name: str, title: str, facts: list[str], *parts: list[str]) -> None:
    """Writes `<date>-name.md` and prints it: a title, what is to be known of the measurement, tables and paragraphs."""
    today = datetime.date.today()
    blocks = [[f"# {title}, {today}"], [f"- {fact}" for fact in facts], *parts]
    text = "\n\n".join("\n".join(block) for block in blocks) + "\n"
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{today}-{name}.md"
    path.write_text(text, encoding="utf-8")
    print(text + f"\nwritten to {path}")
