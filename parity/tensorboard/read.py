"""Reads the events of a run's folder with TensorBoard's own reader, and compares them with the run's other files.

    python3 -m venv VENV
    VENV/bin/pip install -r parity/tensorboard/requirements.txt
    VENV/bin/python parity/tensorboard/read.py RUN

Every record of the file must be whole, every scalar be the log's number in 32 bits, every sound and picture the bytes of its file, and
the recipe its text and its settings. Ends with 1 and what differs, where something does.
"""

import json
import math
import struct
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.plugins.hparams import plugin_data_pb2

ALL = {"scalars": 0, "images": 0, "audio": 0, "tensors": 0}


def whole_records(path: Path) -> int:
    """The number of records of a file, to its last byte."""
    data, at, n = path.read_bytes(), 0, 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        body, after = data[at + 12 : at + 12 + length], data[at + 12 + length : at + 16 + length]
        sums = [masked_crc32c(part).to_bytes(4, "little") for part in (data[at : at + 8], body)]
        assert sums == [data[at + 8 : at + 12], after], f"{path}: record {n} at byte {at} is damaged"
        at, n = at + 16 + length, n + 1
    return n


def flat(prefix: str, value) -> dict:
    """The numbers of a line of the log, by tag."""
    if isinstance(value, dict):
        return {tag: x for key, inner in value.items() for tag, x in flat(f"{prefix}/{key}", inner).items()}
    return {prefix: math.nan if value is None else struct.unpack("<f", struct.pack("<f", value))[0]}


def same(a: float, b: float) -> bool:
    return a == b or math.isnan(a) and math.isnan(b)


def check(run: Path) -> None:
    files = list((run / "tensorboard").iterdir())
    assert len(files) == 1, files
    records = whole_records(files[0])
    events = EventAccumulator(str(run / "tensorboard"), size_guidance=ALL).Reload()
    tags = events.Tags()

    expected: dict = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(line)
        step = line.pop("update")
        for tag, number in flat("train", line).items():
            expected.setdefault(tag, []).append((step, number))
    found = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags["scalars"]}
    trained = {tag for tag in found if tag.startswith("train/")}
    assert trained == set(expected), trained ^ set(expected)
    points = 0
    for tag in trained:
        assert len(found[tag]) == len(expected[tag]), f"{tag}: {len(found[tag])} points, the log has {len(expected[tag])}"
        for (step, number), (at, logged) in zip(found[tag], expected[tag]):
            assert step == at and same(number, logged), f"{tag}: {number} after {step}, the log has {logged} after {at}"
        points += len(found[tag])
    validations = {tag: found[tag] for tag in sorted(set(found) - trained)}
    for tag, values in validations.items():
        steps = [step for step, _ in values]
        assert tag.startswith("validation/") and steps == sorted(set(steps)), f"{tag}: {steps}"

    sounds = 0
    for tag in tags["audio"]:
        kind, name = tag.split("/", 1)
        heard = events.Audio(tag)
        steps = [e.step for e in heard]
        assert steps == sorted(set(steps)), f"{tag}: {steps}"
        for e in heard:
            path = run / (f"samples/{e.step}/{name}.wav" if kind == "samples" else f"audio/{name}.wav")
            wav = path.read_bytes()
            assert e.encoded_audio_string == wav, f"{tag} after {e.step} is not {path}"
            rate, block = struct.unpack_from("<I", wav, 24)[0], struct.unpack_from("<H", wav, 32)[0]
            assert (e.sample_rate, e.length_frames, e.content_type) == (rate, (len(wav) - 44) // block, "audio/wav")
            sounds += 1
    written = len(list(run.glob("samples/*/*.wav"))) + len(list(run.glob("audio/*.wav")))
    for tag in tags["images"]:
        (image,) = events.Images(tag)
        assert image.encoded_image_string == (run / f"pictures/{tag}.png").read_bytes(), tag
        assert (image.width, image.height) == struct.unpack_from(">II", image.encoded_image_string, 16)

    texts = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in ["recipe", "plan"]}
    assert texts["recipe"] == "```yaml\n" + (run / "recipe.yaml").read_text() + "```\n", texts["recipe"]
    assert "| phase | planned | in use |" in texts["plan"], texts["plan"]
    parts = {
        tag: plugin_data_pb2.HParamsPluginData.FromString(content)
        for tag, content in events.PluginTagToContent("hparams").items()
    }
    start = parts["_hparams_/session_start_info"].session_start_info
    settings = [info.name for info in parts["_hparams_/experiment"].experiment.hparam_infos]
    assert set(settings) == set(start.hparams) and start.start_time_secs > 0
    ended = parts.get("_hparams_/session_end_info")
    assert ended is None or ended.session_end_info.status == 1

    print(f"{files[0].name}: {records} records, all whole")
    print(f"{len(trained)} curves of {len(expected['train/loss'])} updates, {points} points, each the log's")
    print(", ".join(f"{tag} after {[step for step, _ in values]}" for tag, values in validations.items()))
    print(f"{sounds} sounds of {written} files, {len(tags['images'])} pictures, byte for byte")
    print(f"recipe and plan as text, {len(settings)} settings; the session {'ended' if ended else 'goes on'}")


if __name__ == "__main__":
    try:
        check(Path(sys.argv[1]))
    except AssertionError as e:
        sys.exit(f"{sys.argv[1]}: {e}")
