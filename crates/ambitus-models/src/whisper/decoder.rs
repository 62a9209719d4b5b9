//! The decoder as programs of generation ([`crate::decode`]). T rows of packed sequences, S sequences, D width, V tokens, N states of each.

use super::config::Config;
use super::layers::{attended, attention, fed_forward, keys, norm};
use crate::batch::{Batch, Layout};
use crate::decode::{self, Fixed, Room, Table, fill_prompts, fill_step};
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};

/// Returns the inputs of a program that reads tokens: of prompts, or one of each sequence.
pub fn layout(room: Room, prompts: bool) -> Layout {
    let (s, rows) = (room.sequences, room.rows(prompts));
    let mut ints = vec![("input_ids", rows), ("places", rows), ("context", s + 1)];
    ints.push(if prompts { ("start", s) } else { ("each", s + 1) });
    ints.extend(room.tables(prompts));
    Layout::new(&[], &ints)
}

/// Fills the inputs of [`PREFILL`](decode::PREFILL). `start`: the place in each prompt whose logits are wanted beside the last one's.
pub fn fill_prefill(cfg: &Config, batch: &mut Batch, room: Room, prompts: &[&[u32]], start: &[usize]) {
    fill_prompts(batch, room, prompts);
    let places = batch.int("places");
    places.fill(-1);
    places.iter_mut().zip(prompts.iter().flat_map(|p| 0..p.len())).for_each(|(to, i)| *to = i as i32);
    fill_context(cfg, batch);
    let first = |s: usize| prompts[..s].iter().map(|p| p.len()).sum::<usize>();
    let starts = batch.int("start");
    starts.fill(-1);
    (0..).zip(start).zip(starts).for_each(|((s, at), to)| *to = (first(s) + at) as i32);
}

/// Fills the inputs of [`STEP`](decode::STEP): of every sequence the token that is read and its place, or none where it has ended.
pub fn fill_next(cfg: &Config, batch: &mut Batch, room: Room, tokens: &[Option<(u32, usize)>]) {
    fill_step(batch, room, tokens);
    for (s, to) in batch.int("places").iter_mut().enumerate() {
        *to = tokens.get(s).copied().flatten().map_or(-1, |(_, place)| place as i32);
    }
    fill_context(cfg, batch);
    (0..).zip(batch.int("each")).for_each(|(s, to)| *to = s);
}

fn fill_context(cfg: &Config, batch: &mut Batch) {
    batch.int("context").iter_mut().enumerate().for_each(|(s, to)| *to = (s * cfg.states) as i32);
}

/// Builds the programs: `prefill` reads prompts, `decode` one token of every sequence. Inputs: those of [`Table`], `input_ids`, `places`
/// in the sequences, `context` i32 `[S+1]`, where the states of each begin; of `prefill` `start` i32 `[S]`, a row of each; of
/// `decode` `each` i32 `[S+1]`, which counts from 0. Output `logits` f32 `[S, V]` of the token that follows; of `prefill` also
/// `start_logits` `[S, V]`, of what follows those rows.
pub fn generate(session: &mut Session, cfg: &Config, room: Room) -> Vec<Program> {
    [true, false].into_iter().map(|prompts| generation(session, cfg, room, prompts)).collect()
}

fn generation(session: &mut Session, cfg: &Config, room: Room, prompts: bool) -> Program {
    let mut builder = Builder::new(session, if prompts { decode::PREFILL } else { decode::STEP });
    let b = &mut builder;
    let rows = TensorType::i32(&[room.rows(prompts)]);
    let (ids, places) = (b.input("input_ids", rows), b.input("places", rows));
    let table = Table::input(b, room, prompts);
    let each = TensorType::i32(&[room.sequences + 1]);
    let segs = b.input("context", each);
    let queries = table.segments().unwrap_or_else(|| b.input("each", each));
    let fixed = Fixed { rows: room.sequences * cfg.states, at: None, queries, segs };
    let x = hidden(b, cfg, ids, places, |b, cfg, x| {
        let op = attention(cfg.dim, cfg.decoder.heads, true);
        let x = attended(b, "self_attn", x, |b, h, q| {
            let [k, v] = keys(b, h);
            table.attention(b, op, q, k, v)
        });
        let op = attention(cfg.dim, cfg.decoder.heads, false);
        attended(b, "encoder_attn", x, |b, _, q| {
            table.fixed_attention(b, op, q, fixed, |_| unreachable!("the encoder's program computes them"))
        })
    });
    let w = head(b, cfg);
    if prompts {
        let start = b.input("start", TensorType::i32(&[room.sequences]));
        let start = b.gather(x, start);
        let start = b.linear(start, w, None);
        b.output("start_logits", start);
    }
    let x = table.last(b, x);
    let logits = b.linear(x, w, None);
    b.output("logits", logits);
    builder.finish()
}

/// Returns the normed last hidden states `[T, D]` of tokens at their places, with `seen` for the attentions of a layer.
pub(super) fn hidden(
    b: &mut Builder<'_>,
    cfg: &Config,
    ids: ValueId,
    places: ValueId,
    mut seen: impl FnMut(&mut Builder<'_>, &Config, ValueId) -> ValueId,
) -> ValueId {
    let tokens = embedding(b, cfg);
    b.scope("model.decoder", |b| {
        let positions = b.scope("embed_positions", |b| b.parameter("weight", &[cfg.tokens, cfg.dim]));
        let x = b.gather(tokens, ids);
        let places = b.gather(positions, places);
        let mut x = b.add(x, places);
        for i in 0..cfg.decoder.layers {
            x = b.block("layers", i, |b| {
                let x = seen(b, cfg, x);
                fed_forward(b, x, cfg.decoder.ffn)
            });
        }
        norm(b, "layer_norm", x)
    })
}

fn embedding(b: &mut Builder<'_>, cfg: &Config) -> ValueId {
    b.scope("model.decoder.embed_tokens", |b| b.parameter("weight", &[cfg.vocab, cfg.dim]))
}

/// Returns the weight `[V, D]` that makes logits of hidden states: the embedding's, or of a model that is not tied its own.
pub(super) fn head(b: &mut Builder<'_>, cfg: &Config) -> ValueId {
    match cfg.tied {
        true => embedding(b, cfg),
        false => b.scope("proj_out", |b| b.parameter("weight", &[cfg.vocab, cfg.dim])),
    }
}
