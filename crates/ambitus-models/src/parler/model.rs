//! The decoder as a program, in the project's tensor names. T rows of packed clips, S clips, D width, C codebooks, V ids of a
//! codebook, U rows of context that a clip attends to besides its own, E width of description states.

use super::config::Config;
use crate::batch::Capacity;
use crate::common::{layer_norm, linear, project};
use crate::decode::{self, Fixed, Room, Table};
use ambitus_ir::ops::activation::ActivationKind;
use ambitus_ir::ops::attention::{Attention, Rotary};
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};

const EPS: f32 = 1e-5;
/// Logits that exist at once (elements).
const HEAD_TILE: usize = 1 << 24;

/// Builds the training step's forward (see `batch` for the inputs): output `loss` `[1]`, `norm` times the weighted sum over
/// codebooks of the cross-entropy of what follows each row. With `train`, dropout is applied where the configuration has it.
pub fn loss(session: &mut Session, cfg: &Config, cap: Capacity, name: &str, train: bool) -> Program {
    let mut builder = Builder::new(session, name);
    let b = &mut builder;
    let rows = TensorType::i32(&[cap.rows]);
    let ids: Vec<ValueId> = (0..cfg.codebooks).map(|k| b.input(&format!("codes.{k}"), rows)).collect();
    let prompt = (!cfg.prompts_in_context).then(|| b.input("prompt", rows));
    let labels: Vec<ValueId> = (0..cfg.codebooks).map(|k| b.input(&format!("labels.{k}"), rows)).collect();
    let segs = b.input("segments", TensorType::i32(&[cap.clips + 1]));
    let norm = b.input("norm", TensorType::f32(&[1]));
    let places = cfg.rope.is_none().then(|| b.input("places", rows));
    let drops = train && cfg.dropout > 0.0;
    let dropout = drops.then(|| (cfg.dropout, b.input("keys", TensorType::i32(&[cap.clips, 2]))));
    let context = Context::input(b, cfg, cap.clips);
    let states = context.states(b, cfg);
    let prompt = prompt.map(|prompt| embed_prompts(b, cfg, prompt));
    let seen = Seen::Clip { segs, context: context.segs, dropout };
    let x = b.scope("decoder.model.decoder", |b| {
        let x = embeddings(b, cfg, &ids, prompt, places);
        decoder(b, cfg, &seen, Some(states), x)
    });
    let loss = losses(b, cfg, x, &labels, norm);
    b.output("loss", loss);
    builder.finish()
}

/// Builds the programs of generation, on tables of [`decode`]: `prefill` reads each sequence's prompt and first column, `decode` a
/// column of every sequence. Inputs besides: `codes.k`, `places` and, of `prefill`, `prompt` i32 `[T]` as in training; those of
/// context; `context_rows` i32 `[R]`, their places in the cache; of `decode`, `each` i32 `[S+1]`, which counts from 0. Output `logits`
/// f32 `[S, C * V]` of the column that follows, codebook by codebook.
pub fn generate(session: &mut Session, cfg: &Config, room: Room) -> Vec<Program> {
    vec![generation(session, cfg, room, true), generation(session, cfg, room, false)]
}

fn generation(session: &mut Session, cfg: &Config, room: Room, prompts: bool) -> Program {
    let mut builder = Builder::new(session, if prompts { decode::PREFILL } else { decode::STEP });
    let b = &mut builder;
    let rows = TensorType::i32(&[room.rows(prompts)]);
    let ids: Vec<ValueId> = (0..cfg.codebooks).map(|k| b.input(&format!("codes.{k}"), rows)).collect();
    let before = prompts && !cfg.prompts_in_context;
    let prompt = before.then(|| b.input("prompt", rows)).map(|prompt| embed_prompts(b, cfg, prompt));
    let places = cfg.rope.is_none().then(|| b.input("places", rows));
    let table = Table::input(b, room, prompts);
    let context_rows = room.sequences * cfg.context;
    let at = prompts.then(|| b.input("context_rows", TensorType::i32(&[context_rows])));
    let (queries, segs, states) = match table.segments() {
        Some(queries) => {
            let context = Context::input(b, cfg, room.sequences);
            (queries, context.segs, Some(context.states(b, cfg)))
        }
        None => {
            let table = TensorType::i32(&[room.sequences + 1]);
            (b.input("each", table), b.input("context", table), None)
        }
    };
    let seen = Seen::Cached(table, Fixed { rows: context_rows, at, queries, segs });
    let x = b.scope("decoder.model.decoder", |b| {
        let x = embeddings(b, cfg, &ids, prompt, places);
        decoder(b, cfg, &seen, states, x)
    });
    let x = table.last(b, x);
    let logits: Vec<ValueId> = (0..cfg.codebooks)
        .map(|k| {
            let w = head(b, cfg, k);
            b.linear(x, w, None)
        })
        .collect();
    let logits = b.concat(&logits, 1);
    b.output("logits", logits);
    builder.finish()
}

