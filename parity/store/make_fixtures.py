"""Writes the PyTorch checkpoints that the tests of ambitus-store read, with what PyTorch itself finds in them.

Run with PyTorch 2 installed:  python parity/store/make_fixtures.py
The files are in the repository; run it again only to add a case.
"""

import collections
import json
import os
import pathlib
import zipfile

import torch

OUT = pathlib.Path(__file__).resolve().parents[2] / "crates/ambitus-store/tests/fixtures"
EXPECTED = {}


def flatten(value, name=""):
    """(name, tensor or number) as the reader names them."""
    if isinstance(value, (torch.Tensor, bool, int, float)):
        yield name or "tensor", value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from flatten(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            if not isinstance(inner, (bool, int, float)):
                yield from flatten(inner, f"{name}.{i}" if name else str(i))


def save(file, value, skip=(), **options):
    torch.save(value, OUT / file, **options)
    expect(file, value, skip)


def expect(file, value, skip=()):
    tensors, scalars = {}, {}
    for name, found in flatten(value):
        if name.split(".")[0] in skip:
            continue
        if isinstance(found, torch.Tensor):
            dtype = str(found.dtype).removeprefix("torch.")
            tensors[name] = [dtype, list(found.shape), found.detach().to(torch.float32).flatten().tolist()]
        else:
            scalars[name] = found
    EXPECTED[file] = {"tensors": tensors, "scalars": scalars}


class Config:
    """An object that only its own program can load."""

    def __init__(self):
        self.rate, self.layers = 24000, [1, 2]


class Command:
    """What a hostile file does on loading."""

    def __reduce__(self):
        return (os.system, ("echo executed > executed",))


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(adam)
    model(torch.ones(1, 3)).pow(2).sum().backward()
    adam.step()
    schedule.step()
    ema = {f"ema_model.{k}": v for k, v in model.state_dict().items()}
    ema |= {"initted": torch.tensor(True), "step": torch.tensor(7)}
    training = {
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": adam.state_dict(),
        "ema_model_state_dict": ema,
        "scheduler_state_dict": schedule.state_dict(),
        "update": 1250000,
        "done": False,
    }
    save("training.pt", training)
    save("protocol4.pt", training["model_state_dict"], pickle_protocol=4)
    save("bare.pth", torch.arange(5, dtype=torch.float64))
    save("parameters.bin", {k: torch.nn.Parameter(v) for k, v in model.state_dict().items()})

    base = torch.arange(24, dtype=torch.float32)
    cube = base.view(2, 3, 4)
    views = {
        "whole": base,
        "tail": base[20:],
        "transposed": cube[0].t(),
        "permuted": cube.permute(2, 0, 1),
        "rows": cube[:, 1:],
        "columns": cube[:, :, 1:3],
        "every_other": base[::2],
        "thin": cube[:, :1].transpose(0, 1),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "channels_last": torch.arange(16.0).view(1, 2, 2, 4).to(memory_format=torch.channels_last),
    }
    for dtype in ["float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]:
        views[dtype] = torch.tensor([0, 1, 3, 100]).to(getattr(torch, dtype))
    expect("views.pt", views)
    unreadable = {
        "expanded": torch.ones(1).expand(3),
        "complex": torch.ones(2, dtype=torch.complex64),
        "float8": torch.ones(2).to(torch.float8_e4m3fn),
        "sparse": torch.eye(2).to_sparse(),
    }
    torch.save(views | {"unreadable": unreadable}, OUT / "views.pt")

    weights = {"w": torch.ones(2, 2)}
    save("config.pth", {"model": weights, "config": Config(), "epoch": 3}, skip=("config",))
    save("hostile_part.pt", {"model": weights, "extra": Command()}, skip=("extra",))
    torch.save(Command(), OUT / "hostile.pt")
    torch.save(model, OUT / "module.pt")
    torch.save(weights, OUT / "legacy.pt", _use_new_zipfile_serialization=False)
    script = OUT / "script.tmp"
    torch.jit.script(torch.nn.Linear(1, 1)).save(script)
    with zipfile.ZipFile(script) as old, zipfile.ZipFile(OUT / "script.pt", "w") as new:
        for info in old.infolist():
            if not info.filename.endswith(".debug_pkl"):  # it names the folders of the machine that made it
                new.writestr(info.filename, old.read(info), info.compress_type)
    script.unlink()

    # The same archive as other tools would pack it.
    for file, method in [("zip64.pt", zipfile.ZIP_STORED), ("deflated.pt", zipfile.ZIP_DEFLATED)]:
        with zipfile.ZipFile(OUT / "protocol4.pt") as old, zipfile.ZipFile(OUT / file, "w", method) as new:
            for name in old.namelist():
                with new.open(name, "w", force_zip64=True) as entry:
                    entry.write(old.read(name))
    expect("zip64.pt", training["model_state_dict"])

    text = "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in EXPECTED.items()) + "\n}"
    (OUT / "expected.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
