//! How well a text fits a window, in one pass over all of its tokens, and where its tokens look. T tokens, D width, V vocabulary, N states.

use super::config::Config;
use super::decoder::{head, hidden};
use super::layers::{attended, attention, keys};
use crate::batch::{Batch, Layout};
use crate::decode::kept;
use ambitus_ir::ops::elementwise::{BinaryKind, UnaryKind};
use ambitus_ir::ops::reduce::ReduceKind;
use ambitus_ir::{Builder, DType, Program, Session, TensorType, ValueId};

/// The program.
pub const SCORE: &str = "score";
/// Rows of logits that exist at once: a vocabulary is wide.
const TILE: usize = 32;

/// A head of the decoder that looks at what is said: layer and head.
pub type Head = (usize, usize);

/// Returns the inputs of [`score`] for texts of up to `tokens` tokens.
pub fn layout(tokens: usize) -> Layout {
    Layout::new(
        &[("labels", tokens)],
        &[("input_ids", tokens), ("places", tokens), ("segments", 2), ("context", 2)],
    )
}

/// Fills the inputs of [`score`] with a text of more than one token.
pub fn fill(cfg: &Config, batch: &mut Batch, ids: &[u32]) {
    let labels = batch.float("labels");
    labels.fill(-1.0);
    labels.iter_mut().zip(&ids[1..]).for_each(|(to, id)| *to = *id as f32);
    let to = batch.int("input_ids");
    to.fill(-1);
    to.iter_mut().zip(ids).for_each(|(to, id)| *to = *id as i32);
    let places = batch.int("places");
    places.fill(-1);
    (0..ids.len()).zip(places).for_each(|(i, to)| *to = i as i32);
    batch.int("segments").copy_from_slice(&[0, ids.len() as i32]);
    batch.int("context").copy_from_slice(&[0, cfg.states as i32]);
}

/// Builds the program, which attends to what the encoder's last run kept for the only sequence: inputs `input_ids` and `places` i32 `[T]`;
/// `labels` f32 `[T]`, the ids that follow; `segments` and `context` i32 `[2]`. Outputs: `logprobs` f32 `[T, 1]`, the logarithm of the
/// probability of each row's label among all V tokens; and with `heads` `attended` f32 `[H * T, N]`, the scores of each head's rows
/// over the states, with their scale and before the softmax.
pub fn score(session: &mut Session, cfg: &Config, tokens: usize, cache: DType, heads: &[Head]) -> Program {
    let mut builder = Builder::new(session, SCORE);
    let b = &mut builder;
    let rows = TensorType::i32(&[tokens]);
    let [ids, places] = ["input_ids", "places"].map(|name| b.input(name, rows));
    let labels = b.input("labels", TensorType::f32(&[tokens]));
    let [segs, context] = ["segments", "context"].map(|name| b.input(name, TensorType::i32(&[2])));
    let (mut layer, mut looks) = (0, Vec::new());
    let x = hidden(b, cfg, ids, places, |b, cfg, x| {
        let op = attention(cfg.dim, cfg.decoder.heads, true);
        let x = attended(b, "self_attn", x, |b, h, q| {
            let [k, v] = keys(b, h);
            b.self_attention(op, q, k, v, segs)
        });
        let op = attention(cfg.dim, cfg.decoder.heads, false);
        let x = attended(b, "encoder_attn", x, |b, _, q| {
            let ty = b.ty(q).dtype;
            let [k, v] = kept(b, cache, cfg.states, cfg.dim).map(|(_, x)| b.as_dtype(x, ty));
            for (i, (_, head)) in heads.iter().enumerate().filter(|(_, (l, _))| *l == layer) {
                let [q, k] = [q, k].map(|x| b.slice(x, 1, head * op.head_dim, op.head_dim));
                let scores = b.matmul(q, k, false, true);
                let scale = b.fill(TensorType::f32(&[1]), op.scale);
                let scores = b.as_dtype(scores, DType::F32);
                looks.push((i, b.scale(scores, scale)));
            }
            b.push(op, &[q, k, v, segs, context])[0]
        });
        layer += 1;
        x
    });
    let w = head(b, cfg);
    let parts: Vec<ValueId> = (0..tokens)
        .step_by(TILE)
        .map(|first| {
            let n = TILE.min(tokens - first);
            let x = b.slice(x, 0, first, n);
            let labels = b.slice(labels, 0, first, n);
            logprobs(b, x, w, labels)
        })
        .collect();
    let all = b.concat(&parts, 0);
    b.output("logprobs", all);
    if !looks.is_empty() {
        looks.sort_by_key(|(i, _)| *i);
        let looks: Vec<ValueId> = looks.into_iter().map(|(_, x)| x).collect();
        let looks = b.concat(&looks, 0);
        b.output("attended", looks);
    }
    builder.finish()
}

/// Returns log softmax(x w^T) at the labels, `[n, 1]`: the label's logit less log of the sum of e to the power of all. It is picked from the
/// logits themselves: a product of its own would round otherwise.
fn logprobs(b: &mut Builder<'_>, x: ValueId, w: ValueId, labels: ValueId) -> ValueId {
    let logits = b.linear(x, w, None);
    let logits = b.as_dtype(logits, DType::F32);
    let shape = b.ty(logits).shape;
    let high = b.reduce(ReduceKind::Max, logits, 1);
    let highest = b.broadcast(high, &shape);
    let e = b.sub(logits, highest);
    let e = b.unary(UnaryKind::Exp, e);
    let sum = b.reduce(ReduceKind::Sum, e, 1);
    let sum = b.unary(UnaryKind::Log, sum);
    let all = b.add(sum, high);
    let ids = b.iota(DType::F32, &shape, 1);
    let label = b.reshape(labels, &[shape[0], 1]);
    let label = b.broadcast(label, &shape);
    let is_label = b.binary(BinaryKind::Equal, ids, label);
    let zero = b.fill_like(logits, 0.0);
    let picked = b.select(is_label, logits, zero);
    let logit = b.reduce(ReduceKind::Sum, picked, 1);
    b.sub(logit, all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Room;
    use crate::whisper::{decoder, encoder};

    /// Tensors and parameters are those of the published models.
    #[test]
    fn the_published_tensors() {
        for (cfg, parameters) in
            [(Config::tiny(), 37_184_640 + 1500 * 384), (Config::large_v3_turbo(), 806_958_080 + 1500 * 1280)]
        {
            let mut s = Session::default();
            let room = Room { sequences: 1, tokens: 448, prompts: 228, cache: DType::F32 };
            let mut programs = vec![encoder::encode(&mut s, &cfg, room)];
            programs.extend(decoder::generate(&mut s, &cfg, room));
            programs.push(score(&mut s, &cfg, 448, DType::F32, &[(2, 4), (3, 1)]));
            for p in programs {
                ambitus_ir::verify::verify(&s, &p).unwrap_or_else(|e| panic!("{}: {e}", p.name));
            }
            let parameters_of = s.states.iter().filter(|s| s.kind == ambitus_ir::StateKind::Parameter);
            let count: usize = parameters_of.map(|s| s.ty.shape.elements()).sum();
            assert_eq!(count, parameters);
        }
    }
}
