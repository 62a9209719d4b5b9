//! Which algorithm each matrix product uses: timed once, kept beside the compiled kernels, and with a run, whose resumed programs
//! must sum in the same order. docs/decisions/0023-algorithms.md.

use super::{Card, Graph, device_error};
use crate::step::{Gemm, Step};
use ambitus_exec::executor::ExecError;
use cudarc::cublaslt::sys::cublasLtMatmulAlgo_t;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

/// Algorithms of a library on a kind of card, by [`Products::key`](super::products::Products::key).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Algorithms {
    /// Library and card: algorithms of another are of no use.
    title: String,
    of: BTreeMap<String, [u64; 8]>,
}

impl Algorithms {
    pub fn new(title: String) -> Algorithms {
        Algorithms { title, of: BTreeMap::new() }
    }

    /// Adds what [`Algorithms::text`] wrote of the same library and card, if there is nothing for a product yet. What does not read
    /// is left out.
    pub fn add(&mut self, text: &str) {
        let mut lines = text.lines();
        if lines.next() != Some(self.title.as_str()) {
            return;
        }
        for (key, words) in lines.filter_map(|line| line.split_once('\t')) {
            let words: Vec<u64> =
                words.split(' ').map_while(|word| u64::from_str_radix(word, 16).ok()).collect();
            if let (Ok(data), Entry::Vacant(free)) = (words.try_into(), self.of.entry(key.to_owned())) {
                free.insert(data);
            }
        }
    }

    /// Returns the title, then a line for each product.
    pub fn text(&self) -> String {
        let line = |(key, data): (&String, &[u64; 8])| {
            format!("\n{key}\t{}", data.map(|word| format!("{word:x}")).join(" "))
        };
        self.title.clone() + &self.of.iter().map(line).collect::<String>() + "\n"
    }

    /// Returns those of some products.
    pub fn only(&self, keys: impl Iterator<Item = String>) -> Algorithms {
        let of = keys.filter_map(|key| self.of.get(&key).map(|data| (key, *data))).collect();
        Algorithms { title: self.title.clone(), of }
    }

    pub fn get(&self, key: &str) -> Option<cublasLtMatmulAlgo_t> {
        self.of.get(key).map(|data| cublasLtMatmulAlgo_t { data: *data })
    }

    pub fn set(&mut self, key: String, algorithm: cublasLtMatmulAlgo_t) {
        self.of.insert(key, algorithm.data);
    }

    /// Returns the file of these in a folder of compiled kernels.
    fn file(&self, cache: &Path) -> PathBuf {
        cache.join(format!("products-{}.txt", blake3::hash(self.title.as_bytes()).to_hex()))
    }

    /// Returns those that earlier runs left in `cache`.
    pub fn cached(title: String, cache: Option<&Path>) -> Algorithms {
        let mut all = Algorithms::new(title);
        let text = cache.and_then(|cache| std::fs::read_to_string(all.file(cache)).ok());
        all.add(&text.unwrap_or_default());
        all
    }

    /// Leaves these in `cache`. A folder that cannot be written is not an error.
    fn keep(&self, cache: &Path) {
        let mut all = self.clone();
        // Other processes leave theirs.
        all.add(&std::fs::read_to_string(self.file(cache)).unwrap_or_default());
        let half = self.file(cache).with_extension(format!("{}.tmp", std::process::id()));
        let written = std::fs::create_dir_all(cache).and_then(|()| std::fs::write(&half, all.text()));
        let _ = written.and_then(|()| std::fs::rename(&half, self.file(cache)));
    }
}

/// Candidates for a product: the library's first, by its own estimate of their speed.
const CANDIDATES: usize = 8;
/// The library's first choice stays unless another takes less than this part of its time: nothing is left to noise.
const BETTER: f64 = 0.97;

impl Card {
    /// Takes the algorithms that a run was begun with: they are used wherever they are for this library and kind of card.
    pub fn recall(&mut self, kept: &str) {
        if let Some(products) = &mut self.products {
            products.recall(kept);
        }
    }

    /// Takes what all ranks chose, in their order: of each product the first one's.
    pub(crate) fn agree(&mut self, said: &[Vec<u8>]) {
        if let Some(products) = &mut self.products {
            products.agree(said);
        }
    }

    /// Settles the algorithm of each product, by timing where none is known, and returns all of these as text for
    /// [`Card::recall`]; empty without products. What it writes to the arena is zero where the arena is, but for scratch.
    ///
    /// # Errors
    /// When the card fails, or the library has no algorithm for a product.
    pub(crate) fn settle(&mut self, gemms: &[Gemm]) -> Result<String, ExecError> {
        self.enter().map_err(|e| device_error("entering the context", e))?;
        let (mut timed, mut used) = (false, Vec::with_capacity(gemms.len()));
        for g in gemms {
            let mut g = *g;
            if !self.products()?.is_settled(&g) {
                let mut choices = self.products()?.choices(&g, CANDIDATES);
                if choices.is_err() && g.bias != 0 {
                    // It is added by a kernel, as when the product is recorded.
                    g.bias = 0;
                    choices = self.products()?.choices(&g, CANDIDATES);
                }
                let choices = choices.map_err(ExecError::Device)?;
                let best = self.best_of(&g, &choices)?;
                timed |= choices.len() > 1;
                self.products()?.choose(&g, choices[best]);
            }
            used.push(g);
        }
        let products = self.products()?;
        if timed && let Some(cache) = &products.cache {
            products.chosen.keep(cache);
        }
        Ok(products.text_of(&used))
    }

