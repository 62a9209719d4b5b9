"""The references: transformers' MusicgenForConditionalGeneration, and audiocraft's LMModel, fp32 on the CPU.

Nothing here re-implements a model. transformers shifts and masks the labels itself and takes their mean, over a batch that is padded;
audiocraft builds its pattern and reverts it, one clip at a time. A text is seen by its own clip alone.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import MusicgenForConditionalGeneration, T5EncoderModel
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

disable_progress_bar()
set_verbosity_error()

PACKAGE = "state_dict.bin"
TEXT = "condition_provider.conditioners.description.output_proj."


@dataclass
class Clip:
    """One clip of a batch file. U tokens of text, K codebooks, T frames."""

    text_ids: torch.Tensor  # i64 [U], with its </s>; empty: no condition
    codes: torch.Tensor  # i64 [K, T]

    FIELDS = ("text_ids", "codes")

    @property
    def frames(self) -> int:
        return self.codes.shape[1]


def save_batch(clips: list[Clip], path: Path) -> None:
    save_file({f"clips.{i}.{f}": getattr(c, f).contiguous() for i, c in enumerate(clips) for f in Clip.FIELDS}, str(path))


def load_batch(path: Path) -> list[Clip]:
    tensors = load_file(str(path))
    count = 1 + max(int(name.split(".")[1]) for name in tensors)
    return [Clip(**{f: tensors[f"clips.{i}.{f}"] for f in Clip.FIELDS}) for i in range(count)]


class Transformers:
    """A folder as transformers saves it. Strict: no key is missing, unexpected or of another shape."""

    def __init__(self, directory: Path) -> None:
        # Eager and SDPA agree; a row that sees no key is what SDPA is not defined for.
        self.model, info = MusicgenForConditionalGeneration.from_pretrained(
            directory, torch_dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        wrong = {what: keys for what, keys in info.items() if keys}
        assert not wrong, f"{directory}: {wrong}"
        self.model.freeze_text_encoder()
        self.model.freeze_audio_encoder()
        # `ambitus gradients` drops nothing, whatever a folder says.
        for module in self.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            elif isinstance(getattr(module, "dropout", None), float):
                module.dropout = 0.0
        self.model.train()
        decoder = self.model.config.decoder
        decoder.decoder_start_token_id = decoder.pad_token_id
        pairs = 2 if decoder.audio_channels == 2 else 1
        self.delays = [k // pairs for k in range(decoder.num_codebooks)]

    def texts(self, clips: list[Clip]) -> dict[str, torch.Tensor]:
        longest = max(1, *(len(c.text_ids) for c in clips))
        ids = torch.zeros(len(clips), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, clip in enumerate(clips):
            ids[i, : len(clip.text_ids)] = clip.text_ids
            mask[i, : len(clip.text_ids)] = 1
        return dict(input_ids=ids, attention_mask=mask)

    def labels(self, clips: list[Clip]) -> torch.Tensor:
        """[B, S, K]: what follows each step, -100 in the holes of the delay."""
        out = torch.full((len(clips), max(c.frames for c in clips), len(self.delays)), -100)
        for i, clip in enumerate(clips):
            for k, late in enumerate(self.delays):
                out[i, late : clip.frames, k] = clip.codes[k, : max(clip.frames - late, 0)]
        return out

    def gradients(self, clips: list[Clip]) -> tuple[float, dict[str, torch.Tensor]]:
        self.model.zero_grad(set_to_none=True)
        loss = self.model(**self.texts(clips), labels=self.labels(clips), use_cache=False).loss
        loss.backward()
        named = {n: p for n, p in self.model.named_parameters() if not n.startswith(("text_encoder.", "audio_encoder."))}
        return loss.item(), {n: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for n, p in named.items()}

    @torch.no_grad()
    def states(self, clip: Clip) -> torch.Tensor:
        """[U, d] of the text encoder, before any projection."""
        return self.model.text_encoder(input_ids=clip.text_ids[None]).last_hidden_state[0]

    @torch.no_grad()
    def logits(self, clip: Clip, fed: torch.Tensor) -> torch.Tensor:
        """[K, V] of what follows the columns [K, S]."""
        return self.model(**self.texts([clip]), decoder_input_ids=fed, use_cache=False).logits[:, -1]

    @torch.no_grad()
    def generate(self, clip: Clip, new: int, guidance: float) -> torch.Tensor:
        """[K, n]: what the codec is given; it is left out."""
        seen, decode = [], self.model.audio_encoder.decode

        def watched(audio_codes, **_):
            seen.append(audio_codes[0, 0])
            return type("Out", (), dict(audio_values=torch.zeros(1, 1, 4)))

        self.model.audio_encoder.decode = watched
        try:
            self.model.eval().generate(**self.texts([clip]), do_sample=False, guidance_scale=guidance, max_new_tokens=new)
        finally:
            self.model.audio_encoder.decode = decode
            self.model.train()
        return seen[0] if len(seen) == 1 else torch.stack(seen, 1).flatten(0, 1)


class Stub(ModuleType):
    """Stands in for a module of which nothing is run: audio, other conditions, and what they need."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


