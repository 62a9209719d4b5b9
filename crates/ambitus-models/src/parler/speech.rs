//! What a decoder writes: the inputs of the programs in [`super::model::generate`], and the delays of codebooks undone.
//!
//! Column 0 of a sequence is read with its prompt. Of a sequence of L columns, codebook k is fed the id that begins in columns up to
//! k, and the one that ends from column L - (C - 1 - k) on; what it chose there is kept, and not fed (parler_tts 0.2.3,
//! `build_delay_pattern_mask`).

use super::batch::{add_context, fill_context};
use super::config::Config;
use crate::batch::{Batch, Layout};
use crate::decode::{Room, place_prompts, place_step};

/// One sequence before its first column.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// Ids of the prompt, `[P]`.
    pub prompt: &'a [u32],
    /// U: tokens of the description. Its states follow by [`put_states`](super::batch::put_states).
    pub described: usize,
}

/// What was written of one sequence.
#[derive(Clone, Debug)]
pub struct Written {
    /// What each codebook chose, column by column from column 1 on.
    pub chosen: Vec<Vec<u32>>,
    /// L: columns, column 0 among them.
    pub columns: usize,
    /// Rows before column 0.
    before: usize,
    /// Codebooks up to this one may end.
    may_end: usize,
    /// Which have ended.
    ended: Vec<bool>,
}

impl Written {
    /// Begins a sequence of at most `columns` columns.
    pub fn new(cfg: &Config, prompt: usize, columns: usize) -> Written {
        let before = if cfg.prompts_in_context { 0 } else { prompt };
        let books = cfg.codebooks;
        Written { chosen: vec![Vec::new(); books], columns, before, may_end: 0, ended: vec![false; books] }
    }

    /// Returns the columns that there are.
    fn width(&self) -> usize {
        1 + self.chosen.first().map_or(0, Vec::len)
    }

    /// Returns whether nothing follows.
    pub fn is_over(&self) -> bool {
        self.width() >= self.columns || self.has_ended()
    }

    /// Returns whether all codebooks have ended.
    pub fn has_ended(&self) -> bool {
        self.ended.iter().all(|ended| *ended)
    }

    /// Returns what codebook k is fed in the last column.
    fn fed(&self, cfg: &Config, k: usize) -> u32 {
        let j = self.width() - 1;
        match j {
            _ if j <= k => cfg.bos,
            _ if j + (cfg.codebooks - 1 - k) >= self.columns => cfg.eos,
            _ => self.chosen[k][j - 1],
        }
    }

    /// Returns the row of the last column in its sequence.
    fn place(&self) -> usize {
        self.before + self.width() - 1
    }

    /// Takes the next column: `choose(k, logits)` of each codebook that has not ended. `least`: columns before any may end.
    ///
    /// Codebooks end in their order, one a column at most; an ended one keeps the id that ends it.
    pub fn push(
        &mut self,
        cfg: &Config,
        least: usize,
        logits: &mut [f32],
        mut choose: impl FnMut(usize, &[u32], &mut [f32]) -> u32,
    ) {
        if self.ended[self.may_end] && self.may_end + 1 < cfg.codebooks {
            self.may_end += 1;
        }
        let early = self.width() - 1 < least;
        for (k, logits) in logits.chunks_mut(cfg.vocab).enumerate() {
            if early || k > self.may_end {
                logits[cfg.eos as usize] = f32::NEG_INFINITY;
            }
            let chosen = &mut self.chosen[k];
            let id = if self.ended[k] { cfg.eos } else { choose(k, chosen, logits) };
            chosen.push(id);
            self.ended[k] |= id == cfg.eos;
        }
    }

    /// Returns the codes that are heard, `[C, n]` codebook by codebook: of each frame those of all codebooks, each k columns later; frames
    /// with an id that is no code are left out.
    pub fn codes(&self, cfg: &Config) -> Vec<Vec<u32>> {
        let books = cfg.codebooks;
        let frames = (self.width()).saturating_sub(books);
        let is_code = |t: &usize| self.chosen.iter().enumerate().all(|(k, ids)| ids[t + k] < cfg.eos);
        // A sequence that ended before its last codebook began has none.
        let heard: Vec<usize> = match self.width() < 2 * books - 1 {
            true => Vec::new(),
            false => (0..frames).filter(is_code).collect(),
        };
        self.chosen.iter().enumerate().map(|(k, ids)| heard.iter().map(|t| ids[t + k]).collect()).collect()
    }
}

/// Returns the inputs of a program.
pub fn layout(cfg: &Config, room: Room, prompts: bool) -> Layout {
    let (rows, s) = (room.rows(prompts), room.sequences);
    let mut layout = Layout::new(&[], &room.tables(prompts));
    match prompts {
        true => {
            add_context(cfg, &mut layout, s, rows);
            layout.ints.push(("context_rows".to_owned(), s * cfg.context));
        }
        false => layout.ints.extend([("context".to_owned(), s + 1), ("each".to_owned(), s + 1)]),
    }
    layout.ints.push(("places".to_owned(), rows));
    layout.ints.extend((0..cfg.codebooks).map(|k| (format!("codes.{k}"), rows)));
    layout
}

