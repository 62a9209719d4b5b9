//! What compilation may know of this executor before anything runs.

use super::core_ops::elementwise;
use super::kernels::{Half, Mat, MatMut, Operand, Pool, Rows, RowsMut, gemm, gemm_narrow, gemm_workspace};
use super::ops;
use super::types::Types;
use crate::executor::ExecError;
use ambitus_ir::TensorType;
use ambitus_ir::ops::Op;
use ambitus_ir::target::{self, Efficiency, Links, Rates, Target};
use std::time::{Duration, Instant};

/// Ranks of one process exchange through its memory: a copy in and one out.
fn links(copies: f64) -> Links {
    Links { per_host: usize::MAX, peer: copies / 2.0, network: f64::INFINITY, hop: 20e-6 }
}

/// Returns a guess for a machine that was not measured: a recent x86 core with AVX2 reaches 50-90 GFLOP/s, and two or three
/// cores saturate two memory channels. Only relative times matter to the planner's choices.
fn rough(threads: usize) -> Rates {
    let n = threads.max(1) as f64;
    let bytes = 10e9 * n.min(3.0);
    Rates { gemm: 60e9 * n, half: 60e9 * n, bytes, link: bytes / 2.0, links: links(bytes / 2.0) }
}

/// Attention has its softmax between two products, convolutions have short inner products; the start joins the threads.
const KERNELS: Efficiency = Efficiency { start: 3e-6, vector: 0.15, attention: 0.6, convolution: 0.5 };

/// The CPU executor as compilation sees it.
#[derive(Clone, Copy, Debug)]
pub struct CpuTarget {
    threads: usize,
    rates: Rates,
}

impl CpuTarget {
    /// Returns a target of `threads` threads (0 counts as 1), with rough rates.
    pub fn new(threads: usize) -> CpuTarget {
        CpuTarget::with_rates(threads, rough(threads))
    }

    /// Returns a target of `threads` threads with measured rates.
    pub fn with_rates(threads: usize, rates: Rates) -> CpuTarget {
        CpuTarget { threads: threads.max(1), rates }
    }

    /// Measures this machine for about 0.2 seconds, in 48 MiB that are freed again; 16-bit products as of bf16.
    ///
    /// # Errors
    /// When the system refuses the threads.
    pub fn calibrate(threads: usize) -> Result<CpuTarget, ExecError> {
        let pool = Pool::new(threads).map_err(|e| ExecError::Threads { threads, why: e.to_string() })?;
        let n = 512;
        let (a, b, mut c) = (vec![1.0; n * n], vec![1.0; n * n], vec![0.0; n * n]);
        let half = vec![0x3f80; n * n];
        let mut ws = vec![0.0; gemm_workspace(n, n, n, pool.threads())];
        let product = best(|| {
            let (a, b) = (Operand::new(Mat::dense(&a, n, n)), Operand::new(Mat::dense(&b, n, n)));
            gemm(&pool, 1.0, a, b, 0.0, MatMut::dense(&mut c, n, n), None, &mut ws);
        });
        let ty = TensorType::f32(&[5 << 20]);
        let (from, mut to) = (vec![1.0; 5 << 20], vec![0.0; 5 << 20]);
        let copy = best(|| elementwise::map(&pool, ty, Some(&from), &mut to, |x| x));
        // The host's space is memory too: a byte copied is one read and one written.
        let link = ty.bytes() as f64 / copy;
        let half = match pool.isa().multiplies_bf16() {
            true => best(|| {
                let x = Operand::new(Rows::Half(Half::Bf16, Mat::<u16>::dense(&half, n, n)));
                gemm_narrow(&pool, x, x, 0.0, RowsMut::F32(MatMut::dense(&mut c, n, n)), None, &mut ws);
            }),
            false => product,
        };
        let rate = |seconds: f64| 2.0 * (n as f64).powi(3) / seconds;
        let rates =
            Rates { gemm: rate(product), half: rate(half), bytes: 2.0 * link, link, links: links(link) };
        Ok(CpuTarget::with_rates(threads, rates))
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Returns the rates that times are predicted from.
    pub fn rates(&self) -> Rates {
        self.rates
    }
}

/// Shortest time of `body` over a tenth of a second, in seconds.
fn best(mut body: impl FnMut()) -> f64 {
    body();
    let end = Instant::now() + Duration::from_millis(100);
    let mut best = f64::INFINITY;
    while Instant::now() < end {
        let start = Instant::now();
        body();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best.max(1e-9)
}

impl Target for CpuTarget {
    fn name(&self) -> &str {
        "cpu"
    }

    fn has_kernel(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> bool {
        ops::takes(op, Types { x, y })
    }

    fn workspace(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> u64 {
        4 * ops::workspace(op, Types { x, y }, self.threads) as u64
    }

    fn shares(&self, op: &Op, input: usize, output: usize) -> bool {
        target::shares(op, (input, output), ops::overwrites(op))
    }

    fn seconds(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> f64 {
        self.rates.seconds(&KERNELS, op, x, y)
    }

    /// Returns whether the threads that compute copy too.
    fn copies_beside(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_testkit::cases;

    #[test]
    fn promises_are_consistent() {
        let target = CpuTarget::new(2);
        for case in cases() {
            let x = case.types();
            let y = case.op.def().infer(&x).unwrap();
            let def = case.op.def();
            // Donation is sharing by definition; nothing is shared that the op does not allow.
            let allowed = [def.donates(), def.may_share()].concat();
            assert!(def.donates().iter().all(|&(i, o)| target.shares(&case.op, i, o)), "{}", case.name);
            for (i, o) in (0..x.len()).flat_map(|i| (0..y.len()).map(move |o| (i, o))) {
                let shares = target.shares(&case.op, i, o);
                assert!(!shares || allowed.contains(&(i, o)), "{}", case.name);
            }
            assert_eq!(def.props().starts, def.moves(&x, &y).is_some(), "{}", case.name);
            let seconds = target.seconds(&case.op, &x, &y);
            assert!(seconds.is_finite() && seconds > 0.0, "{}", case.name);
        }
    }

    #[test]
    fn calibration_measures_something() {
        let rates = CpuTarget::calibrate(1).unwrap().rates();
        assert!(rates.gemm > 0.0 && rates.gemm.is_finite());
        assert!(rates.bytes > 0.0 && rates.bytes.is_finite());
    }
}
