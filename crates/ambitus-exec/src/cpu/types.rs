//! What kernels say of element types.

use super::kernels::half::WIDEST;
use super::operand::half;
use ambitus_ir::{DType, TensorType};

/// Types of an instruction's operands and results.
#[derive(Clone, Copy)]
pub(super) struct Types<'a> {
    /// Operands.
    pub x: &'a [TensorType],
    /// Results.
    pub y: &'a [TensorType],
}

impl Types<'_> {
    fn all(&self, may: impl Fn(DType) -> bool) -> bool {
        self.x.iter().chain(self.y).all(|t| may(t.dtype))
    }

    /// Returns true when a value has 16-bit elements.
    pub fn halves(&self) -> bool {
        self.x.iter().chain(self.y).any(|t| half(*t).is_some())
    }

    /// Words of 32 bits: floats, and the integers of tables, ids and labels.
    pub fn words(&self) -> bool {
        self.words_or(false)
    }

    /// Words, and 16-bit floats besides them where `halves` says so.
    pub fn words_or(&self, halves: bool) -> bool {
        self.all(|t| t != DType::U8) && (halves || !self.halves())
    }

    /// Floats of 32 bits: the kernel would read integers as floats.
    pub fn floats(&self) -> bool {
        self.floats_or(false)
    }

    /// Floats of 32 bits, and of 16 where `halves` says so.
    pub fn floats_or(&self, halves: bool) -> bool {
        self.all(DType::is_float) && (halves || !self.halves())
    }

    /// Words and bytes, and 16-bit floats where `halves` says so.
    pub fn bytes_or(&self, halves: bool) -> bool {
        halves || !self.halves()
    }

    /// Returns true when the result has 16-bit elements.
    pub fn half_result(&self) -> bool {
        half(self.y[0]).is_some()
    }
}

/// Returns true when a stage holds a row.
pub(super) fn staged(t: TensorType) -> bool {
    t.shape.cols() <= WIDEST
}

/// Returns true when all are `f32`.
pub(super) fn f32s(types: &[TensorType]) -> bool {
    types.iter().all(|t| t.dtype == DType::F32)
}

/// Returns true when none is `f16`.
pub(super) fn bfloats(types: &[TensorType]) -> bool {
    types.iter().all(|t| t.dtype != DType::F16)
}
