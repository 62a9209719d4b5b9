//! A Llama decoder (arXiv 2302.13971; grouped queries and tied embeddings as in Llama 3.2) as a program, in the tensor
//! names of Hugging Face's `LlamaForCausalLM`. T packed tokens, S clips, D width, V vocabulary.

use ambitus_ir::ops::attention::{Attention, Rotary};
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};

/// A checked model shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// D: `hidden_size`.
    pub dim: usize,
    /// Query heads: `num_attention_heads`.
    pub heads: usize,
    /// Key and value heads: `num_key_value_heads`; divides `heads`.
    pub kv_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// `intermediate_size`.
    pub ffn: usize,
    /// `num_hidden_layers`.
    pub layers: usize,
    /// V: `vocab_size`.
    pub vocab: usize,
    /// `rms_norm_eps`.
    pub eps: f32,
    /// `rope_theta`. The `llama3` scaling of frequencies is not applied.
    pub rope_base: f64,
    /// The head is the embedding: `tie_word_embeddings`.
    pub tied: bool,
}

/// Planned sizes of one packed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// T: tokens of all clips together.
    pub tokens: usize,
    /// S: clips.
    pub clips: usize,
}

/// Logits that exist at once (elements): enough rows to keep every core in one product, a fraction of an activation in
/// bytes.
const HEAD_TILE: usize = 1 << 24;

/// Builds the training step's forward. Inputs `input_ids` i32 `[T]`, `labels` i32 `[T]` (the token that follows each;
/// negative where none is scored), `segments` i32 `[S+1]`, `norm` `[1]` (1 / scored tokens of the update); output `loss`
/// `[1]`.
pub fn loss(session: &mut Session, cfg: &Config, cap: Capacity, name: &str) -> Program {
    let mut b = Builder::new(session, name);
    let tokens = TensorType::i32(&[cap.tokens]);
    let ids = b.input("input_ids", tokens);
    let labels = b.input("labels", tokens);
    let segs = b.input("segments", TensorType::i32(&[cap.clips + 1]));
    let norm = b.input("norm", TensorType::f32(&[1]));
    let (x, embedding) = b.scope("model", |b| decoder(b, cfg, ids, segs));
    let loss = b.scope("lm_head", |b| {
        let w = if cfg.tied { embedding } else { b.parameter("weight", &[cfg.vocab, cfg.dim]) };
        let tile = (HEAD_TILE / cfg.vocab).clamp(1, cap.tokens);
        b.linear_cross_entropy(x, w, labels, norm, tile)
    });
    b.output("loss", loss);
    b.finish()
}

/// The normed last hidden states `[T, D]`, and the embedding `[V, D]`.
fn decoder(b: &mut Builder<'_>, cfg: &Config, ids: ValueId, segs: ValueId) -> (ValueId, ValueId) {
    let table = b.scope("embed_tokens", |b| b.parameter("weight", &[cfg.vocab, cfg.dim]));
    let freqs = b.rotary_frequencies(cfg.head_dim, cfg.rope_base);
    let mut x = b.scope("embed_tokens", |b| b.gather(table, ids));
    for i in 0..cfg.layers {
        x = b.block("layers", i, |b| layer(b, cfg, freqs, segs, x));
    }
    (norm(b, "norm", cfg, x), table)
}

/// One layer, `[T, D]` to `[T, D]`.
fn layer(b: &mut Builder<'_>, cfg: &Config, freqs: ValueId, segs: ValueId, x: ValueId) -> ValueId {
    let h = norm(b, "input_layernorm", cfg, x);
    let h = b.scope("self_attn", |b| attention(b, cfg, freqs, segs, h));
    let x = b.add(x, h);
    let h = norm(b, "post_attention_layernorm", cfg, x);
    let h = b.scope("mlp", |b| {
        let gate = project(b, "gate_proj", h, cfg.ffn);
        let up = project(b, "up_proj", h, cfg.ffn);
        let h = b.swiglu(gate, up);
        project(b, "down_proj", h, cfg.dim)
    });
    b.add(x, h)
}

