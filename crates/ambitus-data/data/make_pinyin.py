"""Writes pinyin_chars.txt and pinyin_phrases.txt from the tables of the pypinyin package (pip install pypinyin==0.55.0).

Readings are in pypinyin's TONE3 style. pinyin_chars.txt: one syllable per line, then the characters whose first reading
it is. pinyin_phrases.txt, sorted by code points: a phrase, and after a tab its syllables where they differ from the
first readings of its characters.
"""

import re

from pypinyin.constants import PHRASES_DICT, PINYIN_DICT
from pypinyin.style._constants import RE_TONE3
from pypinyin.style._utils import replace_symbol_to_number


def tone3(reading):
    syllable = RE_TONE3.sub(r"\1\3\2", replace_symbol_to_number(reading))
    assert re.fullmatch(r"[a-z]+[1-4]?", syllable), reading
    return syllable


first = {chr(code): tone3(readings.split(",")[0]) for code, readings in PINYIN_DICT.items()}
by_syllable = {}
for char in sorted(first):
    by_syllable.setdefault(first[char], []).append(char)
with open("pinyin_chars.txt", "w", encoding="utf-8") as out:
    for syllable in sorted(by_syllable):
        out.write(f"{syllable} {''.join(by_syllable[syllable])}\n")
with open("pinyin_phrases.txt", "w", encoding="utf-8") as out:
    for phrase in sorted(PHRASES_DICT):
        readings = [tone3(r[0]) for r in PHRASES_DICT[phrase]]
        assert len(readings) == len(phrase)
        usual = readings == [first.get(char) for char in phrase]
        out.write(phrase + ("" if usual else "\t" + " ".join(readings)) + "\n")