/// Context of the clips: states of descriptions, and prompts where they stand there.
struct Context {
    /// f32 `[S * U, E]`; zero in rows of prompts.
    states: ValueId,
    /// i32 `[S + 1]`.
    segs: ValueId,
    /// Rows that are descriptions', those of the states, and rows that are prompts': i32 `[S * U]`, -1 elsewhere.
    /// Of prompts, ids and places.
    mixed: Option<(ValueId, ValueId, ValueId)>,
}

impl Context {
    fn input(b: &mut Builder<'_>, cfg: &Config, clips: usize) -> Context {
        let rows = clips * cfg.context;
        let states = b.input("states", TensorType::f32(&[rows, cfg.text_dim]));
        let segs = b.input("context", TensorType::i32(&[clips + 1]));
        let mut ints = |name: &str| b.input(name, TensorType::i32(&[rows]));
        let mixed =
            cfg.prompts_in_context.then(|| (ints("described"), ints("prompt"), ints("prompt_places")));
        Context { states, segs, mixed }
    }

    /// Returns what queries see, `[S * U, D]`.
    fn states(&self, b: &mut Builder<'_>, cfg: &Config) -> ValueId {
        let x = match cfg.projects() {
            true => linear(b, "enc_to_dec_proj", self.states, cfg.dim),
            false => self.states,
        };
        let Some((described, prompt, places)) = self.mixed else { return x };
        // A projection's bias is in the rows of prompts too.
        let x = b.gather(x, described);
        let prompt = embed_prompts(b, cfg, prompt);
        let table = positions(b, cfg);
        let places = b.gather(table, places);
        let prompt = b.add(prompt, places);
        b.add(x, prompt)
    }
}

/// Returns the table of sinusoids `[n, D]`, which files hold.
fn positions(b: &mut Builder<'_>, cfg: &Config) -> ValueId {
    b.scope("embed_positions", |b| b.frozen_parameter("weights", &[cfg.positions, cfg.dim]))
}

/// Returns the sum of one value or more.
fn sum(b: &mut Builder<'_>, terms: Vec<ValueId>) -> ValueId {
    terms.into_iter().reduce(|x, y| b.add(x, y)).expect("a configuration has a codebook")
}

fn embed_prompts(b: &mut Builder<'_>, cfg: &Config, ids: ValueId) -> ValueId {
    let table = b.scope("embed_prompts", |b| b.parameter("weight", &[cfg.prompts, cfg.dim]));
    b.gather(table, ids)
}

/// What the layers' rows see.
enum Seen {
    /// Rows of their own clip, by the table i32 `[S+1]`, and its context, by another. Random keys are i32 `[S, 2]`.
    Clip { segs: ValueId, context: ValueId, dropout: Option<(f32, ValueId)> },
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

    /// Rotates by places in the clip, where the configuration does.
    fn turned(
        &self,
        b: &mut Builder<'_>,
        cfg: &Config,
        freqs: Option<ValueId>,
        x: ValueId,
        heads: usize,
    ) -> ValueId {
        let Some(freqs) = freqs else { return x };
        let op = Rotary { head_dim: cfg.head_dim(), rotated: heads, interleaved: false, inverse: false };
        match self {
            Seen::Clip { segs, .. } => b.push1(op, &[x, freqs, *segs]),
            Seen::Cached(table, _) => table.turned(b, op, x, freqs),
        }
    }
}

/// Returns the sum of the codebooks' embeddings, prompts and positions, `[T, D]`.
fn embeddings(
    b: &mut Builder<'_>,
    cfg: &Config,
    ids: &[ValueId],
    prompt: Option<ValueId>,
    places: Option<ValueId>,
) -> ValueId {
    let mut terms: Vec<ValueId> = prompt.into_iter().collect();
    for (k, &ids) in ids.iter().enumerate() {
        let rows = cfg.vocab + 1;
        let table = b.scope(&format!("embed_tokens.{k}"), |b| b.parameter("weight", &[rows, cfg.dim]));
        terms.push(b.gather(table, ids));
    }
    if let Some(places) = places {
        let table = positions(b, cfg);
        terms.push(b.gather(table, places));
    }
    sum(b, terms)
}