STUBS = ["xformers", "spacy", "av"] + [f"audiocraft.{n}" for n in ("modules.chroma", "data.audio", "data.audio_dataset", "data.audio_utils", "environment", "quantization")]


def audiocraft_lm() -> ModuleType:
    """audiocraft's lm.py, without what its packages import besides."""
    if "audiocraft" not in sys.modules:
        root = Path(find_spec("audiocraft").submodule_search_locations[0])
        for name in STUBS:
            sys.modules[name] = Stub(name)
            sys.modules[name].__spec__ = ModuleSpec(name, None)
        sys.modules["xformers"].ops = sys.modules["xformers.ops"] = Stub("xformers.ops")
        sys.modules["xformers.ops"].unbind = torch.unbind
        for name in ("audiocraft", "audiocraft.models", "audiocraft.modules", "audiocraft.data"):
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    from audiocraft.models import lm

    return lm


def build_lm(config: dict, efficient: bool = True):
    """audiocraft's LMModel of a configuration like that in a checkpoint; texts come as tensors."""
    lm = audiocraft_lm()
    from audiocraft.modules.codebooks_patterns import DelayedPatternProvider
    from audiocraft.modules.conditioners import ConditionFuser, ConditioningProvider

    own = {k: v for k, v in config["transformer_lm"].items() if k != "memory_efficient"}
    pattern = DelayedPatternProvider(own["n_q"], **config["codebooks_pattern"]["delay"])
    fuser = ConditionFuser({"cross": ["description"], "sum": [], "prepend": [], "input_interpolate": []})
    return lm.LMModel(pattern, ConditioningProvider({}), fuser, **own | dict(memory_efficient=efficient, cross_attention=True))


def transformers_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """audiocraft's tensors under transformers' names."""
    out = {}
    parts = {"norm1": "self_attn_layer_norm", "norm_cross": "encoder_attn_layer_norm", "norm2": "final_layer_norm", "linear1": "fc1", "linear2": "fc2"}
    for name, tensor in state.items():
        words = name.replace(".mha.", ".").split(".")
        if words[0] == "emb":
            out[f"decoder.model.decoder.embed_tokens.{words[1]}.weight"] = tensor
        elif words[0] == "linears":
            out[f"decoder.lm_heads.{words[1]}.weight"] = tensor
        elif words[0] == "out_norm":
            out[f"decoder.model.decoder.layer_norm.{words[1]}"] = tensor
        elif name.startswith(TEXT):
            out[f"enc_to_dec_proj.{words[-1]}"] = tensor
        else:
            layer = f"decoder.model.decoder.layers.{words[2]}."
            if words[3] in parts:
                out[f"{layer}{parts[words[3]]}.{words[4]}"] = tensor
                continue
            attention = {"self_attn": "self_attn", "cross_attention": "encoder_attn"}[words[3]]
            if words[4] == "in_proj_weight":
                out |= {f"{layer}{attention}.{x}_proj.weight": t for x, t in zip("qkv", tensor.chunk(3))}
            else:
                out[f"{layer}{attention}.out_proj.weight"] = tensor
    return out


