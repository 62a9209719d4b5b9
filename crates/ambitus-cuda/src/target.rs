//! What compilation may know of a card before anything runs.

use crate::ops;
use ambitus_ir::TensorType;
use ambitus_ir::ops::{Kind, Op};
use ambitus_ir::target::{self, Efficiency, Rates, Target};

/// Reserved for what a card holds besides the arena, while no run measured it: contexts are reported at 300 to 500 MiB,
/// cuBLASLt's kernels and a graph of some thousand nodes at some tens each.
pub const STATED_RESERVE: u64 = 768 << 20;

/// Attention and convolution are simple tiles; the start is that of a graph's next node.
const KERNELS: Efficiency = Efficiency { start: 2e-6, vector: 0.5, attention: 0.2, convolution: 0.2 };

/// A card as compilation sees it.
#[derive(Clone, Copy, Debug)]
pub struct CudaTarget {
    rates: Rates,
    /// Those of matrix products.
    products: Rates,
    /// Scratch of one matrix product.
    gemm_workspace: u64,
}

impl CudaTarget {
    /// Returns a card of a compute capability (major, minor) with measured or known rates.
    pub fn new(capability: (u32, u32), rates: Rates) -> CudaTarget {
        CudaTarget { rates, products: rates, gemm_workspace: CudaTarget::gemm_workspace(capability) }
    }

    /// Returns this card with products of fp32 operands that are read as TF32: half the rate of 16-bit operands, by NVIDIA's data
    /// sheets.
    pub fn with_tf32(self) -> CudaTarget {
        let gemm = (self.rates.half / 2.0).max(self.rates.gemm);
        CudaTarget { products: Rates { gemm, ..self.rates }, ..self }
    }

    /// Returns the scratch of one matrix product, all that bytes depend on. Hopper's products want 32 MiB, older cards' 4 MiB (what
    /// cuBLASLt's documentation advises).
    pub fn gemm_workspace(capability: (u32, u32)) -> u64 {
        if capability.0 >= 9 { 32 << 20 } else { 4 << 20 }
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
        ops::workspace(op, x, y, self.gemm_workspace)
    }

    fn shares(&self, op: &Op, input: usize, output: usize) -> bool {
        target::shares(op, (input, output), ops::overwrites(op))
    }

    fn seconds(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> f64 {
        let rates = if op.def().props().kind == Kind::Product { &self.products } else { &self.rates };
        rates.seconds(&KERNELS, op, x, y)
    }
}
