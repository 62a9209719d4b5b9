//! Which row of a text each frame of its clip belongs to.

use super::{OpDef, Props, arity, matrix, op, segments, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, TensorType};

op! {
    /// Monotonic alignment search (Glow-TTS: Kim, Kim, Kong and Yoon, arXiv 2005.11129; with the borders and ties of VITS' own): for
    /// every frame the text row of its clip, by its number in the table of all texts.
    ///
    /// Operands: z f32 `[F, D]`, of frames; mean f32 `[U, D]`, scale f32 `[U, D]` and base f32 `[U]`, of text rows; frame segments
    /// and text segments, i32 `[S+1]`, of which segment s of both is one clip. Result: i32 `[F]`, -1 where a frame is of no
    /// segment, or its clip has no text row.
    ///
    /// Text row u gives frame f the score `base[u]` - 1/2 sum over d of `((z[f, d] - mean[u, d]) * scale[u, d])^2`: the logarithm of
    /// a normal density, with 1 / sigma as the scale and its constant as the base. In a clip of N frames and M text rows, N >= M, a
    /// path begins in row 0, ends in row M - 1, and from frame to frame stays in its row or goes on to the next; the result is the
    /// path with the largest sum of scores. With s the scores and y and x counted from 0 in the clip,
    ///
    /// ```text
    /// v[y, x] = s[y, x] + max(v[y-1, x-1], v[y-1, x])     for max(0, M - N + y) <= x < min(M, y + 1)
    /// ```
    ///
    /// where v is -1e9 above the diagonal and left of row 0, and 0 before the first frame. From the last frame and row on, back goes
    /// from (y, x), x > 0, to row x - 1 if x = y or `v[y-1, x]` < `v[y-1, x-1]`: on a tie, and where they are not numbers, a frame
    /// stays in its row.
    ///
    /// A clip with more text rows than frames has no such path. Its way back is the same, from the last frame and row, with the
    /// scores in place of v: it ends where it is at the first frame.
    ///
    /// No score is kept: an executor has one row of v, and a bit for each frame and text row that says where the way back goes.
    MonotonicPath = "monotonic_path" {}
}

impl OpDef for MonotonicPath {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 6)?;
        let ((frames, cols), (rows, _)) = (matrix(x[0])?, matrix(x[1])?);
        want(x[..4].iter().all(|t| t.dtype == DType::F32), "takes f32")?;
        want(*x[1].shape == [rows, cols] && x[1] == x[2], "mean and scale are not [U, D]")?;
        want(*x[3].shape == [rows], "base is not [U]")?;
        want(segments(x[4])? == segments(x[5])?, "segment counts of frames and texts differ")?;
        Ok(vec![TensorType::i32(&[frames])])
    }

    /// Of attention: arithmetic over pairs of rows, far too much to do again in backward for a result that is small.
    fn props(&self) -> Props {
        Props::ATTENTION
    }

    fn pairs_rows(&self) -> bool {
        true
    }

    /// A difference, two products and a sum over the channels of each pair.
    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        4.0 * x[0].shape.elements() as f64 * x[1].shape[0] as f64
    }
}

impl Builder<'_> {
    /// Returns the text row of every frame, i32 `[F]`: of frames `z`, text rows (mean, scale, base), and the segments of both; see
    /// [`MonotonicPath`].
    pub fn monotonic_path(
        &mut self,
        z: ValueId,
        [mean, scale, base]: [ValueId; 3],
        frames: ValueId,
        texts: ValueId,
    ) -> ValueId {
        self.push1(MonotonicPath {}, &[z, mean, scale, base, frames, texts])
    }
}