/// Fills the inputs of the program that reads prompts, each with its first column, but for states.
///
/// # Panics
/// When they exceed the room.
pub fn fill_prompts(cfg: &Config, batch: &mut Batch, room: Room, all: &[Prompt<'_>]) {
    fill_context(cfg, batch, all.iter().map(|p| (p.prompt, p.described)));
    batch.int("context_rows").iter_mut().enumerate().for_each(|(r, to)| *to = r as i32);
    let before = |p: &Prompt<'_>| if cfg.prompts_in_context { 0 } else { p.prompt.len() };
    let lengths: Vec<usize> = all.iter().map(|p| before(p) + 1).collect();
    place_prompts(batch, room, &lengths);
    let mut tables: Vec<String> = (0..cfg.codebooks).map(|k| format!("codes.{k}")).collect();
    tables.push("places".to_owned());
    if !cfg.prompts_in_context {
        tables.push("prompt".to_owned());
    }
    for name in tables {
        let table = batch.int(&name);
        table.fill(-1);
        let mut at = 0;
        for (p, n) in all.iter().zip(&lengths) {
            for i in 0..*n {
                table[at + i] = match &*name {
                    "places" => i as i32,
                    "prompt" => p.prompt.get(i).map_or(-1, |id| *id as i32),
                    _ if i + 1 == *n => cfg.bos as i32,
                    _ => -1,
                };
            }
            at += n;
        }
    }
}

/// Fills the inputs of the program that reads a column, of every sequence that is not over. `context`: where that of each is, as
/// for prompts.
pub fn fill_step(cfg: &Config, batch: &mut Batch, room: Room, context: &[i32], all: &[Written]) {
    let open = |s: usize| all.get(s).filter(|written| !written.is_over());
    let places: Vec<Option<usize>> = (0..room.sequences).map(|s| open(s).map(Written::place)).collect();
    place_step(batch, room, &places);
    batch.int("context").copy_from_slice(context);
    batch.int("each").iter_mut().enumerate().for_each(|(s, to)| *to = s as i32);
    let of = places.iter().map(|place| place.map_or(-1, |place| place as i32));
    batch.int("places").iter_mut().zip(of).for_each(|(to, place)| *to = place);
    for k in 0..cfg.codebooks {
        let table = batch.int(&format!("codes.{k}"));
        for (s, to) in table.iter_mut().enumerate() {
            *to = open(s).map_or(-1, |written| written.fed(cfg, k) as i32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config { codebooks: 3, vocab: 20, eos: 16, bos: 17, ..Config::mini_v1() }
    }

    /// Writes until it is over; `wants(k, j)` is what codebook k would say at column j.
    fn written(columns: usize, wants: impl Fn(usize, usize) -> u32) -> (Written, Vec<Vec<u32>>) {
        let cfg = config();
        let mut all = Written::new(&cfg, 2, columns);
        let mut fed = vec![Vec::new(); 3];
        while !all.is_over() {
            (0..3).for_each(|k| fed[k].push(all.fed(&cfg, k)));
            all.push(&cfg, 0, &mut [0.0; 60], |k, before, logits| match wants(k, before.len() + 1) {
                // Next best.
                id if logits[id as usize] == f32::NEG_INFINITY => 1,
                id => id,
            });
        }
        (all, fed)
    }

    /// As the project's pattern of 10 columns: `[B,..,P,P]`, `[B,B,..,P]`, `[B,B,B,..]`.
    #[test]
    fn what_is_fed_is_delayed_and_ends_at_the_longest() {
        let (all, fed) = written(10, |_, _| 5);
        assert_eq!(fed[0], [17, 5, 5, 5, 5, 5, 5, 5, 16]);
        assert_eq!(fed[1], [17, 17, 5, 5, 5, 5, 5, 5, 5]);
        assert_eq!(fed[2], [17, 17, 17, 5, 5, 5, 5, 5, 5]);
        assert_eq!((all.width(), all.codes(&config())[0].len()), (10, 7));
    }

    /// All want to end from the sixth column on: they do one after another, and five frames are heard. Who may not end yet goes on.
    #[test]
    fn codebooks_end_in_their_order() {
        let (all, _) = written(30, |_, j| if j < 6 { 5 } else { 16 });
        let ends: Vec<_> =
            all.chosen.iter().map(|ids| ids.iter().position(|id| *id == 16).unwrap() + 1).collect();
        assert_eq!(ends, [6, 7, 8]);
        let heard = [[5, 5, 5, 5, 5], [5, 5, 5, 5, 1], [5, 5, 5, 1, 1]].map(Vec::from);
        assert_eq!((all.width(), all.codes(&config())), (9, heard.to_vec()));
        let (none, _) = written(30, |_, _| 16);
        assert_eq!(none.codes(&config()), vec![Vec::<u32>::new(); 3]);
    }
}
