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

/// What attention and convolution reach of the rate of tensor cores with operands of 16 bits, where those compute them: on Hopper by
/// benches/results/2026-11-26-nvidia-h200-fast.md and -why.md (attention forward 0.12 to 0.33, convolutions 0.15 to 0.23), on the B200 as there;
/// elsewhere, where the same instructions are a larger part of the rate, an estimate by machine code. Only Hopper's are measured.
const ON_TENSOR_CORES: Efficiency = Efficiency { attention: 0.25, convolution: 0.2, ..KERNELS };
const ON_OTHER_TENSOR_CORES: Efficiency = Efficiency { attention: 0.5, convolution: 0.4, ..KERNELS };

/// A head with gradients makes its logits twice: four products where three are counted. On Hopper, where products are fast, the tiles and
/// sums in memory between them take as long as one product and a half: 53 ms for 23.7 TFLOP (benches/results/2026-11-27-nvidia-h200-fast.md).
const HEAD: f64 = 3.0 / 4.0;
const HEAD_ON_HOPPER: f64 = 0.53;

/// A card as compilation sees it.
#[derive(Clone, Copy, Debug)]
pub struct CudaTarget {
    capability: (u32, u32),
    rates: Rates,
    /// Those of matrix products.
    products: Rates,
    kernels: Efficiency,
}

impl CudaTarget {
    /// Returns a card of a compute capability (major, minor) with measured or known rates.
    pub fn new(capability: (u32, u32), rates: Rates) -> CudaTarget {
        let kernels = if matches!(capability, (7, _) | (8, 0)) { KERNELS_OF_64 } else { KERNELS };
        CudaTarget { capability, rates, products: rates, kernels }
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
        let mut rates = if op.def().props().kind == Kind::Product { self.products } else { self.rates };
        let mut kernels = self.kernels;
        let hopper = matches!(self.capability, (9 | 10, _));
        if ops::on_tensor_cores(op, self.capability, x, y) {
            kernels = if hopper { ON_TENSOR_CORES } else { ON_OTHER_TENSOR_CORES };
            rates.gemm = rates.half;
        }
        // It computes seven products where five are counted: scores and their gradients once for dq, once for dk and dv.
        let again =
            if matches!(op, Op::AttentionGrad(_) | Op::WindowedAttentionGrad(_)) { 5.0 / 7.0 } else { 1.0 };
        if matches!(op, Op::LinearCrossEntropyGrad(_)) {
            rates.half *= if hopper { HEAD_ON_HOPPER } else { HEAD };
            rates.gemm *= HEAD;
        }
        kernels.attention *= again;
        rates.seconds(&kernels, op, x, y)
    }
}