fn attention(b: &mut Builder<'_>, cfg: &Config, freqs: ValueId, segs: ValueId, h: ValueId) -> ValueId {
    let Config { heads, kv_heads, head_dim, .. } = *cfg;
    let q = project(b, "q_proj", h, heads * head_dim);
    let k = project(b, "k_proj", h, kv_heads * head_dim);
    let v = project(b, "v_proj", h, kv_heads * head_dim);
    let mut turned = |x, rotated| {
        let op = Rotary { head_dim, rotated, interleaved: false, inverse: false };
        b.push1(op, &[x, freqs, segs])
    };
    let (q, k) = (turned(q, heads), turned(k, kv_heads));
    let scale = 1.0 / (head_dim as f32).sqrt();
    let op = Attention { heads, kv_heads, head_dim, causal: true, scale };
    let o = b.self_attention(op, q, k, v, segs);
    project(b, "o_proj", o, cfg.dim)
}

/// x w^T with the parameter `<scope>.weight`; no linear here has a bias.
fn project(b: &mut Builder<'_>, scope: &str, x: ValueId, out: usize) -> ValueId {
    b.scope(scope, |b| {
        let inner = b.dim(x, 1);
        let w = b.parameter("weight", &[out, inner]);
        b.linear(x, w, None)
    })
}

/// RMS norm with the parameter `<scope>.weight`.
fn norm(b: &mut Builder<'_>, scope: &str, cfg: &Config, x: ValueId) -> ValueId {
    b.scope(scope, |b| {
        let gamma = b.parameter("weight", &[cfg.dim]);
        b.rms_norm(x, gamma, cfg.eps)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_ir::verify::verify;

    fn tiny(tied: bool) -> Config {
        Config {
            dim: 48,
            heads: 6,
            kv_heads: 2,
            head_dim: 8,
            ffn: 96,
            layers: 2,
            vocab: 128,
            eps: 1e-5,
            rope_base: 500_000.0,
            tied,
        }
    }

    #[test]
    fn states_have_the_checkpoints_names_and_shapes() {
        let mut session = Session::default();
        let cap = Capacity { tokens: 40, clips: 3 };
        let p = loss(&mut session, &tiny(false), cap, "micro");
        verify(&session, &p).expect("a built program is well formed");
        let shape = |name: &str| {
            let id = session.state(name).unwrap_or_else(|| panic!("{name} is missing"));
            session.states[id.index()].ty.shape.to_vec()
        };
        assert_eq!(shape("model.embed_tokens.weight"), [128, 48]);
        assert_eq!(shape("model.layers.1.self_attn.q_proj.weight"), [48, 48]);
        assert_eq!(shape("model.layers.1.self_attn.k_proj.weight"), [16, 48]);
        assert_eq!(shape("model.layers.1.self_attn.v_proj.weight"), [16, 48]);
        assert_eq!(shape("model.layers.1.self_attn.o_proj.weight"), [48, 48]);
        assert_eq!(shape("model.layers.0.mlp.gate_proj.weight"), [96, 48]);
        assert_eq!(shape("model.layers.0.mlp.up_proj.weight"), [96, 48]);
        assert_eq!(shape("model.layers.0.mlp.down_proj.weight"), [48, 96]);
        assert_eq!(shape("model.layers.0.input_layernorm.weight"), [48]);
        assert_eq!(shape("model.layers.0.post_attention_layernorm.weight"), [48]);
        assert_eq!(shape("model.norm.weight"), [48]);
        assert_eq!(shape("lm_head.weight"), [128, 48]);
        assert_eq!(session.states.len(), 2 * 9 + 3);
        assert_eq!(p.blocks, ["model.layers.0", "model.layers.1"]);
    }

    #[test]
    fn a_tied_head_is_the_embedding() {
        let mut session = Session::default();
        loss(&mut session, &tiny(true), Capacity { tokens: 40, clips: 3 }, "micro");
        assert!(session.state("lm_head.weight").is_none());
        assert_eq!(session.states.len(), 2 * 9 + 2);
    }
}
