//! The decoder as a program, in the project's tensor names. T rows of packed clips, S clips, D width, C codebooks, V ids of a
//! codebook, U rows of context that a clip attends to besides its own, E width of description states.

use super::config::Config;
use crate::batch::Capacity;
use crate::common::crossed::{Crossed, Seen, codebook_loss, embed_codes, sum};
use crate::common::linear;
use crate::decode::{self, Fixed, Room, Table};
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};

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
        decoder(cfg).last_states(b, &seen, Some(states), x)
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
        decoder(cfg).last_states(b, &seen, states, x)
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

fn embed_prompts(b: &mut Builder<'_>, cfg: &Config, ids: ValueId) -> ValueId {
    let table = b.scope("embed_prompts", |b| b.parameter("weight", &[cfg.prompts, cfg.dim]));
    b.gather(table, ids)
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
    embed_codes(b, &mut terms, ids, cfg.vocab + 1, cfg.dim);
    if let Some(places) = places {
        let table = positions(b, cfg);
        terms.push(b.gather(table, places));
    }
    sum(b, terms)
}

fn decoder(cfg: &Config) -> Crossed {
    let &Config { dim, heads, kv_heads, cross_heads, ffn, layers, rope, .. } = cfg;
    Crossed { dim, heads, kv_heads, cross_heads, ffn, layers, rope }
}

/// Returns the loss over all codebooks `[1]`, from the rows' hidden states `[T, D]`.
fn losses(b: &mut Builder<'_>, cfg: &Config, x: ValueId, labels: &[ValueId], norm: ValueId) -> ValueId {
    let mut terms = Vec::new();
    for (k, (&labels, &weight)) in labels.iter().zip(&cfg.weights).enumerate() {
        let weight = b.fill(TensorType::f32(&[1]), weight);
        let norm = b.scale(norm, weight);
        let w = head(b, cfg, k);
        terms.push(codebook_loss(b, x, w, labels, norm));
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
