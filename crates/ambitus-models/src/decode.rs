//! Generation token by token: what programs and tables every decoder shares.
//!
//! Keys and values of what a sequence has read and written are states, `<layer>.cache_k` and `.cache_v` `[S * C, kv_heads * head_dim]`:
//! C rows for each of S sequences. [`PREFILL`] reads packed prompts from their first token on and writes their rows; [`STEP`] reads one
//! token of each sequence, writes its row, and sees all rows so far. Lengths and places are data, so both are planned once.

use crate::batch::{Batch, Layout};
use ambitus_ir::ops::attention::{Attention, Rotary};
use ambitus_ir::{Builder, DType, StateId, StateKind, TensorType, ValueId};

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
    /// Returns the sizes for any `sequences` neighbours of texts: of each the tokens of its prompt, and new ones at most.
    pub fn of(texts: &[(usize, usize)], sequences: usize, cache: DType) -> Room {
        let group = |some: &[(usize, usize)]| some.iter().map(|(prompt, _)| prompt).sum::<usize>();
        Room {
            sequences,
            tokens: texts.iter().map(|(prompt, new)| prompt + new).max().unwrap_or(1),
            prompts: texts.chunks(sequences).map(group).max().unwrap_or(1),
            cache,
        }
    }

    /// Returns the rows of a program: of all prompts, or one of each sequence.
    pub fn rows(&self, prompts: bool) -> usize {
        if prompts { self.prompts } else { self.sequences }
    }

    /// Returns the inputs of a program that reads ids.
    pub fn layout(&self, prompts: bool) -> Layout {
        let ids = [("input_ids", self.rows(prompts))];
        Layout::new(&[], &[&ids[..], &self.tables(prompts)].concat())
    }

    /// Returns the inputs of [`Table`], which are i32.
    pub fn tables(&self, prompts: bool) -> Vec<(&'static str, usize)> {
        let s = self.sequences;
        let mut ints = vec![("rows", self.rows(prompts))];
        match prompts {
            true => ints.extend([("segments", s + 1), ("last", s)]),
            false => ints.extend([("queries", 2 * s + 1), ("keys", 2 * s + 1), ("positions", s)]),
        }
        ints
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

/// Rows that all of a sequence sees, whose keys and values do not change.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    /// R: rows of all sequences.
    pub rows: usize,
    /// Their places in the cache, i32 `[R]`, in the program that computes them.
    pub at: Option<ValueId>,
    /// Tables i32 `[S+1]` of query rows, and of these rows.
    pub queries: ValueId,
    /// See `queries`.
    pub segs: ValueId,
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

    /// Attends to rows that were there before the sequences. `project` computes their keys and values `[R, kv_heads * head_dim]`, which
    /// the scope's cache keeps for the programs that do not. Returns what `q` sees of them.
    pub fn fixed_attention(
        &self,
        b: &mut Builder<'_>,
        op: Attention,
        q: ValueId,
        fixed: Fixed,
        project: impl FnOnce(&mut Builder<'_>) -> [ValueId; 2],
    ) -> ValueId {
        let ty = b.ty(q).dtype;
        let cache = self.room.cache;
        let caches = kept(b, cache, fixed.rows, op.kv_heads * op.head_dim);
        let seen = match fixed.at {
            Some(at) => {
                let kv = project(b);
                keep(b, cache, fixed.rows, kv, at)
            }
            None => caches.map(|(_, before)| before),
        };
        let q = b.as_dtype(q, cache);
        let o = b.push(op, &[q, seen[0], seen[1], fixed.queries, fixed.segs])[0];
        b.as_dtype(o, ty)
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

    /// Returns the table of the prompts' rows, i32 `[S+1]`; `None` where each row is of another sequence.
    pub fn segments(&self) -> Option<ValueId> {
        match self.which {
            Which::Prompts { segs, .. } => Some(segs),
            Which::Step { .. } => None,
        }
    }

    /// Returns the rows `[S, D]` of the sequences' last tokens.
    pub fn last(&self, b: &mut Builder<'_>, x: ValueId) -> ValueId {
        match self.which {
            Which::Prompts { last, .. } => b.gather(x, last),
            Which::Step { .. } => x,
        }
    }
}

/// Returns the scope's kept keys and values `[R, width]` of rows that do not change, as they stand.
pub fn kept(b: &mut Builder<'_>, cache: DType, rows: usize, width: usize) -> [(StateId, ValueId); 2] {
    ["cache_k", "cache_v"].map(|name| {
        let path = b.path(name);
        b.declare(&path, TensorType::new(cache, &[rows, width]), StateKind::Cache)
    })
}

/// Writes keys and values to places `at` of the scope's kept ones, and returns all of them.
pub fn keep(b: &mut Builder<'_>, cache: DType, rows: usize, kv: [ValueId; 2], at: ValueId) -> [ValueId; 2] {
    let width = b.dim(kv[0], 1);
    let caches = kept(b, cache, rows, width);
    std::array::from_fn(|i| {
        let x = b.as_dtype(kv[i], cache);
        let after = b.write_rows(caches[i].1, x, at);
        b.give_back(caches[i].0, after);
        after
    })
}

/// Fills the inputs of [`PREFILL`] with prompts, at most [`Room::sequences`], of at most [`Room::prompts`] tokens together.
pub fn fill_prompts(batch: &mut Batch, room: Room, prompts: &[&[u32]]) {
    let ids = batch.int("input_ids");
    ids.fill(-1);
    ids.iter_mut().zip(prompts.iter().copied().flatten()).for_each(|(to, id)| *to = *id as i32);
    let lengths: Vec<usize> = prompts.iter().map(|p| p.len()).collect();
    place_prompts(batch, room, &lengths);
}

/// Fills the inputs of [`Table`] for prompts of these lengths.
pub fn place_prompts(batch: &mut Batch, room: Room, lengths: &[usize]) {
    let starts = |s: usize| lengths[..s.min(lengths.len())].iter().sum::<usize>();
    batch.int("segments").iter_mut().enumerate().for_each(|(s, to)| *to = starts(s) as i32);
    let last = batch.int("last");
    last.fill(-1);
    last[..lengths.len()].iter_mut().enumerate().for_each(|(s, to)| *to = starts(s + 1) as i32 - 1);
    let rows = batch.int("rows");
    rows.fill(-1);
    let places = lengths.iter().enumerate().flat_map(|(s, n)| (0..*n).map(move |i| s * room.tokens + i));
    rows.iter_mut().zip(places).for_each(|(to, place)| *to = place as i32);
}

/// Fills the inputs of [`STEP`]: of every sequence the token that is read and its place, or none where it has ended.
pub fn fill_step(batch: &mut Batch, room: Room, tokens: &[Option<(u32, usize)>]) {
    for (s, to) in batch.int("input_ids").iter_mut().enumerate() {
        *to = tokens.get(s).copied().flatten().map_or(-1, |(id, _)| id as i32);
    }
    let places: Vec<Option<usize>> = tokens.iter().map(|t| t.map(|(_, place)| place)).collect();
    place_step(batch, room, &places);
}

/// Fills the inputs of [`Table`] for one row of every sequence, by its place in it; none where it has ended.
pub fn place_step(batch: &mut Batch, room: Room, places: &[Option<usize>]) {
    let place = |s: usize| places.get(s).copied().flatten();
    let first = |s: usize| s * room.tokens;
    for (s, to) in batch.int("rows").iter_mut().enumerate() {
        *to = place(s).map_or(-1, |place| (first(s) + place) as i32);
    }
    for (s, to) in batch.int("positions").iter_mut().enumerate() {
        *to = place(s).unwrap_or(0) as i32;
    }
    // Every second segment is what a sequence does not use. Who has ended sees nothing: its row is zero.
    for (i, to) in batch.int("queries").iter_mut().enumerate() {
        *to = (i / 2 + i % 2) as i32;
    }
    for (i, to) in batch.int("keys").iter_mut().enumerate() {
        let seen = if i % 2 == 0 { 0 } else { place(i / 2).map_or(0, |place| place + 1) };
        *to = (first(i / 2) + seen) as i32;
    }
}
