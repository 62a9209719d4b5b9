//! Measuring what steps take.

use super::{Card, Graph, device_error};
use crate::step::{Gemm, Step};
use ambitus_exec::executor::ExecError;
use cudarc::driver::result;
use cudarc::driver::sys;
use std::ops::Range;
use std::time::Instant;

/// Memory of the card besides its arenas, given back at the end: for copies of what is measured.
pub(crate) struct Spare {
    /// Its address.
    pub at: u64,
    /// Its bytes.
    pub bytes: u64,
    context: sys::CUcontext,
}

impl Drop for Spare {
    fn drop(&mut self) {
        // SAFETY: taken by `Card::spare`, given back once; what used it was waited for.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            if self.at != 0 {
                let _ = result::free_sync(self.at);
            }
        }
    }
}

impl Card {
    /// Takes memory for copies: several times the largest cache, or half of what is free.
    pub(crate) fn spare(&mut self) -> Result<Spare, ExecError> {
        const ENOUGH: usize = 1 << 30;
        self.enter().map_err(|e| device_error("entering the context", e))?;
        let (free, _) = result::mem_get_info().map_err(|e| device_error("reading free memory", e))?;
        let bytes = (free / 2).min(ENOUGH) / 256 * 256;
        // SAFETY: fresh memory; what is read of it is written before.
        let at = if bytes == 0 { Ok(0) } else { unsafe { result::malloc_sync(bytes) } };
        let at = at.map_err(|e| device_error("taking memory", e))?;
        Ok(Spare { at, bytes: bytes as u64, context: self.context })
    }

    /// Copies a range of an arena to spare memory.
    pub(crate) fn duplicate(&self, to: u64, from: Range<u64>) -> Result<(), ExecError> {
        // SAFETY: the range lies in an arena by the plan's check, the spare memory has its bytes: checked by the caller.
        unsafe { sys::cuMemcpyAsync(to, from.start, (from.end - from.start) as usize, self.main) }
            .result()
            .map_err(|e| device_error("copying", e))
    }

    /// Returns the seconds of one run of steps: what a graph that repeats them for about a millisecond, the variants in turn, takes longer
    /// than one that runs them once, so without what the host takes to start a graph and to see its end.
    ///
    /// # Errors
    /// When the card fails.
    pub(crate) fn time(&mut self, variants: &[Vec<Step>]) -> Result<f64, ExecError> {
        /// How long a graph should run, seconds: far above what the host's times differ by.
        const LONG: f64 = 1e-3;
        const FEW: usize = 4;
        const MOST: usize = 512;
        /// Runs of a graph, of which the shortest counts.
        const RUNS: usize = 3;
        let variants: Vec<Vec<Step>> = variants.iter().map(|steps| whole(steps)).collect();
        if variants.iter().all(Vec::is_empty) {
            return Ok(0.0);
        }
        let mut run = |n: usize| -> Result<f64, ExecError> {
            let many: Vec<Step> = variants.iter().cycle().take(n).flatten().cloned().collect();
            let graph = self.record(&many).map_err(|(_, why)| ExecError::Device(why))?;
            self.wall(&graph)?;
            (0..RUNS).try_fold(f64::INFINITY, |least, _| Ok(self.wall(&graph)?.min(least)))
        };
        let once = run(1)?;
        let mut each = |n: usize| -> Result<f64, ExecError> {
            // Where the host's times differ by more than all the work.
            const LEAST: f64 = 1e-7;
            Ok(((run(n)? - once) / (n - 1) as f64).max(LEAST))
        };
        let about = each(FEW)?;
        let n = ((LONG / about) as usize).min(MOST);
        if n > FEW { each(n) } else { Ok(about) }
    }

    /// Returns the seconds from starting a graph to seeing its end.
    pub(super) fn wall(&mut self, graph: &Graph) -> Result<f64, ExecError> {
        let start = Instant::now();
        self.replay(graph)?;
        self.wait()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Returns what the algorithm of a product depends on.
    pub(crate) fn product_key(&self, g: &Gemm) -> String {
        self.products.as_ref().map_or(String::new(), |products| products.key(g))
    }

    /// Returns the seconds of a product with each of the library's first choices of an algorithm, at most `most`.
    ///
    /// # Errors
    /// When the card fails.
    pub(crate) fn time_algorithms(&mut self, g: &Gemm, most: usize) -> Result<Vec<f64>, ExecError> {
        self.enter().map_err(|e| device_error("entering the context", e))?;
        let choices = self.products()?.choices(g, most).map_err(ExecError::Device)?;
        self.seconds_of(g, &choices)
    }
}

/// Returns steps with the waits for what they start: the start of a copy and the wait for it belong to different instructions.
fn whole(steps: &[Step]) -> Vec<Step> {
    let mut whole: Vec<Step> = steps.iter().filter(|s| !matches!(s, Step::Join { .. })).cloned().collect();
    whole.extend(steps.iter().filter_map(|s| match s {
        Step::Fork { to, .. } => Some(Step::Join { to: *to }),
        Step::Exchange(exchange) => Some(Step::Join { to: exchange.token }),
        _ => None,
    }));
    whole
}