class Audiocraft:
    """A folder with audiocraft's `state_dict.bin`, and a T5 in `t5/`."""

    def __init__(self, directory: Path) -> None:
        package = torch.load(directory / PACKAGE, map_location="cpu", weights_only=True)
        self.config = yaml.safe_load(package["xp.cfg"])
        state = {name.replace(".mha.", "."): tensor.float() for name, tensor in package["best_state"].items()}
        text = {name.removeprefix(TEXT): state.pop(name) for name in list(state) if name.startswith(TEXT)}
        self.lm = build_lm(self.config)
        self.lm.load_state_dict(state, strict=True)
        self.project = torch.nn.Linear(text["weight"].shape[1], text["weight"].shape[0])
        self.project.load_state_dict(text, strict=True)
        self.t5 = T5EncoderModel.from_pretrained(directory / "t5").eval() if (directory / "t5").is_dir() else None
        delays = self.config["codebooks_pattern"]["delay"].get("delays")
        self.delays = list(range(self.lm.n_q)) if delays is None else delays

    def condition(self, clip: Clip) -> dict:
        if len(clip.text_ids) == 0:
            return {"description": (torch.zeros(1, 1, self.lm.dim), torch.zeros(1, 1, dtype=torch.long))}
        with torch.no_grad():
            states = self.t5(input_ids=clip.text_ids[None]).last_hidden_state
        return {"description": (self.project(states), torch.ones(1, len(clip.text_ids), dtype=torch.long))}

    def gradients(self, clips: list[Clip]) -> tuple[float, dict[str, torch.Tensor]]:
        self.lm.zero_grad(set_to_none=True)
        self.project.zero_grad(set_to_none=True)
        scored = [max(sum(max(c.frames - late, 0) for c in clips), 1) for late in self.delays]
        total = 0.0
        for clip in clips:
            out = self.lm.train().compute_predictions(clip.codes[None], [], self.condition(clip))
            loss = 0.0
            for k in range(self.lm.n_q):
                mask = out.mask[0, k]
                loss = loss + torch.nn.functional.cross_entropy(out.logits[0, k][mask], clip.codes[k][mask], reduction="sum") / scored[k]
            loss = loss / self.lm.n_q
            loss.backward()
            total += loss.item()
        named = dict(self.lm.named_parameters()) | {TEXT + n: p for n, p in self.project.named_parameters()}
        return total, transformers_names({n: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for n, p in named.items()})

    @torch.no_grad()
    def logits(self, clip: Clip, fed: torch.Tensor) -> torch.Tensor:
        return self.lm.eval()(fed[None], [], self.condition(clip))[0, :, -1]

    @torch.no_grad()
    def generate(self, clip: Clip, new: int, guidance: float) -> torch.Tensor | None:
        """Its own `generate` takes texts, not tensors: the loop in plain words is all there is."""
        return None


def load(directory: Path) -> Transformers | Audiocraft:
    return Audiocraft(directory) if (directory / PACKAGE).is_file() else Transformers(directory)


def gradients(model: Transformers | Audiocraft, clips: list[Clip]) -> tuple[float, dict[str, torch.Tensor]]:
    return model.gradients(clips)


def save_gradients(loss: float, grads: dict[str, torch.Tensor], path: Path) -> None:
    save_file({"loss": torch.tensor([loss]), **{f"grad.{n}": g.contiguous() for n, g in grads.items()}}, str(path))
