//! The encoder as a program, for inference. U tokens, D width, H heads, V vocabulary.

use super::config::Config;
use super::pairs::{BUCKETS, UNSEEN};
use ambitus_ir::ops::activation::ActivationKind;
use ambitus_ir::ops::elementwise::{BinaryKind, UnaryKind};
use ambitus_ir::ops::reduce::ReduceKind;
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};

/// Returns the program's name: a session may have one for each of several sizes, and of each one that drops.
pub fn name(tokens: usize, drops: bool) -> String {
    format!("{}.{tokens}", if drops { "drop" } else { "encode" })
}

/// What dropout reads: its probability, the text's key i32 `[1, 2]`, and the places of its rows and of its scores' rows i32 `[2]`.
#[derive(Clone, Copy)]
struct Drops {
    p: f32,
    key: ValueId,
    rows: ValueId,
    scores: ValueId,
}

/// Returns what is left of rows `[U, C]`.
fn dropped(b: &mut Builder<'_>, drops: Option<Drops>, x: ValueId) -> ValueId {
    drops.map_or(x, |of| b.dropout(x, of.p, of.key, of.rows))
}

/// Builds the program for `tokens` tokens: inputs `ids` i32 `[U]` (-1 in rows of no text) and `pairs` i32 `[U * U]` as
/// [`pairs::fill`](super::pairs::fill) writes it; output `states` `[U, D]`, zero in rows of no text. `embedding` is that one of
/// [`EMBEDDINGS`](super::weights::EMBEDDINGS) under which the file has it.
///
/// The biases of all pairs are one value `[H, U, U]` that every block adds to its scores: texts are short, so attention is written in
/// plain products, and what a query does not see is a bias that leaves nothing of the score.
///
/// `drops`: as in training, with dropout where `T5Stack` has it (transformers 4.46): of embeddings, of attention's weights, of what attention and
/// feed-forward give and the latter's inner values, and of the last norm's. Then it has the inputs `key`, `rows` and `scores` besides.
pub fn encode(session: &mut Session, cfg: &Config, embedding: &str, tokens: usize, drops: bool) -> Program {
    let mut b = Builder::new(session, &name(tokens, drops));
    let ids = b.input("ids", TensorType::i32(&[tokens]));
    let pairs = b.input("pairs", TensorType::i32(&[tokens * tokens]));
    let drops = drops.then(|| Drops {
        p: cfg.dropout,
        key: b.input("key", TensorType::i32(&[1, 2])),
        rows: b.input("rows", TensorType::i32(&[2])),
        scores: b.input("scores", TensorType::i32(&[2])),
    });
    let table = b.frozen_parameter(embedding, &[cfg.vocab, cfg.dim]);
    let mut x = b.gather(table, ids);
    let states = b.scope("encoder", |b| {
        let bias = bias(b, cfg, pairs, tokens);
        x = b.scope("embedded", |b| dropped(b, drops, x));
        for i in 0..cfg.layers {
            x = b.block("block", i, |b| block(b, cfg, (bias, drops), x));
        }
        let x = norm(b, cfg, "final_layer_norm", x);
        b.scope("last", |b| dropped(b, drops, x))
    });
    b.output("states", states);
    b.finish()
}

/// Returns the bias of every pair `[H, U, U]`, from the first block's table `[32, H]`, which all share.
fn bias(b: &mut Builder<'_>, cfg: &Config, pairs: ValueId, tokens: usize) -> ValueId {
    let name = "block.0.layer.0.SelfAttention.relative_attention_bias.weight";
    let table = b.frozen_parameter(name, &[BUCKETS, cfg.heads]);
    // A score plus the lowest number is the lowest number, whose exponential is exactly 0.
    let unseen = b.fill(TensorType::f32(&[1, cfg.heads]), f32::MIN);
    debug_assert_eq!(UNSEEN as usize, BUCKETS);
    let table = b.concat(&[table, unseen], 0);
    let bias = b.gather(table, pairs);
    let bias = b.permute(bias, &[1, 0]);
    b.reshape(bias, &[cfg.heads, tokens, tokens])
}

/// Applies a block, `[U, D]` to `[U, D]`.
fn block(b: &mut Builder<'_>, cfg: &Config, (bias, drops): (ValueId, Option<Drops>), x: ValueId) -> ValueId {
    let h = b.scope("layer.0", |b| {
        let h = norm(b, cfg, "layer_norm", x);
        let h = b.scope("SelfAttention", |b| attention(b, cfg, (bias, drops), h));
        dropped(b, drops, h)
    });
    let x = b.add(x, h);
    let h = b.scope("layer.1", |b| {
        let h = norm(b, cfg, "layer_norm", x);
        let h = b.scope("DenseReluDense", |b| feed_forward(b, cfg, drops, h));
        dropped(b, drops, h)
    });
    b.add(x, h)
}

