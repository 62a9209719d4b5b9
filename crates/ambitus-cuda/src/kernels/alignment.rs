//! The search for a text's alignment with its frames.

use super::{View, kernels, launch};
use crate::bind::{Io, Steps};
use ambitus_ir::TensorType;

kernels! { "alignment";
    /// The text row of every frame: a block for each clip, and one for the frames of none. `values`: two rows of U; `scores`: of
    /// some frames; `bits`: `words` for each frame.
    PathArgs "monotonic_path" [256 threads, 80 registers] {
        z: View, mean: View, scale: View, base: View, frames: View, texts: View, path: View,
        values: u64, scores: u64, bits: u64, words: i32,
    }
}

/// Frames whose scores are made at a time: as in the kernel.
const FRAMES: u64 = 8;
/// Bits of a word.
const WORD: usize = 32;

/// Returns the bytes of the values, of the scores and of the bits, for operands (z, mean).
fn parts(z: TensorType, mean: TensorType) -> [u64; 3] {
    let (frames, rows) = (z.shape.rows() as u64, mean.shape.rows());
    let words = rows.div_ceil(WORD) as u64;
    [2 * rows as u64, FRAMES * rows as u64, frames * words]
        .map(|n| (4 * n).next_multiple_of(TensorType::ALIGN))
}

/// Returns the bytes of scratch.
pub(crate) fn workspace(x: &[TensorType]) -> u64 {
    parts(x[0], x[1]).iter().sum()
}

pub(crate) fn monotonic_path(io: &Io) -> Steps {
    let [z, mean, scale, base, frames, texts] = [0, 1, 2, 3, 4, 5].map(|i| io.x[i].view());
    let [of_values, of_scores, _] = parts(io.x[0].ty, io.x[1].ty);
    let (values, path) = (io.workspace, io.y[0].view());
    let (scores, words) = (values + of_values, io.x[1].ty.shape.rows().div_ceil(WORD) as i32);
    let bits = scores + of_scores;
    let args = PathArgs { z, mean, scale, base, frames, texts, path, values, scores, bits, words };
    Ok(vec![launch(&args, [frames.cols as u32, 1])])
}
