//! Generation token by token: what programs and tables every decoder shares.
//!
//! Keys and values of what a sequence has read and written are states, `<layer>.cache_k` and `.cache_v` `[S * C, kv_heads * head_dim]`:
//! C rows for each of S sequences. [`PREFILL`] reads packed prompts from their first token on and writes their rows; [`STEP`] reads one
//! token of each sequence, writes its row, and sees all rows so far. Lengths and places are data, so both are planned once.

use crate::batch::{Batch, Layout};
use ambitus_ir::ops::attention::{Attention, Rotary};
use ambitus_ir::{Builder, DType, StateKind, TensorType, ValueId};

/// Reads prompts.
pub const PREFILL: &str = "prefill";
/// Reads one token of every sequence.
pub const STEP: &str = "decode";

/// Sizes of generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// S: sequences at a time.
    pub sequences: usize,
    /// C: tokens of one, prompt and new ones.
    pub tokens: usize,
    /// T: tokens of all prompts together.
    pub prompts: usize,
    /// Element type of cached keys and values.
    pub cache: DType,
}

impl Room {
    /// Returns the inputs of a program.
    pub fn layout(&self, prompts: bool) -> Layout {
        let (rows, s) = (if prompts { self.prompts } else { self.sequences }, self.sequences);
        let mut ints = vec![("input_ids", rows), ("rows", rows)];
        match prompts {
            true => ints.extend([("segments", s + 1), ("last", s)]),
            false => ints.extend([("queries", 2 * s + 1), ("keys", 2 * s + 1), ("positions", s)]),
        }
        Layout::new(&[], &ints)
    }
}

/// What a program knows of where its rows are.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    room: Room,
    /// Rows of the cache that are written, i32 `[T]` or `[S]`; -1 where there is none.
    rows: ValueId,
    which: Which,
}

#[derive(Clone, Copy, Debug)]
enum Which {
    /// Prompts: their table i32 `[S+1]`, and the rows of their last tokens, i32 `[S]`.
    Prompts { segs: ValueId, last: ValueId },
    /// One token each: tables i32 `[2S+1]` of query rows and of cache rows, where every second segment is what a sequence does not
    /// use; and positions, i32 `[S]`.
    Step { queries: ValueId, keys: ValueId, positions: ValueId },
}

impl Table {
    /// Declares the inputs of [`Room::layout`] but the tokens.
    pub fn input(b: &mut Builder<'_>, room: Room, prompts: bool) -> Table {
        let s = room.sequences;
        let mut ints = |name: &str, n: usize| b.input(name, TensorType::i32(&[n]));
        if prompts {
            let rows = ints("rows", room.prompts);
            let which = Which::Prompts { segs: ints("segments", s + 1), last: ints("last", s) };
            return Table { room, rows, which };
        }
        let rows = ints("rows", s);
        let (queries, keys) = (ints("queries", 2 * s + 1), ints("keys", 2 * s + 1));
        Table { room, rows, which: Which::Step { queries, keys, positions: ints("positions", s) } }
    }

    /// Rotates rows by their places in their sequences.
    pub fn turned(&self, b: &mut Builder<'_>, op: Rotary, x: ValueId, freqs: ValueId) -> ValueId {
        match self.which {
            Which::Prompts { segs, .. } => b.push1(op, &[x, freqs, segs]),
            Which::Step { queries, positions, .. } => b.push1(op, &[x, freqs, queries, positions]),
        }
    }

    /// Writes keys and values `[T, kv_heads * head_dim]` to the scope's cache, and returns what the queries see of it.
    pub fn attention(
        &self,
        b: &mut Builder<'_>,
        op: Attention,
        q: ValueId,
        k: ValueId,
        v: ValueId,
    ) -> ValueId {
        let ty = b.ty(q).dtype;
        let narrow =
            |b: &mut Builder<'_>, x| if self.room.cache == ty { x } else { b.cast(x, self.room.cache) };
        let (q, k, v) = (narrow(b, q), narrow(b, k), narrow(b, v));
        let [all_k, all_v] = [("cache_k", k), ("cache_v", v)].map(|(name, x)| self.written(b, name, x));
        let o = match self.which {
            Which::Prompts { segs, .. } => b.self_attention(op, q, k, v, segs),
            // All that is there is earlier.
            Which::Step { queries, keys, .. } => {
                let op = Attention { causal: false, ..op };
                b.push(op, &[q, all_k, all_v, queries, keys])[0]
            }
        };
        if self.room.cache == ty { o } else { b.cast(o, ty) }
    }

    /// Writes rows `[T, D]` to the scope's state of a name.
    fn written(&self, b: &mut Builder<'_>, name: &str, x: ValueId) -> ValueId {
        let width = b.dim(x, 1);
        let ty = TensorType::new(self.room.cache, &[self.room.sequences * self.room.tokens, width]);
        let path = b.path(name);
        let (id, before) = b.declare(&path, ty, StateKind::Cache);
        let after = b.write_rows(before, x, self.rows);
        b.give_back(id, after);
        after
    }

    /// Returns the rows `[S, D]` of the sequences' last tokens.
    pub fn last(&self, b: &mut Builder<'_>, x: ValueId) -> ValueId {
        match self.which {
            Which::Prompts { last, .. } => b.gather(x, last),
            Which::Step { .. } => x,
        }
    }
}

/// Fills the inputs of [`PREFILL`] with prompts, at most [`Room::sequences`], of at most [`Room::prompts`] tokens together.
pub fn fill_prompts(batch: &mut Batch, room: Room, prompts: &[&[u32]]) {
    let ([], [ids, rows, segments, last]) = batch.tables::<0, 4>();
    ids.fill(-1);
    rows.fill(-1);
    last.fill(-1);
    let mut at = 0;
    for (s, prompt) in prompts.iter().enumerate() {
        segments[s] = at as i32;
        for (i, id) in prompt.iter().enumerate() {
            ids[at + i] = *id as i32;
            rows[at + i] = (s * room.tokens + i) as i32;
        }
        at += prompt.len();
        last[s] = at as i32 - 1;
    }
    segments[prompts.len()..].fill(at as i32);
}

/// Fills the inputs of [`STEP`]: of every sequence the token that is read and its place, or none where it has ended.
pub fn fill_step(batch: &mut Batch, room: Room, tokens: &[Option<(u32, usize)>]) {
    let ([], [ids, rows, queries, keys, positions]) = batch.tables::<0, 5>();
    for s in 0..room.sequences {
        let first = s * room.tokens;
        let token = tokens.get(s).copied().flatten();
        let place = token.map_or(0, |(_, place)| place);
        ids[s] = token.map_or(-1, |(id, _)| id as i32);
        rows[s] = token.map_or(-1, |_| (first + place) as i32);
        positions[s] = place as i32;
        queries[2 * s..2 * s + 2].copy_from_slice(&[s as i32, s as i32 + 1]);
        // Who has ended sees nothing: its row is zero.
        let seen = token.map_or(0, |_| place + 1);
        keys[2 * s..2 * s + 2].copy_from_slice(&[first as i32, (first + seen) as i32]);
    }
    queries[2 * room.sequences] = room.sequences as i32;
    keys[2 * room.sequences] = (room.sequences * room.tokens) as i32;
}
