//! A decoder over the codebooks of an audio codec, whose rows see those before them and, across, a context of their sequence: in the
//! tensor names of transformers' `MusicgenDecoder` (4.57), from which Parler-TTS's derives. T rows of packed sequences, S sequences, D
//! width, R rows of context.

use super::{layer_norm, project};
use crate::decode::{Fixed, Table};
use ambitus_ir::ops::activation::ActivationKind;
use ambitus_ir::ops::attention::{Attention, Rotary};
use ambitus_ir::{Builder, ValueId};

const EPS: f32 = 1e-5;
/// Logits that exist at once (elements).
const HEAD_TILE: usize = 1 << 24;

/// Its sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossed {
    /// D; a multiple of `heads`.
    pub dim: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads of self-attention; divides `heads`.
    pub kv_heads: usize,
    /// Of cross-attention; divides `heads`.
    pub cross_heads: usize,
    /// Inner width of the feed-forward.
    pub ffn: usize,
    /// Layers.
    pub layers: usize,
    /// Base of rotary positions, where there are some.
    pub rope: Option<f64>,
}

/// What the layers' rows see.
#[derive(Clone, Copy, Debug)]
pub enum Seen {
    /// Rows of their own clip, by a table i32 `[S+1]`, and its context, by another.
    Clip {
        /// Rows.
        segs: ValueId,
        /// Rows of context.
        context: ValueId,
        /// Probability and random keys i32 `[S, 2]`.
        dropout: Option<(f32, ValueId)>,
    },
    /// Rows of their own sequence, earlier steps' among them, and rows that do not change.
    Cached(Table, Fixed),
}

impl Seen {
    fn dropped(&self, b: &mut Builder<'_>, x: ValueId) -> ValueId {
        match *self {
            Seen::Clip { segs, dropout: Some((p, keys)), .. } => b.dropout(x, p, keys, segs),
            _ => x,
        }
    }

    /// Rotates by places in the clip, where there are frequencies.
    fn turned(&self, b: &mut Builder<'_>, op: Rotary, freqs: Option<ValueId>, x: ValueId) -> ValueId {
        let Some(freqs) = freqs else { return x };
        match self {
            Seen::Clip { segs, .. } => b.push1(op, &[x, freqs, *segs]),
            Seen::Cached(table, _) => table.turned(b, op, x, freqs),
        }
    }
}

impl Crossed {
    fn head_dim(&self) -> usize {
        self.dim / self.heads
    }

    /// Returns the normed last hidden states, `[T, D]`. `states` `[R, D]`: what stands context, where it is read.
    pub fn last_states(
        &self,
        b: &mut Builder<'_>,
        seen: &Seen,
        states: Option<ValueId>,
        x: ValueId,
    ) -> ValueId {
        let freqs = self.rope.map(|theta| b.rotary_frequencies(self.head_dim(), theta));
        let mut x = seen.dropped(b, x);
        for i in 0..self.layers {
            x = b.block("layers", i, |b| self.layer(b, seen, freqs, states, x));
        }
        layer_norm(b, "layer_norm", x, EPS)
    }

    /// Applies one layer, `[T, D]` to `[T, D]`.
    fn layer(
        &self,
        b: &mut Builder<'_>,
        seen: &Seen,
        freqs: Option<ValueId>,
        states: Option<ValueId>,
        x: ValueId,
    ) -> ValueId {
        let h = layer_norm(b, "self_attn_layer_norm", x, EPS);
        let h = b.scope("self_attn", |b| self.self_attention(b, seen, freqs, h));
        let h = seen.dropped(b, h);
        let x = b.add(x, h);
        let h = layer_norm(b, "encoder_attn_layer_norm", x, EPS);
        let h = b.scope("encoder_attn", |b| self.cross_attention(b, seen, freqs, states, h));
        let h = seen.dropped(b, h);
        let x = b.add(x, h);
        let h = layer_norm(b, "final_layer_norm", x, EPS);
        let h = project(b, "fc1", h, self.ffn);
        let h = b.activation(ActivationKind::GeluErf, h);
        let h = project(b, "fc2", h, self.dim);
        let h = seen.dropped(b, h);
        b.add(x, h)
    }

