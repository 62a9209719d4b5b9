//! The decoder as a program, in the tensor names of transformers. T steps of packed clips, S clips, D width, K codebooks, V codes of a
//! codebook, U rows of text that a clip attends to, E width of the text encoder's states.

use super::config::Config;
use crate::batch::Capacity;
use crate::common::crossed::{Crossed, Seen, codebook_loss, embed_codes, sum};
use crate::common::linear;
use crate::decode::{self, Fixed, Room, Table};
use ambitus_ir::ops::index::{Sinusoid, SinusoidKind};
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};

/// Where tensors of the decoder's body are.
const BODY: &str = "decoder.model.decoder";
/// Of positions (arXiv 1706.03762, section 3.5).
const LONGEST_WAVE: f32 = 10_000.0;

/// Builds the training step's forward (see `batch` for the inputs): output `loss` `[1]`, the sum over codebooks of `norm.k` times the
/// cross-entropy of the codes that follow the steps. With `train`, dropout is applied where the configuration has it.
pub fn loss(session: &mut Session, cfg: &Config, cap: Capacity, name: &str, train: bool) -> Program {
    let mut builder = Builder::new(session, name);
    let b = &mut builder;
    let ids = codes(b, cfg, cap.rows);
    let rows = TensorType::i32(&[cap.rows]);
    let labels: Vec<ValueId> = (0..cfg.codebooks()).map(|k| b.input(&format!("labels.{k}"), rows)).collect();
    let norms: Vec<ValueId> =
        (0..cfg.codebooks()).map(|k| b.input(&format!("norm.{k}"), TensorType::f32(&[1]))).collect();
    let segs = b.input("segments", TensorType::i32(&[cap.clips + 1]));
    let places = b.segment_positions(segs, cap.rows);
    let drops = train && cfg.dropout > 0.0;
    let dropout = drops.then(|| (cfg.dropout, b.input("keys", TensorType::i32(&[cap.clips, 2]))));
    let (states, context) = text(b, cfg, cap.clips);
    let seen = Seen::Clip { segs, context, dropout };
    let x = b.scope(BODY, |b| {
        let x = embedded(b, cfg, &ids, places);
        decoder(cfg).last_states(b, &seen, Some(states), x)
    });
    let mut losses = Vec::new();
    for (k, (&labels, &norm)) in labels.iter().zip(&norms).enumerate() {
        let head = head(b, cfg, k);
        losses.push(codebook_loss(b, x, head, labels, norm));
    }
    let loss = sum(b, losses);
    b.output("loss", loss);
    builder.finish()
}

/// Builds the programs of generation, on tables of [`decode`]: `prefill` reads each sequence's first columns, `decode` a column of every
/// sequence. Inputs besides: `codes.k` as in training; `places` f32 `[T]`, where rows are in their sequences; of `prefill`, `states` and
/// `context` as in training and `context_rows` i32 `[R]`, their places in the cache; of `decode`, `context` and `each` i32 `[S+1]`, which
/// counts from 0. Output `logits` f32 `[S, K * V]` of the column that follows, codebook by codebook.
pub fn generate(session: &mut Session, cfg: &Config, room: Room) -> Vec<Program> {
    vec![generation(session, cfg, room, true), generation(session, cfg, room, false)]
}

fn generation(session: &mut Session, cfg: &Config, room: Room, prompts: bool) -> Program {
    let mut builder = Builder::new(session, if prompts { decode::PREFILL } else { decode::STEP });
    let b = &mut builder;
    let ids = codes(b, cfg, room.rows(prompts));
    let places = b.input("places", TensorType::f32(&[room.rows(prompts)]));
    let table = Table::input(b, room, prompts);
    let rows = room.sequences * cfg.context;
    let at = prompts.then(|| b.input("context_rows", TensorType::i32(&[rows])));
    let (queries, segs, states) = match table.segments() {
        Some(queries) => {
            let (states, segs) = text(b, cfg, room.sequences);
            (queries, segs, Some(states))
        }
        None => {
            let table = TensorType::i32(&[room.sequences + 1]);
            (b.input("each", table), b.input("context", table), None)
        }
    };
    let seen = Seen::Cached(table, Fixed { rows, at, queries, segs });
    let x = b.scope(BODY, |b| {
        let x = embedded(b, cfg, &ids, places);
        decoder(cfg).last_states(b, &seen, states, x)
    });
    let x = table.last(b, x);
    let logits: Vec<ValueId> = (0..cfg.codebooks())
        .map(|k| {
            let head = head(b, cfg, k);
            b.linear(x, head, None)
        })
        .collect();
    let logits = b.concat(&logits, 1);
    b.output("logits", logits);
    builder.finish()
}

fn codes(b: &mut Builder<'_>, cfg: &Config, rows: usize) -> Vec<ValueId> {
    (0..cfg.codebooks()).map(|k| b.input(&format!("codes.{k}"), TensorType::i32(&[rows]))).collect()
}

/// Returns what clips see of their texts, `[S * U, D]`, and its table i32 `[S + 1]`. A clip without text sees nothing.
fn text(b: &mut Builder<'_>, cfg: &Config, clips: usize) -> (ValueId, ValueId) {
    let states = b.input("states", TensorType::f32(&[clips * cfg.context, cfg.text_dim]));
    let segs = b.input("context", TensorType::i32(&[clips + 1]));
    let states = if cfg.projects { linear(b, "enc_to_dec_proj", states, cfg.dim) } else { states };
    (states, segs)
}

fn decoder(cfg: &Config) -> Crossed {
    let &Config { dim, heads, ffn, layers, .. } = cfg;
    Crossed { dim, heads, kv_heads: heads, cross_heads: heads, ffn, layers, rope: None }
}

/// Returns the sum of the codebooks' embeddings and of positions, `[T, D]`.
fn embedded(b: &mut Builder<'_>, cfg: &Config, ids: &[ValueId], places: ValueId) -> ValueId {
    let mut terms = Vec::new();
    embed_codes(b, &mut terms, ids, cfg.vocab + 1, cfg.dim);
    terms.push(positions(b, cfg.dim, places));
    sum(b, terms)
}

/// Returns the positions `[T, D]` of places p f32 `[T]`: the cosines and then the sines of p * w_j, w_j = 10000^(-j / (D/2 - 1)), and a zero
/// where D is odd (transformers 4.57, `MusicgenSinusoidalPositionalEmbedding`).
fn positions(b: &mut Builder<'_>, dim: usize, places: ValueId) -> ValueId {
    let half = dim / 2;
    let op = Sinusoid { kind: SinusoidKind::SinCos, half, scale: 1.0, base: LONGEST_WAVE };
    let both = b.push1(op, &[places]);
    let mut parts = vec![b.slice(both, 1, half, half), b.slice(both, 1, 0, half)];
    if dim % 2 == 1 {
        let rows = b.dim(places, 0);
        parts.push(b.fill(TensorType::f32(&[rows, 1]), 0.0));
    }
    b.concat(&parts, 1)
}

/// Returns the head of codebook k, `[V, D]`.
fn head(b: &mut Builder<'_>, cfg: &Config, k: usize) -> ValueId {
    b.scope(&format!("decoder.lm_heads.{k}"), |b| b.parameter("weight", &[cfg.vocab, cfg.dim]))
}
