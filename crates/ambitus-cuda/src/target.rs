//! What compilation may know of a card before anything runs.

use crate::ops;
use ambitus_ir::TensorType;
use ambitus_ir::ops::{Kind, Op};
use ambitus_ir::target::{self, Efficiency, Rates, Target};

/// Reserved for what a card holds besides the arena, while no run measured it: contexts are reported at 300 to 500 MiB,
/// cuBLASLt's kernels and a graph of some thousand nodes at some tens each.
pub const STATED_RESERVE: u64 = 768 << 20;

/// The start is that of a graph's next node. Attention and convolution are tiles in fp32, where loads and exponentials take as many
/// issue slots as arithmetic: by their machine code they reach 0.43 of a multiprocessor's 128 fp32 units, and 0.75 of 64.
const KERNELS: Efficiency = Efficiency { start: 2e-6, vector: 0.5, attention: 0.5, convolution: 0.45 };
/// On multiprocessors with 64 fp32 units: Turing's, and the A100's.
const KERNELS_OF_64: Efficiency = Efficiency { attention: 0.85, convolution: 0.65, ..KERNELS };

/// A card as compilation sees it.
#[derive(Clone, Copy, Debug)]
pub struct CudaTarget {
    rates: Rates,
    /// Those of matrix products.
    products: Rates,
    kernels: Efficiency,
}

impl CudaTarget {
    /// Returns a card of a compute capability (major, minor) with measured or known rates.
    pub fn new(capability: (u32, u32), rates: Rates) -> CudaTarget {
        let kernels = if matches!(capability, (7, _) | (8, 0)) { KERNELS_OF_64 } else { KERNELS };
        CudaTarget { rates, products: rates, kernels }
    }

    /// Returns this card with products of fp32 operands that are read as TF32: half the rate of 16-bit operands, by NVIDIA's data
    /// sheets.
    pub fn with_tf32(self) -> CudaTarget {
        let gemm = (self.rates.half / 2.0).max(self.rates.gemm);
        CudaTarget { products: Rates { gemm, ..self.rates }, ..self }
    }
}

impl Target for CudaTarget {
    fn name(&self) -> &str {
        "cuda"
    }

    fn has_kernel(&self, op: &Op, _: &[TensorType], _: &[TensorType]) -> bool {
        ops::has_kernel(op)
    }

    fn workspace(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> u64 {
        ops::workspace(op, x, y)
    }

    fn shares(&self, op: &Op, input: usize, output: usize) -> bool {
        target::shares(op, (input, output), ops::overwrites(op))
    }

    fn seconds(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> f64 {
        let rates = if op.def().props().kind == Kind::Product { &self.products } else { &self.rates };
        // It computes seven products where five are counted: scores and their gradients once for dq, once for dk and dv.
        let again = if matches!(op, Op::AttentionGrad(_)) { 5.0 / 7.0 } else { 1.0 };
        let kernels = Efficiency { attention: again * self.kernels.attention, ..self.kernels };
        rates.seconds(&kernels, op, x, y)
    }
}
