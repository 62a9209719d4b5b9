//! A Llama decoder (arXiv 2302.13971; grouped queries and tied embeddings as in Llama 3.2) as a program, in the tensor
//! names of Hugging Face's `LlamaForCausalLM`. T packed tokens, S clips, D width, V vocabulary.

use super::config::{Config, Stretch};
use crate::batch::Capacity;
use crate::common::{project, rms_norm};
use crate::decode::{self, Room, Table};
use ambitus_ir::ops::attention::{Attention, Rotary};
use ambitus_ir::ops::elementwise::BinaryKind;
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};

/// Logits that exist at once (elements): enough rows to keep every core in one product, a fraction of an activation in
/// bytes.
const HEAD_TILE: usize = 1 << 24;

/// Builds the training step's forward. Inputs `input_ids` i32 `[T]`, `labels` i32 `[T]` (the token that follows each;
/// negative where none is scored), `segments` i32 `[S+1]`, `norm` `[1]` (1 / scored tokens of the update); output `loss`
/// `[1]`.
pub fn loss(session: &mut Session, cfg: &Config, cap: Capacity, name: &str) -> Program {
    let mut b = Builder::new(session, name);
    let tokens = TensorType::i32(&[cap.rows]);
    let ids = b.input("input_ids", tokens);
    let labels = b.input("labels", tokens);
    let segs = b.input("segments", TensorType::i32(&[cap.clips + 1]));
    let norm = b.input("norm", TensorType::f32(&[1]));
    let (x, embedding) = b.scope("model", |b| decoder(b, cfg, ids, &Seen::Clip(segs)));
    let loss = b.scope("lm_head", |b| {
        let w = if cfg.tied { embedding } else { b.parameter("weight", &[cfg.vocab, cfg.dim]) };
        let tile = (HEAD_TILE / cfg.vocab).clamp(1, cap.rows);
        b.linear_cross_entropy(x, w, labels, norm, tile)
    });
    b.output("loss", loss);
    b.finish()
}

/// Builds the programs of generation: tables of [`decode`], `input_ids` i32 `[T]` of the packed prompts
/// ([`decode::PREFILL`]) or `[S]` of one token a sequence ([`decode::STEP`]); output `logits` f32 `[S, V]` of the tokens that follow.
pub fn generate(session: &mut Session, cfg: &Config, room: Room) -> Vec<Program> {
    let program = |prompts: bool, session: &mut Session| {
        let mut b = Builder::new(session, if prompts { decode::PREFILL } else { decode::STEP });
        let rows = if prompts { room.prompts } else { room.sequences };
        let ids = b.input("input_ids", TensorType::i32(&[rows]));
        let table = Table::input(&mut b, room, prompts);
        let (x, embedding) = b.scope("model", |b| decoder(b, cfg, ids, &Seen::Cached(table)));
        let x = table.last(&mut b, x);
        let logits = b.scope("lm_head", |b| {
            let w = if cfg.tied { embedding } else { b.parameter("weight", &[cfg.vocab, cfg.dim]) };
            b.linear(x, w, None)
        });
        b.output("logits", logits);
        b.finish()
    };
    vec![program(true, session), program(false, session)]
}

/// Which keys a query sees.
enum Seen {
    /// Those of its own clip, by the segment table.
    Clip(ValueId),
    /// Those of its own sequence, earlier steps' among them.
    Cached(Table),
}

/// Returns the normed last hidden states `[T, D]`, and the embedding `[V, D]`.
fn decoder(b: &mut Builder<'_>, cfg: &Config, ids: ValueId, segs: &Seen) -> (ValueId, ValueId) {
    let table = b.scope("embed_tokens", |b| b.parameter("weight", &[cfg.vocab, cfg.dim]));
    let freqs = b.scope("rotary_emb", |b| frequencies(b, cfg));
    let mut x = b.scope("embed_tokens", |b| b.gather(table, ids));
    for i in 0..cfg.layers {
        x = b.block("layers", i, |b| layer(b, cfg, freqs, segs, x));
    }
    (rms_norm(b, "norm", x, cfg.eps), table)
}

