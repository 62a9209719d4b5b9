"""Records how the package cuts texts: `chunk_text` of f5_tts/infer/utils_infer.py, taken from its source, as importing the module
loads models."""

import ast
import json
import random
import re
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent


def chunk_text():
    root = Path(find_spec("f5_tts").submodule_search_locations[0])
    tree = ast.parse((root / "infer/utils_infer.py").read_text())
    (function,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "chunk_text"]
    space = {"re": re}
    exec(compile(ast.Module([function], []), "utils_infer.py", "exec"), space)
    return space["chunk_text"]


def main():
    draw = random.Random(5)
    words = ["a", "the", "ferry", "leaves", "at", "half", "past", "seven", "e.g.", "3.5", "well—known", "naïve", "你好", "世界", "学习", "中文句子"]
    ends = [". ", ", ", "; ", ": ", "! ", "? ", "... ", "。", "，", "？", "！", "； ", ".\n", " "]
    cut, cases = chunk_text(), []
    while len(cases) < 60:
        text = "".join(draw.choice(words) + (draw.choice(ends) if draw.random() < 0.4 else " ") for _ in range(draw.randint(1, 40)))
        most = draw.randint(40, 160)
        pieces = cut(text, most)
        # Longer ones the package leaves whole, and here they are cut.
        if all(len(p.encode()) <= most for p in pieces):
            cases.append({"text": text, "most": most, "pieces": [p for p in pieces if p]})
    out = HERE / "fixtures/chunks.json"
    out.write_text(json.dumps(cases, ensure_ascii=False, indent=0) + "\n")
    print(len(cases), "texts")


if __name__ == "__main__":
    main()