    /// Returns which of the choices to take.
    fn best_of(&mut self, g: &Gemm, choices: &[cublasLtMatmulAlgo_t]) -> Result<usize, ExecError> {
        if choices.len() == 1 {
            return Ok(0);
        }
        let seconds = self.seconds_of(g, choices)?;
        let fastest = (0..seconds.len()).min_by(|a, b| seconds[*a].total_cmp(&seconds[*b]));
        Ok(fastest.filter(|at| seconds[*at] < BETTER * seconds[0]).unwrap_or(0))
    }

    /// Returns a graph of a product several times; nothing where the library refuses the algorithm, which is known before anything runs.
    fn repeated(
        &mut self,
        g: &Gemm,
        choice: cublasLtMatmulAlgo_t,
        times: usize,
    ) -> Result<Option<Graph>, ExecError> {
        self.products()?.choose(g, choice);
        Ok(self.record(&vec![Step::Gemm(*g); times]).ok())
    }

    /// Returns the seconds of a product with each algorithm, with the same share of what the host takes; infinite for one that the library
    /// refuses after all. They take turns, as a card's clock changes, and the least of three times counts. What was chosen stays chosen.
    pub(super) fn seconds_of(
        &mut self,
        g: &Gemm,
        choices: &[cublasLtMatmulAlgo_t],
    ) -> Result<Vec<f64>, ExecError> {
        /// How long a graph should run, seconds.
        const LONG: f64 = 1e-3;
        const MOST: usize = 64;
        const ROUNDS: usize = 3;
        let before = self.products()?.chosen.clone();
        let Some(first) = choices.first() else { return Ok(Vec::new()) };
        let mut times = MOST;
        if let Some(graph) = self.repeated(g, *first, 1)? {
            self.wall(&graph)?;
            times = ((LONG / self.wall(&graph)?) as usize).clamp(1, MOST);
        }
        let graphs: Result<Vec<_>, _> = choices.iter().map(|c| self.repeated(g, *c, times)).collect();
        let graphs = graphs?;
        let mut seconds = vec![f64::INFINITY; choices.len()];
        for round in 0..=ROUNDS {
            for (graph, least) in graphs.iter().zip(&mut seconds) {
                let Some(graph) = graph else { continue };
                let each = self.wall(graph)? / times as f64;
                // The first round loads what is loaded late.
                *least = if round == 0 { f64::INFINITY } else { each.min(*least) };
            }
        }
        self.products()?.chosen = before;
        Ok(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Algorithms {
        let mut some = Algorithms::new("cuBLASLt 1, card".to_owned());
        some.set("a x b".to_owned(), cublasLtMatmulAlgo_t { data: [1, 2, 3, 4, 5, 6, 7, u64::MAX] });
        some.set("c x d".to_owned(), cublasLtMatmulAlgo_t { data: [0; 8] });
        some
    }

    #[test]
    fn text_reads_back_and_what_is_known_stays() {
        let mut read = Algorithms::new(some().title);
        read.add(&some().text());
        assert_eq!(read, some());
        let mut other = Algorithms::new(some().title);
        other.set("a x b".to_owned(), cublasLtMatmulAlgo_t { data: [9; 8] });
        other.add(&some().text());
        assert_eq!(other.get("a x b").map(|a| a.data), Some([9; 8]));
        assert_eq!(other.get("c x d").map(|a| a.data), Some([0; 8]));
    }

    #[test]
    fn another_card_and_damage_are_left_out() {
        let mut read = Algorithms::new("cuBLASLt 2, card".to_owned());
        read.add(&some().text());
        assert_eq!(read.of, BTreeMap::new());
        for damaged in [
            "",
            "cuBLASLt 2, card",
            "cuBLASLt 2, card\nx\t1 2 3",
            "cuBLASLt 2, card\nx y\nz\tq q q q q q q q",
        ] {
            read.add(damaged);
            assert_eq!(read.of, BTreeMap::new(), "{damaged:?}");
        }
    }

    #[test]
    fn a_cache_gathers_what_several_leave() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut one = Algorithms::new("title".to_owned());
        let mut two = one.clone();
        one.set("one".to_owned(), cublasLtMatmulAlgo_t { data: [1; 8] });
        two.set("two".to_owned(), cublasLtMatmulAlgo_t { data: [2; 8] });
        one.keep(dir.path());
        two.keep(dir.path());
        let all = Algorithms::cached("title".to_owned(), Some(dir.path()));
        assert_eq!(all.of.len(), 2);
        assert_eq!(Algorithms::cached("other".to_owned(), Some(dir.path())).of.len(), 0);
    }
}
