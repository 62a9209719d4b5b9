"""The two sides of a benchmark: our program, and a process that answers each line on its standard input with a line of JSON."""

from __future__ import annotations

import json
import subprocess


def told(command: list) -> dict:
    """What our program prints with --json; one that fails ends the benchmark."""
    command = [str(c) for c in command]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"exit code {done.returncode} of: {command}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


class Peer:
    """Alive over all rounds and silent between its turns. Its first line, before it was asked anything, says what it is."""

    def __init__(self, command: list) -> None:
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self.read()

    def read(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the peer ended with exit code {self.process.wait()}")
        return json.loads(line)

    def ask(self, line: str) -> dict:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.read()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