/// Returns the normed last hidden states, `[T, D]`. `states` `[R, D]`: what stands context, where it is read.
fn decoder(b: &mut Builder<'_>, cfg: &Config, seen: &Seen, states: Option<ValueId>, x: ValueId) -> ValueId {
    let freqs = cfg.rope.map(|theta| b.rotary_frequencies(cfg.head_dim(), theta));
    let mut x = seen.dropped(b, x);
    for i in 0..cfg.layers {
        x = b.block("layers", i, |b| layer(b, cfg, seen, freqs, states, x));
    }
    layer_norm(b, "layer_norm", x, EPS)
}

/// Applies one layer, `[T, D]` to `[T, D]`.
fn layer(
    b: &mut Builder<'_>,
    cfg: &Config,
    seen: &Seen,
    freqs: Option<ValueId>,
    states: Option<ValueId>,
    x: ValueId,
) -> ValueId {
    let h = layer_norm(b, "self_attn_layer_norm", x, EPS);
    let h = b.scope("self_attn", |b| self_attention(b, cfg, seen, freqs, h));
    let h = seen.dropped(b, h);
    let x = b.add(x, h);
    let h = layer_norm(b, "encoder_attn_layer_norm", x, EPS);
    let h = b.scope("encoder_attn", |b| cross_attention(b, cfg, seen, freqs, states, h));
    let h = seen.dropped(b, h);
    let x = b.add(x, h);
    let h = layer_norm(b, "final_layer_norm", x, EPS);
    let h = project(b, "fc1", h, cfg.ffn);
    let h = b.activation(ActivationKind::GeluErf, h);
    let h = project(b, "fc2", h, cfg.dim);
    let h = seen.dropped(b, h);
    b.add(x, h)
}

fn attention(cfg: &Config, kv_heads: usize, causal: bool) -> Attention {
    let head_dim = cfg.head_dim();
    Attention { heads: cfg.heads, kv_heads, head_dim, causal, scale: 1.0 / (head_dim as f32).sqrt() }
}

fn self_attention(
    b: &mut Builder<'_>,
    cfg: &Config,
    seen: &Seen,
    freqs: Option<ValueId>,
    h: ValueId,
) -> ValueId {
    let width = cfg.kv_heads * cfg.head_dim();
    let q = project(b, "q_proj", h, cfg.dim);
    let k = project(b, "k_proj", h, width);
    let v = project(b, "v_proj", h, width);
    let q = seen.turned(b, cfg, freqs, q, cfg.heads);
    let k = seen.turned(b, cfg, freqs, k, cfg.kv_heads);
    let op = attention(cfg, cfg.kv_heads, true);
    let o = match seen {
        Seen::Clip { segs, .. } => b.self_attention(op, q, k, v, *segs),
        Seen::Cached(table, _) => table.attention(b, op, q, k, v),
    };
    project(b, "out_proj", o, cfg.dim)
}

/// Every row of a clip sees its whole context. Where positions rotate, they rotate queries alone, as in the project.
fn cross_attention(
    b: &mut Builder<'_>,
    cfg: &Config,
    seen: &Seen,
    freqs: Option<ValueId>,
    states: Option<ValueId>,
    h: ValueId,
) -> ValueId {
    let width = cfg.cross_heads * cfg.head_dim();
    let q = project(b, "q_proj", h, cfg.dim);
    let q = seen.turned(b, cfg, freqs, q, cfg.heads);
    let op = attention(cfg, cfg.cross_heads, false);
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
    project(b, "out_proj", o, cfg.dim)
}

/// Returns the loss over all codebooks `[1]`, from the rows' hidden states `[T, D]`.
fn losses(b: &mut Builder<'_>, cfg: &Config, x: ValueId, labels: &[ValueId], norm: ValueId) -> ValueId {
    let tile = (HEAD_TILE / cfg.vocab).clamp(1, b.dim(x, 0));
    let mut terms = Vec::new();
    for (k, (&labels, &weight)) in labels.iter().zip(&cfg.weights).enumerate() {
        let weight = b.fill(TensorType::f32(&[1]), weight);
        let norm = b.scale(norm, weight);
        let w = head(b, cfg, k);
        terms.push(b.linear_cross_entropy(x, w, labels, norm, tile));
    }
    sum(b, terms)
}

/// Returns the head of codebook k, `[V, D]`.
fn head(b: &mut Builder<'_>, cfg: &Config, k: usize) -> ValueId {
    b.scope("decoder.lm_heads", |b| match cfg.fused_heads {
        false => b.scope(&k.to_string(), |b| b.parameter("weight", &[cfg.vocab, cfg.dim])),
        true => {
            let all = b.parameter("weight", &[cfg.codebooks * cfg.vocab, cfg.dim]);
            b.slice(all, 0, k * cfg.vocab, cfg.vocab)
        }
    })
}
