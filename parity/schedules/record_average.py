"""Records audiocraft's moving average, fixtures/average.json.

    VENV/bin/python parity/schedules/record_average.py

Needs audiocraft (parity/requirements.txt, parity/README.md). Each entry has a decay, the updates between two moves as
`StandardSolver.run_epoch` counts them, the weight that each update left, and the average after it.
"""

import importlib.util
import json
from pathlib import Path

import torch

# The file alone: the package imports all it has.
package = Path(importlib.util.find_spec("audiocraft").origin).parent
spec = importlib.util.spec_from_file_location("ema", package / "optim/ema.py")
ema = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ema)

HERE = Path(__file__).parent


def averages(decay: float, every: int, updates: int) -> dict:
    weight = torch.nn.ParameterDict({"x": torch.nn.Parameter(torch.tensor([0.5], dtype=torch.float64))})
    average = ema.ModuleDictEMA(torch.nn.ModuleDict({"model": weight}), decay=decay)
    record = {"decay": decay, "every": every, "weights": [], "averages": []}
    for index in range(updates):
        with torch.no_grad():
            weight["x"].copy_(torch.randn(1, dtype=torch.float64))
        if (index + 1) % every == 0:
            average.step()
        record["weights"].append(weight["x"].item())
        record["averages"].append(average.state["model"]["x"].item())
    return record


def main() -> None:
    torch.manual_seed(19)
    records = [averages(0.99, 10, 60), averages(0.9, 1, 40), averages(0.0, 3, 9), averages(0.9999, 2, 30)]
    (HERE / "fixtures/average.json").write_text(json.dumps(records, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
