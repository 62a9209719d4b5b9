"""Generation: transformers' tokens and logits beside those of `ambitus generate`.

    python generate.py BINARY [--count N --seed S]     random folders, prompts and settings, through the binary
    python generate.py --record                        writes generate.safetensors of the fixtures

Greedy tokens must be equal as long as the reference's two largest logits differ by more than ten times the tolerance; sampled ones
are drawn by argmax(p / q) on given q on both sides.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from make import LLAMA3, make_model
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM, LogitsProcessorList, RepetitionPenaltyLogitsProcessor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

sys.path.append(str(Path(__file__).resolve().parent.parent))
from sweep_sets import generate_main  # noqa: E402

FIXTURES = Path(__file__).resolve().parent / "fixtures"
# Relative to the largest logit of a step. In 16 bits: as far as transformers' own model in that type is, twice, and a little.
FP32 = 1e-4
NARROW = {"bf16-mixed": torch.bfloat16, "bf16-pure": torch.bfloat16, "fp16-mixed": torch.float16}
LITTLE = 2e-3
PRECISIONS = ["fp32", *NARROW]


def load(directory: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def processors(settings: dict) -> LogitsProcessorList:
    """transformers' own, in the order of `_get_logits_processor`."""
    out = LogitsProcessorList()
    if settings.get("repetition_penalty", 1.0) != 1.0:
        out.append(RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]))
    if not settings["greedy"]:
        if settings.get("temperature", 1.0) != 1.0:
            out.append(TemperatureLogitsWarper(settings["temperature"]))
        if settings.get("top_k", 0):
            out.append(TopKLogitsWarper(settings["top_k"]))
        if settings.get("top_p", 1.0) < 1.0:
            out.append(TopPLogitsWarper(settings["top_p"]))
    return out


@torch.no_grad()
def reference(model: LlamaForCausalLM, prompt: torch.Tensor, q: torch.Tensor, n: int, stops: list[int], settings: dict):
    """New tokens, and the logits of each before any processor. Greedy ones are `generate`'s own, if no stop is in the way."""
    steps, ids, past, given = [], prompt[None], None, prompt[None]
    process = processors(settings)
    for step in range(n):
        out = model(given, past_key_values=past, use_cache=True)
        past, logits = out.past_key_values, out.logits[:, -1].float()
        steps.append(logits[0].clone())
        scores = process(ids, logits.clone())
        token = scores.argmax(-1) if settings["greedy"] else (scores.softmax(-1) / q[step]).argmax(-1)
        ids, given = torch.cat([ids, token[None]], 1), token[None]
        if int(token) in stops:
            break
    tokens = ids[0, len(prompt):]
    if settings["greedy"]:
        own = model.generate(prompt[None], attention_mask=torch.ones_like(prompt[None]), do_sample=False, max_new_tokens=n,
                             repetition_penalty=settings.get("repetition_penalty", 1.0), eos_token_id=stops or None, pad_token_id=0)
        assert torch.equal(own[0, len(prompt):], tokens), "the loop is not transformers' generate"
    return tokens, torch.stack(steps)


@torch.no_grad()
def narrow_error(directory: Path, want, prompts: list[torch.Tensor], dtype: torch.dtype) -> float:
    """How far the reference's own logits in a 16-bit type are from those in fp32, over all prompts."""
    model = LlamaForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager").eval()
    worst = 0.0
    for prompt, (tokens, logits) in zip(prompts, want):
        got = model(torch.cat([prompt, tokens[:-1]])[None]).logits[0, len(prompt) - 1 :].float()
        worst = max(worst, float(((got - logits).abs().amax(1) / logits.abs().amax(1)).max()))
    return worst


def stops_of(directory: Path) -> list[int]:
    for name in ["generation_config.json", "config.json"]:
        path = directory / name
        value = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
        if value is not None:
            return value if isinstance(value, list) else [value]
    return []


def options(settings: dict) -> list[str]:
    out = ["--greedy"] if settings["greedy"] else []
    for key in ["repetition_penalty", "temperature", "top_k", "top_p"]:
        if key in settings and (not settings["greedy"] or key == "repetition_penalty"):
            out += ["--" + key.replace("_", "-"), str(settings[key])]
    return out


def compare(want, got: dict, i: int, tolerance: float, greedy: bool) -> tuple[float, int]:
    """The worst logit and the tokens that were compared."""
    tokens, logits = want
    worst = 0.0
    for step, expected in enumerate(logits):
        have = got[f"clips.{i}.logits"]
        assert step < len(have), f"clip {i}: {len(have)} tokens of {len(logits)}"
        scale = expected.abs().max()
        worst = max(worst, float((have[step] - expected).abs().max() / scale))
        top = expected.topk(2).values
        token = int(got[f"clips.{i}.tokens"][step])
        if greedy and (top[0] - top[1]) <= 10 * tolerance * scale or not greedy and tolerance > FP32:
            # Too near to tell: from the first other token on the logits are of another text.
            if token != int(tokens[step]):
                return worst, step
        assert token == int(tokens[step]), f"clip {i}, step {step}: token {token}, not {int(tokens[step])}"
    assert len(got[f"clips.{i}.tokens"]) == len(tokens), f"clip {i} goes on"
    return worst, len(logits)


