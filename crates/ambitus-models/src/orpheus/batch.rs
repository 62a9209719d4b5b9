//! From token clips to the inputs of the program in [`super::model`].

use crate::batch::{Batch, Capacity, Layout};

/// A label that is not scored.
pub const IGNORED: i32 = -100;

/// One clip of a micro-batch: N tokens.
#[derive(Clone, Copy, Debug)]
pub struct Clip<'a> {
    /// Token ids.
    pub ids: &'a [u32],
    /// What each token should have been, in its own place (token t is predicted from those before it); [`IGNORED`] where none
    /// is scored. The first is predicted from nothing and is never scored.
    pub labels: &'a [i32],
}

impl Clip<'_> {
    /// Returns the number N of tokens.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Returns the number of scored tokens.
    pub fn scored(&self) -> usize {
        self.labels.iter().skip(1).filter(|l| **l != IGNORED).count()
    }

    /// Checks ids and labels against the vocabulary.
    ///
    /// # Errors
    /// What is wrong, and with which element.
    pub fn check(&self, vocab: usize) -> Result<(), String> {
        if self.ids.is_empty() {
            return Err("has no tokens".to_owned());
        }
        if self.ids.len() != self.labels.len() {
            return Err(format!("{} tokens have {} labels", self.ids.len(), self.labels.len()));
        }
        if let Some(i) = self.ids.iter().position(|id| *id as usize >= vocab) {
            return Err(format!("input_ids[{i}]: {} is not in the vocabulary of {vocab}", self.ids[i]));
        }
        let fits = |l: &i32| *l == IGNORED || (0..vocab as i32).contains(l);
        match self.labels.iter().position(|l| !fits(l)) {
            Some(i) => {
                let label = self.labels[i];
                Err(format!(
                    "labels[{i}]: {label} is neither {IGNORED} (not scored) nor in the vocabulary of {vocab}"
                ))
            }
            None => Ok(()),
        }
    }
}

/// Returns the inputs of the program at capacity.
pub fn layout(cap: Capacity) -> Layout {
    Layout::new(&[], &[("input_ids", cap.rows), ("labels", cap.rows), ("segments", cap.clips + 1)])
}

/// Lays clips end to end in a batch of [`layout`].
///
/// # Panics
/// When they exceed the capacity: packing has checked it.
pub fn fill(batch: &mut Batch, clips: &[Clip<'_>]) {
    let ([], [input_ids, labels, segments]) = batch.tables::<0, 3>();
    // An id outside the vocabulary reads and trains no row of the embedding.
    input_ids.fill(-1);
    labels.fill(IGNORED);
    let mut at = 0;
    for (s, clip) in clips.iter().enumerate() {
        segments[s] = at as i32;
        for (i, id) in clip.ids.iter().enumerate() {
            input_ids[at + i] = *id as i32;
            labels[at + i] = clip.labels.get(i + 1).copied().unwrap_or(IGNORED);
        }
        at += clip.tokens();
    }
    segments[clips.len()..].fill(at as i32);
}

/// Returns 1 / scored tokens of all clips of the update: the input `norm`.
pub fn norm(scored: usize) -> f32 {
    (1.0 / scored.max(1) as f64) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_move_to_the_token_that_predicts_them() {
        let cap = Capacity { rows: 8, clips: 3 };
        let mut batch = Batch::new(&layout(cap));
        let first = Clip { ids: &[5, 6, 7], labels: &[5, IGNORED, 7] };
        let second = Clip { ids: &[1, 2], labels: &[1, 2] };
        fill(&mut batch, &[first, second]);
        let ints: Vec<(&str, Vec<i32>)> = batch.ints().map(|(n, d)| (n, d.to_vec())).collect();
        assert_eq!(ints[0], ("input_ids", vec![5, 6, 7, 1, 2, -1, -1, -1]));
        assert_eq!(ints[1], ("labels", vec![-100, 7, -100, 2, -100, -100, -100, -100]));
        assert_eq!(ints[2], ("segments", vec![0, 3, 5, 5]));
        assert_eq!((first.scored(), second.scored()), (1, 1));
    }

    #[test]
    fn what_is_not_in_the_vocabulary_is_named() {
        let check = |ids: &[u32], labels: &[i32]| Clip { ids, labels }.check(9).unwrap_err();
        assert!(check(&[1, 9], &[1, 1]).starts_with("input_ids[1]: 9"));
        assert!(check(&[1, 2], &[1, 9]).starts_with("labels[1]: 9"));
        assert!(check(&[1, 2], &[-1, 2]).starts_with("labels[0]: -1"));
        assert!(check(&[1, 2], &[1]).contains("2 tokens have 1 labels"));
        assert!(check(&[], &[]).contains("no tokens"));
    }
}
