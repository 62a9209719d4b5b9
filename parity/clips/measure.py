"""How well `ambitus clips` cuts recordings whose pauses are known: measure.py BINARY [--seed N] [--minutes M] [--voices A,B,C]
[--music DB] [--words FEWEST-MOST] [--keep DIR].

Makes recordings of M minutes each (espeak-ng, three voices, pauses of 0.3 to 1.5 s) with white, pink and brown noise at 30, 20 and 10 dB and
music under a third of each, cuts them, and says
- of all cuts (beginnings and ends of clips, but those of the recording) the share in a true pause, within 30 ms;
- of all speech, sample by sample, the share in exactly one clip;
- clips over the limit, and how many of these have a true pause of 150 ms in them;
- whether one thread and four make the same clips;
- peak memory for all of it in one recording, and for a minute.
Needs numpy and espeak-ng."""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from speech import RATE, recording, write

TOLERANCE = 0.03
MOST = 12.0


def clips(binary, inputs, out, *more):
    """Clips of recordings, and the peak resident memory in MiB."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([binary, "clips", *inputs, "-o", out, "--json", *more], stdout=said, stderr=subprocess.DEVNULL)
        peak = 0
        while process.poll() is None:
            # The kernel's count for a child that has ended has the pages of Python in it, before the program was loaded.
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
                peak = max([peak] + [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")])
            except (FileNotFoundError, ProcessLookupError):
                pass
            time.sleep(0.01)
        assert process.returncode == 0, process.returncode
        said.seek(0)
        return json.load(said), peak / 1024


def measured(made, spans, samples):
    """Counts of one recording."""
    end = samples / RATE
    times = np.array(spans) / RATE
    cuts = [t for clip in made for t in (clip["start"], clip["end"]) if 0.001 < t < end - 0.001]
    inside = [bool(((times[:, 0] + TOLERANCE < t) & (t < times[:, 1] - TOLERANCE)).any()) for t in cuts]
    covered = np.zeros(samples + 1, np.int32)
    for clip in made:
        covered[round(clip["start"] * RATE)] += 1
        covered[round(clip["end"] * RATE)] -= 1
    covered = np.cumsum(covered[:-1])
    once = sum(int(np.count_nonzero(covered[a:b] == 1)) for a, b in spans)
    over = [clip for clip in made if clip["end"] - clip["start"] > MOST + 0.001]
    gaps = list(zip(times[:-1, 1], times[1:, 0]))
    missed = sum(any(a > clip["start"] and b < clip["end"] for a, b in gaps) for clip in over)
    lengths = [clip["end"] - clip["start"] for clip in made]
    wrong = [round(t, 2) for t, bad in zip(cuts, inside) if bad]
    return dict(cuts=len(cuts), wrong=wrong, once=once, speech=sum(b - a for a, b in spans), over=len(over), missed=missed, lengths=lengths)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=20 / 3)
    parser.add_argument("--voices", default="en-us,de,fr-fr")
    parser.add_argument("--music", type=float, default=15.0)
    parser.add_argument("--words", default="3-14")
    parser.add_argument("--keep")
    a = parser.parse_args()
    voices = [(v, 150 + 15 * i, 40 + 10 * i) for i, v in enumerate(a.voices.split(","))]
    words = tuple(int(n) for n in a.words.split("-"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(a.keep or temporary)
        folder.mkdir(exist_ok=True)
        truth, whole = {}, []
        for i, (snr, colour) in enumerate((s, c) for s in (30, 20, 10) for c in ("white", "pink", "brown")):
            path = folder / f"{snr}-{colour}.wav"
            x, spans = recording(1000 * a.seed + i, 60 * a.minutes, voices, folder, snr, colour, a.music, 1 / 3, words)
            write(path, x)
            truth[str(path)] = (spans, len(x))
            whole.append(x)
        out = Path(temporary)
        made, _ = clips(a.binary, list(truth), out / "one", "--threads", "1")
        again, _ = clips(a.binary, list(truth), out / "four", "--threads", "4")
        same = [(c["source"], c["start"], c["end"]) for c in made] == [(c["source"], c["start"], c["end"]) for c in again]
        print(f"{'':12} cuts  in a pause  speech in one clip  over (missed)  seconds: least median most")
        for snr in (30, 20, 10):
            total = dict(cuts=0, wrong=[], once=0, speech=0, over=0, missed=0, lengths=[])
            for path, (spans, samples) in truth.items():
                if Path(path).name.startswith(f"{snr}-"):
                    got = measured([c for c in made if c["source"] == path], spans, samples)
                    total = {key: total[key] + got[key] for key in total}
                    if got["wrong"]:
                        print(f"  {Path(path).name}: not in a pause: {got['wrong']}")
            lengths = sorted(total["lengths"])
            print(
                f"{snr:3} dB      {total['cuts']:5}  {100 - 100 * len(total['wrong']) / total['cuts']:9.2f} %"
                f"  {100 * total['once'] / total['speech']:16.3f} %  {total['over']:4} ({total['missed']})"
                f"  {lengths[0]:18.2f} {lengths[len(lengths) // 2]:.2f} {lengths[-1]:.2f}"
            )
        print("the same clips with 1 and 4 threads:", same)
        whole = np.concatenate(whole)
        peaks = []
        for name, x in (("minute", whole[: 60 * RATE]), ("all", whole)):
            write(out / f"{name}.wav", x)
            peaks.append(clips(a.binary, [out / f"{name}.wav"], out / f"{name}-clips")[1])
        print(f"peak memory, MiB: {peaks[0]:.1f} for a minute, {peaks[1]:.1f} for {len(whole) / RATE / 60:.1f} minutes")


main()