def draw(seed: int, directory: Path) -> tuple[list[torch.Tensor], list[torch.Tensor], int, dict]:
    g = torch.Generator().manual_seed(seed)
    pick = lambda *of: of[int(torch.randint(len(of), (1,), generator=g))]
    kv, group, vocab = pick(1, 2, 3), pick(1, 2, 4), pick(37, 64, 131)
    rope = pick(None, {**LLAMA3, "factor": 8.0, "original_max_position_embeddings": 64})
    make_model(directory, seed, gain=1.7, vocab_size=vocab, hidden_size=pick(16, 40, 64), intermediate_size=pick(24, 72),
               num_hidden_layers=pick(1, 2, 4), num_attention_heads=kv * group, num_key_value_heads=kv, head_dim=pick(8, 16, 10),
               rope_theta=pick(1000.0, 500000.0), rope_scaling=rope, tie_word_embeddings=pick(True, False))
    stops = pick(None, 3, [1, 5])
    (directory / "generation_config.json").write_text(json.dumps({} if stops is None else {"eos_token_id": stops}))
    config = json.loads((directory / "config.json").read_text())
    config["eos_token_id"] = None
    (directory / "config.json").write_text(json.dumps(config))
    n = pick(1, 20, 200)
    prompts = [torch.randint(vocab, (pick(1, 5, 33, 80),), generator=g) for _ in range(pick(1, 3, 5))]
    draws = [torch.empty(n, vocab).exponential_(generator=g) for _ in prompts]
    settings = pick({"greedy": True}, {"greedy": True, "repetition_penalty": 1.3}, {"greedy": False},
                    {"greedy": False, "temperature": 0.6, "top_p": 0.8, "repetition_penalty": 1.1},
                    {"greedy": False, "temperature": 1.4, "top_k": 9}, {"greedy": False, "top_k": 20, "top_p": 0.9})
    return prompts, draws, n, settings


def sweep(binary: str, count: int, first: int) -> None:
    compared, worst_of = 0, {}
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            prompts, draws, n, settings = draw(seed, folder / "model")
            model, stops = load(folder / "model"), stops_of(folder / "model")
            want = [reference(model, p, q, n, stops, settings) for p, q in zip(prompts, draws)]
            batch = {f"clips.{i}.input_ids": p for i, p in enumerate(prompts)}
            if not settings["greedy"]:
                batch |= {f"clips.{i}.q": q for i, q in enumerate(draws)}
            save_file(batch, str(folder / "batch.safetensors"))
            same = None
            tolerance = {"fp32": FP32}
            for precision, dtype in NARROW.items():
                tolerance[precision] = LITTLE + 2 * narrow_error(folder / "model", want, prompts, dtype)
            for more in [["--precision", p] for p in PRECISIONS] + [["--sequences", "1"], ["--sequences", "2", "--threads", "1"]]:
                out = folder / "out.safetensors"
                command = [binary, "generate", "--model", folder / "model", "--batch", folder / "batch.safetensors", "--out", out]
                command += ["--logits", "--max-new", str(n), *options(settings), *more]
                subprocess.run([str(c) for c in command], check=True, capture_output=True)
                got = load_file(str(out))
                precision = more[1] if more[0] == "--precision" else "fp32"
                for i, w in enumerate(want):
                    worst, tokens = compare(w, got, i, tolerance[precision], settings["greedy"])
                    compared += tokens
                    worst_of[precision] = max(worst_of.get(precision, 0.0), worst)
                    limit = tolerance[precision]
                    assert worst <= limit, f"seed {seed}, {more}, clip {i}: logits off by {worst:.1e}, limit {limit:.1e}"
                tokens = {k: v.tolist() for k, v in got.items() if k.endswith("tokens")}
                if precision == "fp32":
                    same = same or tokens
                    assert tokens == same, f"seed {seed}: other tokens with {more}"
            print(f"seed {seed}: {settings}, {len(prompts)} prompts, {n} tokens: ok", flush=True)
    print(f"{count} cases, {compared} tokens equal; worst logits {worst_of}")


def record() -> None:
    # Not `sharded`: transformers 4 reads its spelling of RoPE as none.
    for seed, name in enumerate(["tied", "untied"]):
        model = load(FIXTURES / name)
        g, vocab, n = torch.Generator().manual_seed(seed), model.config.vocab_size, 24
        prompts = [torch.randint(vocab, (k,), generator=g) for k in [7, 1, 12]]
        stops = stops_of(FIXTURES / name)
        draws = [torch.empty(n, vocab).exponential_(generator=g) for _ in prompts]
        out = {}
        for i, (p, q) in enumerate(zip(prompts, draws)):
            out[f"clips.{i}.input_ids"], out[f"clips.{i}.q"] = p, q
            out[f"clips.{i}.greedy"], out[f"clips.{i}.logits"] = reference(model, p, q, n, stops, {"greedy": True})
            out[f"clips.{i}.penalised"], _ = reference(model, p, q, n, stops, {"greedy": True, "repetition_penalty": 1.3})
            sampled = {"greedy": False, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.1}
            out[f"clips.{i}.sampled"], _ = reference(model, p, q, n, stops, sampled)
        save_file({k: v.contiguous() for k, v in out.items()}, str(FIXTURES / name / "generate.safetensors"))


if __name__ == "__main__":
    generate_main(record, sweep, __doc__)