/// softmax(q k^T + bias) v, head by head, without a factor on scores.
fn attention(
    b: &mut Builder<'_>,
    cfg: &Config,
    (bias, drops): (ValueId, Option<Drops>),
    h: ValueId,
) -> ValueId {
    let Config { heads, head_dim, .. } = *cfg;
    let tokens = b.dim(h, 0);
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        let y = linear(b, name, h, cfg.inner());
        let y = b.reshape(y, &[tokens, heads, head_dim]);
        b.permute(y, &[1, 0, 2])
    });
    let scores = b.matmul(q, k, false, true);
    let scores = b.add(scores, bias);
    let shape = b.ty(scores).shape;
    let highest = b.reduce(ReduceKind::Max, scores, 2);
    let highest = b.broadcast(highest, &shape);
    let e = b.sub(scores, highest);
    let e = b.unary(UnaryKind::Exp, e);
    // At least 1, from the highest score.
    let sum = b.reduce(ReduceKind::Sum, e, 2);
    let e = match drops {
        None => e,
        // A row of weights for each head and query; the sum is of all, as before they are dropped.
        Some(Drops { p, key, scores, .. }) => {
            let shape = b.ty(e).shape;
            let e = b.reshape(e, &[heads * tokens, tokens]);
            let e = b.dropout(e, p, key, scores);
            b.reshape(e, &shape)
        }
    };
    let o = b.matmul(e, v, false, false);
    let shape = b.ty(o).shape;
    let sum = b.broadcast(sum, &shape);
    let o = b.div(o, sum);
    let o = b.permute(o, &[1, 0, 2]);
    let o = b.reshape(o, &[tokens, cfg.inner()]);
    linear(b, "o", o, cfg.dim)
}

/// wo relu(wi h), or gated: wo (gelu(wi_0 h) * (wi_1 h)), with the tanh form of GELU (Shazeer, arXiv 2002.05202).
fn feed_forward(b: &mut Builder<'_>, cfg: &Config, drops: Option<Drops>, h: ValueId) -> ValueId {
    let inner = if cfg.gated {
        let gate = linear(b, "wi_0", h, cfg.ffn);
        let gate = b.activation(ActivationKind::GeluTanh, gate);
        let value = linear(b, "wi_1", h, cfg.ffn);
        b.mul(gate, value)
    } else {
        let inner = linear(b, "wi", h, cfg.ffn);
        let zero = b.fill_like(inner, 0.0);
        b.binary(BinaryKind::Max, inner, zero)
    };
    let inner = dropped(b, drops, inner);
    linear(b, "wo", inner, cfg.dim)
}

fn norm(b: &mut Builder<'_>, cfg: &Config, name: &str, x: ValueId) -> ValueId {
    let gamma = b.frozen_parameter(&format!("{name}.weight"), &[cfg.dim]);
    b.rms_norm(x, gamma, cfg.eps)
}

fn linear(b: &mut Builder<'_>, name: &str, x: ValueId, to: usize) -> ValueId {
    let from = b.dim(x, 1);
    let w = b.frozen_parameter(&format!("{name}.weight"), &[to, from]);
    b.linear(x, w, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::t5::weights::EMBEDDINGS;

    /// Tensors and parameters are those of `T5EncoderModel` of the published configurations.
    #[test]
    fn the_published_tensors() {
        for (cfg, parameters, inner) in
            [(Config::t5_base(), 109_628_544, "wi"), (Config::flan_t5_large(), 341_231_104, "wi_1")]
        {
            let mut s = Session::default();
            for (tokens, drops) in [(32, false), (64, false), (32, true)] {
                let p = encode(&mut s, &cfg, EMBEDDINGS[0], tokens, drops);
                ambitus_ir::verify::verify(&s, &p).unwrap();
                assert_eq!(p.blocks.len(), cfg.layers);
                // Of embeddings and the last norm; in a block of weights, of both parts, and of inner values.
                let dropped = p.instrs.iter().filter(|i| i.op.name() == "dropout").count();
                assert_eq!(dropped, if drops { 2 + 4 * cfg.layers } else { 0 });
            }
            let count: usize = s.states.iter().map(|s| s.ty.shape.elements()).sum();
            assert_eq!(count, parameters);
            assert!(s.states.iter().all(|s| !s.trainable));
            let shape = |name: &str| s.states.iter().find(|s| s.name == name).map(|s| s.ty.shape.to_vec());
            assert_eq!(shape("shared.weight"), Some(vec![32_128, cfg.dim]));
            let attention = "encoder.block.0.layer.0.SelfAttention";
            let bias = format!("{attention}.relative_attention_bias.weight");
            assert_eq!(shape(&bias), Some(vec![32, cfg.heads]));
            assert_eq!(shape(&format!("{attention}.q.weight")), Some(vec![cfg.inner(), cfg.dim]));
            let last = format!("encoder.block.{}.layer.1", cfg.layers - 1);
            let inner = format!("{last}.DenseReluDense.{inner}.weight");
            assert_eq!(shape(&inner), Some(vec![cfg.ffn, cfg.dim]));
            assert_eq!(shape(&format!("{last}.layer_norm.weight")), Some(vec![cfg.dim]));
            assert_eq!(shape("encoder.final_layer_norm.weight"), Some(vec![cfg.dim]));
        }
    }
}
