#!/usr/bin/env bash
# Makes the first voice, on which recipes/base.yaml trains the quickstart's base model: one clip for each line of
# sentences.txt, as `name.wav` with `name.txt` beside it. Needs espeak-ng and sox.
#   recipes/base/make_data.sh FOLDER
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
here="$(cd "$(dirname "$0")" && pwd)"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$1"

number=0
while IFS= read -r text; do
    number=$((number + 1))
    name="$(printf 'base-%02d' "$number")"
    espeak-ng -v en-us -s 165 -w "$scratch/voice.wav" -- "$text"
    # -D: no dither, so the bytes do not depend on chance. Silence at both ends is cut, to a tenth of a second.
    sox -D "$scratch/voice.wav" -r 24000 -c 1 -b 16 "$1/$name.wav" \
        vol 0.8 silence 1 0.01 0.1% reverse silence 1 0.01 0.1% reverse pad 0.1 0.1
    printf '%s\n' "$text" > "$1/$name.txt"
done < "$here/sentences.txt"
echo "$number clips in $1"
