#!/usr/bin/env bash
# Makes the clips that clips/metadata.csv names: the second voice, which recipes/quickstart.yaml teaches to a model that
# knows only the first (recipes/base/make_data.sh). Needs espeak-ng and sox. The clips are in the repository, so nobody
# has to run this; made with espeak-ng 1.51 and sox 14.4.2, it writes the same bytes again.
set -euo pipefail
clips="$(cd "$(dirname "$0")" && pwd)/clips"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

while IFS='|' read -r name text; do
    espeak-ng -v en-gb+f3 -p 62 -s 185 -w "$scratch/voice.wav" -- "$text"
    # -D: no dither, so the bytes do not depend on chance. Silence at both ends is cut, to a tenth of a second.
    trim=(vol 0.8 silence 1 0.01 0.1% reverse silence 1 0.01 0.1% reverse pad 0.1 0.1)
    case "$name" in
        *.wav) sox -D "$scratch/voice.wav" -r 22050 -c 1 -b 16 "$clips/$name" "${trim[@]}" ;;
        *.flac) sox -D "$scratch/voice.wav" -r 24000 -c 2 -b 16 -C 8 "$clips/$name" "${trim[@]}" ;;
        *) echo "$name: neither wav nor flac" >&2; exit 1 ;;
    esac
done < "$clips/metadata.csv"
