//! What happened to a run since somebody looked, in bounded memory.

use std::collections::VecDeque;

/// Lines that wait or are remembered, at most.
const MOST: usize = 1000;

/// Lines for people, in the order in which things happened.
#[derive(Debug, Default)]
pub struct News {
    fresh: VecDeque<(u64, String)>,
    /// Lines that did not fit.
    lost: usize,
    /// Lines that were handed out: what a log that is read again repeats is no news.
    told: VecDeque<String>,
}

impl News {
    /// Adds what happened after an update.
    pub fn add(&mut self, update: u64, text: String) {
        if self.told.contains(&text) {
            return;
        }
        self.fresh.push_back((update, text.clone()));
        self.told.push_back(text);
        if self.fresh.len() > MOST {
            self.fresh.pop_front();
            self.lost += 1;
        }
        if self.told.len() > MOST {
            self.told.pop_front();
        }
    }

    /// Returns how many lines wait.
    pub fn len(&self) -> usize {
        self.fresh.len()
    }

    /// Brings lines behind the first `n`, which came from several files, into order.
    pub fn sort_from(&mut self, n: usize) {
        let n = n.min(self.fresh.len());
        self.fresh.make_contiguous()[n..].sort_by_key(|(update, _)| *update);
    }

    /// Returns the newest lines, `most` of them, and how many came before.
    pub fn take(&mut self, most: usize) -> (usize, Vec<String>) {
        let earlier = self.fresh.len().saturating_sub(most);
        let lines = self.fresh.drain(..).skip(earlier).map(|(_, text)| text).collect();
        (std::mem::take(&mut self.lost) + earlier, lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_in_order_and_told_once() {
        let mut news = News::default();
        news.add(9, "before".to_owned());
        let n = news.len();
        for update in [4, 8, 2] {
            news.add(update, update.to_string());
        }
        news.add(4, "4".to_owned());
        news.sort_from(n);
        assert_eq!(news.take(9), (0, ["before", "2", "4", "8"].map(str::to_owned).to_vec()));
        news.add(4, "4".to_owned());
        assert_eq!(news.take(9), (0, Vec::new()));
        for update in 0..3 * MOST as u64 {
            news.add(update, format!("update {update}"));
        }
        assert!(news.fresh.len() <= MOST && news.told.len() <= MOST);
        assert_eq!(news.take(1), (3 * MOST - 1, vec![format!("update {}", 3 * MOST - 1)]));
    }
}