/// Returns the inverse frequencies `[head_dim / 2]`.
fn frequencies(b: &mut Builder<'_>, cfg: &Config) -> ValueId {
    let freqs = b.rotary_frequencies(cfg.head_dim, cfg.rope_base);
    match cfg.stretch {
        Some(stretch) => stretched(b, stretch, freqs),
        None => freqs,
    }
}

/// Computes transformers' `_compute_llama3_parameters`: with the wavelength w = 2 pi / f, f where w < original / high, f /
/// factor where w > original / low, (1 - s) f / factor + s f between them, with s = (original / w - low) / (high - low). These
/// are one formula, as s is 1 and 0 at the ends: s is clamped.
fn stretched(b: &mut Builder<'_>, by: Stretch, f: ValueId) -> ValueId {
    let Stretch { factor, low, high, original } = by;
    let scalar = |b: &mut Builder<'_>, x: f64| b.fill(TensorType::f32(&[1]), x as f32);
    let slope = scalar(b, original / std::f64::consts::TAU / (high - low));
    let s = b.scale(f, slope);
    let from = b.fill_like(f, (low / (high - low)) as f32);
    let s = b.sub(s, from);
    let (zero, one) = (b.fill_like(f, 0.0), b.fill_like(f, 1.0));
    let s = b.binary(BinaryKind::Max, s, zero);
    let s = b.binary(BinaryKind::Min, s, one);
    // f / factor + s (f - f / factor)
    let shrink = scalar(b, 1.0 / factor);
    let slow = b.scale(f, shrink);
    let rest = b.sub(f, slow);
    let rest = b.mul(s, rest);
    b.add(slow, rest)
}

/// Applies one layer, `[T, D]` to `[T, D]`.
fn layer(b: &mut Builder<'_>, cfg: &Config, freqs: ValueId, segs: &Seen, x: ValueId) -> ValueId {
    let h = rms_norm(b, "input_layernorm", x, cfg.eps);
    let h = b.scope("self_attn", |b| attention(b, cfg, freqs, segs, h));
    let x = b.add(x, h);
    let h = rms_norm(b, "post_attention_layernorm", x, cfg.eps);
    let h = b.scope("mlp", |b| {
        let gate = project(b, "gate_proj", h, cfg.ffn);
        let up = project(b, "up_proj", h, cfg.ffn);
        let h = b.swiglu(gate, up);
        project(b, "down_proj", h, cfg.dim)
    });
    b.add(x, h)
}

fn attention(b: &mut Builder<'_>, cfg: &Config, freqs: ValueId, seen: &Seen, h: ValueId) -> ValueId {
    let Config { heads, kv_heads, head_dim, .. } = *cfg;
    let q = project(b, "q_proj", h, heads * head_dim);
    let k = project(b, "k_proj", h, kv_heads * head_dim);
    let v = project(b, "v_proj", h, kv_heads * head_dim);
    let mut turned = |x, rotated| {
        let op = Rotary { head_dim, rotated, interleaved: false, inverse: false };
        match seen {
            Seen::Clip(segs) => b.push1(op, &[x, freqs, *segs]),
            Seen::Cached(table) => table.turned(b, op, x, freqs),
        }
    };
    let (q, k) = (turned(q, heads), turned(k, kv_heads));
    let scale = 1.0 / (head_dim as f32).sqrt();
    let op = Attention { heads, kv_heads, head_dim, causal: true, scale };
    let o = match seen {
        Seen::Clip(segs) => b.self_attention(op, q, k, v, *segs),
        Seen::Cached(table) => table.attention(b, op, q, k, v),
    };
    project(b, "o_proj", o, cfg.dim)
}
