"""Does coqui-tts load an exported folder strictly, as it loads the released model?

    check_export.py make FOLDER        writes a tiny model in the released layout: config.json, model.pth, vocab.json, mel_stats.pth
    check_export.py EXPORT [MODEL]     `Xtts.load_checkpoint(strict=True)` of EXPORT; with MODEL, the tensors that are not `gpt.*` are its

The configuration of an export says how large the model is. `model.pth` is read with `weights_only=True` alone, and must hold the tensors of
the package's own model, no more and no fewer, with `xtts.` before every name or before none.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from TTS.tts.configs.xtts_config import XttsConfig
from TTS.tts.models.xtts import Xtts, XttsArgs

VOCAB = Path(__file__).resolve().parents[1] / "xtts_text/fixtures/vocab.json"


def make(folder):
    torch.manual_seed(18)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(VOCAB, folder / "vocab.json")
    rows = max(json.loads(VOCAB.read_text())["model"]["vocab"].values()) + 1
    args = XttsArgs(
        gpt_layers=2, gpt_n_model_channels=64, gpt_n_heads=4, gpt_number_text_tokens=rows, gpt_start_text_token=20, gpt_stop_text_token=0,
        gpt_num_audio_tokens=1026, gpt_start_audio_token=1024, gpt_stop_audio_token=1025, gpt_use_perceiver_resampler=True, decoder_input_dim=64,
    )  # fmt: skip
    config = XttsConfig(model_args=args)
    config.save_json(folder / "config.json")
    model = Xtts(config)
    model.init_models()
    state = model.state_dict()
    torch.save({"config": config, "model": state}, folder / "model.pth")
    torch.save(state["mel_stats"], folder / "mel_stats.pth")
    print(f"{len(state)} tensors in {folder}")


def check(folder, source):
    config = XttsConfig()
    config.load_json(folder / "config.json")
    found = torch.load(folder / "model.pth", weights_only=True, map_location="cpu")
    names = set(found["model"])
    prefixed = {name for name in names if name.startswith("xtts.")}
    assert not prefixed or prefixed == names, sorted(names - prefixed)[:5]
    bare = {name.removeprefix("xtts.") for name in names}
    model = Xtts(config)
    model.load_checkpoint(config, checkpoint_dir=folder, eval=False, strict=True, speaker_file_path=folder / "none")
    state = model.state_dict()
    assert bare == set(state), sorted(bare ^ set(state))[:5]
    same = ""
    if source:
        other = torch.load(source / "model.pth", weights_only=False, map_location="cpu")["model"]
        frozen = [name for name in state if not name.startswith("gpt.")]
        assert all(torch.equal(state[name], other[name.removeprefix("xtts.")]) for name in frozen)
        same = f", {len(frozen)} frozen ones as they were"
    beside = sorted(set(found) - {"model"})
    print(f"{len(names)} tensors loaded strictly{same}; prefix: {bool(prefixed)}; beside them: {beside}")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        check(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
