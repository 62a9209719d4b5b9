//! Random numbers: functions of (seed, epoch, sample, op), never of pack position, rank or plan.

use super::{Grads, OpDef, Vjp, arity, matrix, op, segments, want};
use crate::builder::Builder;
use crate::program::{Origin, Phase, ValueId};
use crate::tensor::{DType, TensorType};

op! {
    /// y = x * keep / (1 - p), keep drawn per element with probability 1 - p. Operands (x `[T, D]`, keys i32 `[S, 2]`,
    /// segments). Bits of element n = position * D + channel of a clip: word n mod 4 of Philox4x32-10 (Salmon et al.,
    /// SC 2011) with key words `keys[segment]` and counter words (n / 4 low, n / 4 high, op id low, op id high); keep where
    /// bits >= floor(p * 2^32). Rows of no segment are zero.
    Dropout = "dropout" {
        /// probability of dropping
        p: f32,
        /// stable op id
        id: u64,
    }
}

impl OpDef for Dropout {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 3)?;
        matrix(x[0])?;
        let segs = segments(x[2])?;
        want(x[1].dtype == DType::I32 && *x[1].shape == [segs, 2], "keys are not i32[S, 2]")?;
        want((0.0..1.0).contains(&self.p), "p is not in 0..1")?;
        Ok(vec![x[0]])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        // Linear in x, and its own adjoint: the mask is drawn again, not kept.
        Ok(vec![v.dy0().map(|dy| b.push1(self.clone(), &[dy, v.x[1], v.x[2]])), None, None])
    }

    fn narrows(&self, k: usize) -> bool {
        k == 0
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        12.0 * x[0].shape.elements() as f64
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }
}

impl Builder<'_> {
    /// Dropout; the op id comes from the provenance path.
    pub fn dropout(&mut self, x: ValueId, p: f32, keys: ValueId, segs: ValueId) -> ValueId {
        let id = Origin { path: self.path(Dropout::NAME).into(), phase: Phase::Forward }.op_id();
        self.push1(Dropout { p, id }, &[x, keys, segs])
    }
}

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): four random words for a counter
/// and a key.
pub fn philox4x32_10(mut ctr: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    const MUL: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let a = MUL[0] * u64::from(ctr[0]);
        let b = MUL[1] * u64::from(ctr[2]);
        ctr = [(b >> 32) as u32 ^ ctr[1] ^ key[0], b as u32, (a >> 32) as u32 ^ ctr[3] ^ key[1], a as u32];
    }
    ctr
}

#[cfg(test)]
mod tests {
    use super::philox4x32_10;

    /// Known answers of the Random123 distribution (`kat_vectors`).
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox4x32_10([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32_10([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }
}
