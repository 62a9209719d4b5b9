//! What the decoder writes: the inputs of the programs in [`super::model::generate`], and the delays of codebooks undone.
//!
//! Of N columns after the first, the last max(d) end the codebooks that are late: there are n = N - max(d) frames. Column j of codebook k
//! holds the code of frame j - 1 - d_k, and the id behind all codes where there is no such frame; what is chosen there is not read
//! (transformers 4.57, `build_delay_pattern_mask`; audiocraft 1.3.0, `LMModel.generate`).

use super::batch::{add_text, fill_text};
use super::config::Config;
use crate::batch::{Batch, Layout};
use crate::decode::{Room, place_prompts, place_step};

/// What was written of one sequence.
#[derive(Clone, Debug)]
pub struct Written {
    /// What each codebook chose, column by column from column 1 on.
    pub chosen: Vec<Vec<u32>>,
    /// N: columns after the first.
    pub columns: usize,
}

impl Written {
    /// Begins a sequence of N columns after the first.
    pub fn new(cfg: &Config, columns: usize) -> Written {
        Written { chosen: vec![Vec::new(); cfg.codebooks()], columns }
    }

    /// Returns the last column that there is.
    pub fn last(&self) -> usize {
        self.chosen.first().map_or(0, Vec::len)
    }

    /// Returns whether nothing follows.
    pub fn is_over(&self) -> bool {
        self.last() >= self.columns
    }

    /// Returns what codebook k reads in the last column.
    fn read(&self, cfg: &Config, k: usize) -> u32 {
        let frames = self.columns.saturating_sub(cfg.longest_delay());
        let frame = self.last().checked_sub(1 + cfg.delays[k]).filter(|t| *t < frames);
        frame.map_or(cfg.special(), |t| self.chosen[k][t + cfg.delays[k]])
    }

    /// Takes the next column, by the logits `[K * V]` of all codebooks.
    pub fn push(
        &mut self,
        cfg: &Config,
        logits: &mut [f32],
        mut choose: impl FnMut(usize, &[u32], &mut [f32]) -> u32,
    ) {
        for (k, logits) in logits.chunks_mut(cfg.vocab).enumerate() {
            let id = choose(k, &self.chosen[k], logits);
            self.chosen[k].push(id);
        }
    }

    /// Returns the codes of whole frames, `[K, n]` codebook by codebook.
    pub fn codes(&self, cfg: &Config) -> Vec<Vec<u32>> {
        let frames = self.last().saturating_sub(cfg.longest_delay());
        let of = |(ids, late): (&Vec<u32>, &usize)| ids[*late..*late + frames].to_vec();
        match frames {
            0 => vec![Vec::new(); cfg.codebooks()],
            _ => self.chosen.iter().zip(&cfg.delays).map(of).collect(),
        }
    }
}

/// Returns the inputs of a program.
pub fn layout(cfg: &Config, room: Room, prompts: bool) -> Layout {
    let (rows, s) = (room.rows(prompts), room.sequences);
    let mut layout = Layout::new(&[("places", rows)], &room.tables(prompts));
    match prompts {
        true => {
            add_text(cfg, &mut layout, s);
            layout.ints.push(("context_rows".to_owned(), s * cfg.context));
        }
        false => layout.ints.extend([("context".to_owned(), s + 1), ("each".to_owned(), s + 1)]),
    }
    layout.ints.extend((0..cfg.codebooks()).map(|k| (format!("codes.{k}"), rows)));
    layout
}

/// Fills the inputs of the program that reads first columns, but for states, from the tokens of each sequence's text.
///
/// # Panics
/// When they exceed the room.
pub fn fill_first(cfg: &Config, batch: &mut Batch, room: Room, texts: &[usize]) {
    fill_text(batch, texts.iter().copied());
    batch.int("context_rows").iter_mut().enumerate().for_each(|(r, to)| *to = r as i32);
    place_prompts(batch, room, &vec![1; texts.len()]);
    batch.float("places").fill(0.0);
    for k in 0..cfg.codebooks() {
        let table = batch.int(&format!("codes.{k}"));
        table.fill(-1);
        table[..texts.len()].fill(cfg.special() as i32);
    }
}

/// Fills the inputs of the program that reads a column, of every sequence that is not over. `context`: where the text of each is, as for
/// the first.
pub fn fill_step<'w>(
    cfg: &Config,
    batch: &mut Batch,
    room: Room,
    context: &[i32],
    all: impl Iterator<Item = &'w Written>,
) {
    let all: Vec<&Written> = all.collect();
    let open = |s: usize| all.get(s).filter(|written| !written.is_over());
    let places: Vec<Option<usize>> = (0..room.sequences).map(|s| open(s).map(|w| w.last())).collect();
    place_step(batch, room, &places);
    batch.int("context").copy_from_slice(context);
    batch.int("each").iter_mut().enumerate().for_each(|(s, to)| *to = s as i32);
    let of = places.iter().map(|place| place.unwrap_or(0) as f32);
    batch.float("places").iter_mut().zip(of).for_each(|(to, place)| *to = place);
    for k in 0..cfg.codebooks() {
        let table = batch.int(&format!("codes.{k}")).iter_mut().enumerate();
        table.for_each(|(s, to)| *to = open(s).map_or(-1, |written| written.read(cfg, k) as i32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the pattern of transformers for eight columns of three codebooks: what was chosen behind a codebook's end is not read.
    #[test]
    fn what_is_read_is_late_and_ends_with_the_frames() {
        let cfg = Config { vocab: 16, delays: vec![0, 1, 2], ..Config::small() };
        let mut all = Written::new(&cfg, 7);
        let mut read = vec![Vec::new(); 3];
        while !all.is_over() {
            (0..3).for_each(|k| read[k].push(all.read(&cfg, k)));
            all.push(&cfg, &mut [0.0; 48], |k, before, _| (10 * k + before.len()) as u32);
        }
        assert_eq!(read[0], [16, 0, 1, 2, 3, 4, 16]);
        assert_eq!(read[1], [16, 16, 11, 12, 13, 14, 15]);
        assert_eq!(read[2], [16, 16, 16, 22, 23, 24, 25]);
        assert_eq!(all.codes(&cfg), [[0, 1, 2, 3, 4], [11, 12, 13, 14, 15], [22, 23, 24, 25, 26]]);
    }
}
