//! Attention on Hopper's tensor cores: of 16-bit operands, heads of 64 and 128 channels.

use super::attention::Shape;
use super::attention_mma::{self, widths};
use super::{View, WARPGROUP_OPERATIONS, kernels, launch};
use crate::bind::Io;
use crate::step::Step;
use ambitus_ir::TensorType;

// Shared memory holds 1024 bytes to spare and tiles as the kernels say; in backward of keys also two numbers of each row of a stage.
widths! { "attention_wgmma" [256 threads, 128 rows];
    64: Forward64 "attention_wgmma_64" [128, 50176],
        Queries64 "attention_wgmma_queries_grad_64" [255, 74752],
        Keys64 "attention_wgmma_keys_grad_64" [255, 84480];
    128: Forward128 "attention_wgmma_128" [255, 164864],
        Queries128 "attention_wgmma_queries_grad_128" [255, 148480],
        Keys128 "attention_wgmma_keys_grad_128" [255, 166400];
}

/// Channels of the kernel that serves a head.
fn width(head_dim: i32) -> i32 {
    head_dim
}

/// Returns whether these kernels carry an attention with these operands and results out.
pub(super) fn takes(head_dim: usize, capability: (u32, u32), tensors: &[TensorType]) -> bool {
    capability == WARPGROUP_OPERATIONS
        && matches!(head_dim, 64 | 128)
        && attention_mma::takes(head_dim, capability, tensors)
}