    fn attention(&self, kv_heads: usize, causal: bool) -> Attention {
        let head_dim = self.head_dim();
        Attention { heads: self.heads, kv_heads, head_dim, causal, scale: 1.0 / (head_dim as f32).sqrt() }
    }

    fn rotary(&self, heads: usize) -> Rotary {
        Rotary { head_dim: self.head_dim(), rotated: heads, interleaved: false, inverse: false }
    }

    fn self_attention(
        &self,
        b: &mut Builder<'_>,
        seen: &Seen,
        freqs: Option<ValueId>,
        h: ValueId,
    ) -> ValueId {
        let width = self.kv_heads * self.head_dim();
        let q = project(b, "q_proj", h, self.dim);
        let k = project(b, "k_proj", h, width);
        let v = project(b, "v_proj", h, width);
        let q = seen.turned(b, self.rotary(self.heads), freqs, q);
        let k = seen.turned(b, self.rotary(self.kv_heads), freqs, k);
        let op = self.attention(self.kv_heads, true);
        let o = match seen {
            Seen::Clip { segs, .. } => b.self_attention(op, q, k, v, *segs),
            Seen::Cached(table, _) => table.attention(b, op, q, k, v),
        };
        project(b, "out_proj", o, self.dim)
    }

    /// Every row of a clip sees its whole context. Where positions rotate, they rotate queries alone, as in Parler-TTS.
    fn cross_attention(
        &self,
        b: &mut Builder<'_>,
        seen: &Seen,
        freqs: Option<ValueId>,
        states: Option<ValueId>,
        h: ValueId,
    ) -> ValueId {
        let width = self.cross_heads * self.head_dim();
        let q = project(b, "q_proj", h, self.dim);
        let q = seen.turned(b, self.rotary(self.heads), freqs, q);
        let op = self.attention(self.cross_heads, false);
        let projected = |b: &mut Builder<'_>| {
            let states = states.expect("a program that computes keys has states");
            ["k_proj", "v_proj"].map(|name| project(b, name, states, width))
        };
        let o = match seen {
            Seen::Clip { segs, context, .. } => {
                let [k, v] = projected(b);
                b.push(op, &[q, k, v, *segs, *context])[0]
            }
            Seen::Cached(table, fixed) => table.fixed_attention(b, op, q, *fixed, projected),
        };
        project(b, "out_proj", o, self.dim)
    }
}

/// Adds to `terms` the embeddings `[T, D]` of each codebook's ids, from tables of `rows` rows.
pub fn embed_codes(b: &mut Builder<'_>, terms: &mut Vec<ValueId>, ids: &[ValueId], rows: usize, dim: usize) {
    for (k, &ids) in ids.iter().enumerate() {
        let table = b.scope(&format!("embed_tokens.{k}"), |b| b.parameter("weight", &[rows, dim]));
        terms.push(b.gather(table, ids));
    }
}

/// Returns the loss of one codebook `[1]`, from the rows' hidden states `[T, D]` and its head `[V, D]`.
pub fn codebook_loss(
    b: &mut Builder<'_>,
    x: ValueId,
    head: ValueId,
    labels: ValueId,
    norm: ValueId,
) -> ValueId {
    let tile = (HEAD_TILE / b.dim(head, 0)).clamp(1, b.dim(x, 0));
    b.linear_cross_entropy(x, head, labels, norm, tile)
}

/// Returns the sum of one value or more.
pub fn sum(b: &mut Builder<'_>, terms: Vec<ValueId>) -> ValueId {
    terms.into_iter().reduce(|x, y| b.add(x, y)).expect("a configuration has a codebook")
}
