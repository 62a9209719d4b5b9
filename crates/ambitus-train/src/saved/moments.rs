//! Moments of small tensors, between the two forms that the number of ranks decides: one rank keeps those of a tensor of fewer
//! than [`LEAST_8BIT`] elements in fp32, several keep them in 8 bits, in the flats that they share.
//!
//! To fp32 is exact: a code times its scale. To 8 bits is rounding, to nearest, as the next update would do in any case.

use crate::error::RunError;
use crate::pieces::Piece;
use ambitus_compile::optimizer::{FIRST_MOMENT, FIRST_SCALES, LEAST_8BIT, SECOND_MOMENT, SECOND_SCALES};
use ambitus_ir::DType;
use ambitus_ir::ops::narrow::{BLOCK, code_limits, dynamic_map};
use ambitus_store as store;
use ambitus_store::PiecedFiles;
use std::ops::Range;

/// Prefixes of a moment's values and of its scales, and whether it has signs.
const MOMENTS: [(&str, &str, bool); 2] =
    [(FIRST_MOMENT, FIRST_SCALES, true), (SECOND_MOMENT, SECOND_SCALES, false)];

/// The code of zero in a state of codes, by its name: what padding holds.
pub fn zero(state: &str) -> f32 {
    if state.starts_with(FIRST_MOMENT) { 127.0 } else { 0.0 }
}

/// What a piece of a moment holds, where the file has the moment in the other form; `None` where it has none such. True:
/// it was rounded.
///
/// # Errors
/// Unreadable files.
pub fn converted(
    files: &PiecedFiles,
    piece: &Piece,
    scratch: &mut [u8],
) -> Result<Option<(Vec<f32>, bool)>, RunError> {
    for (moment, scales, signed) in MOMENTS {
        let (tensor, of_scales) = match (piece.name.strip_prefix(scales), piece.name.strip_prefix(moment)) {
            (Some(tensor), _) => (tensor, true),
            (_, Some(tensor)) => (tensor, false),
            _ => continue,
        };
        let name = format!("{moment}{tensor}");
        let Some(have) = files.find(&name).filter(|t| t.elements() < LEAST_8BIT) else { continue };
        let mut all = |name: &str| -> Result<Vec<f32>, RunError> {
            let mut values = vec![0.0; files.get(name)?.elements()];
            files.read_range(name, 0..values.len(), scratch, |first, x| {
                values[first..first + x.len()].copy_from_slice(x);
            })?;
            Ok(values)
        };
        let wants_codes = of_scales || piece.ty.dtype == DType::U8;
        let (values, rounded) = match (have.dtype(), wants_codes) {
            (store::DType::F32, true) => {
                let (codes, steps) = encode(&all(&name)?, signed);
                (if of_scales { steps } else { codes }, !of_scales)
            }
            (store::DType::U8, false) if piece.ty.shape.elements() == have.elements() => {
                (decode(&all(&name)?, &all(&format!("{scales}{tensor}"))?, signed), false)
            }
            _ => continue,
        };
        let Range { start, end } = piece.range.clone();
        return Ok(values.get(start..end).map(|part| (part.to_vec(), rounded)));
    }
    Ok(None)
}

/// Codes and scales of values, as [`AdamW8bit`](ambitus_ir::ops::narrow::AdamW8bit) stores them.
pub(super) fn encode(values: &[f32], signed: bool) -> (Vec<f32>, Vec<f32>) {
    let limits = code_limits(&dynamic_map(signed));
    let (mut codes, mut scales) = (Vec::with_capacity(values.len()), Vec::new());
    for block in values.chunks(BLOCK) {
        let scale = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let divisor = if scale == 0.0 { 1.0 } else { scale };
        codes.extend(block.iter().map(|x| {
            let code = limits[..255].partition_point(|limit| *limit <= x / divisor);
            // A second moment that is not zero never becomes zero.
            code.max(usize::from(!signed && *x != 0.0)) as f32
        }));
        scales.push(scale);
    }
    (codes, scales)
}

fn decode(codes: &[f32], scales: &[f32], signed: bool) -> Vec<f32> {
    let map = dynamic_map(signed);
    let blocks = codes.chunks(BLOCK).zip(scales);
    blocks.flat_map(|(block, scale)| block.iter().map(move |c| map[*c as u8 as usize] * scale)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_in_8_bits_is_so_again() {
        for signed in [true, false] {
            let sign = |i: usize| if signed && i.is_multiple_of(3) { -1.0 } else { 1.0 };
            let values: Vec<f32> =
                (0..700).map(|i| sign(i) * ((i * 37 % 101) as f32 / 7.0).powi(3)).chain([0.0; 300]).collect();
            let (codes, scales) = encode(&values, signed);
            let once = decode(&codes, &scales, signed);
            assert_eq!(encode(&once, signed), (codes.clone(), scales.clone()), "signed: {signed}");
            for (k, (x, y)) in values.iter().zip(&once).enumerate() {
                let scale = scales[k / BLOCK];
                assert!((x - y).abs() <= 0.01 * scale, "{x} became {y}, scale {scale}");
                assert_eq!(*x == 0.0, *y == 0.0);
            }
            let name = if signed { "exp_avg.w" } else { "exp_avg_sq.w" };
            assert_eq!(dynamic_map(signed)[zero(name) as usize], 0.0);
            assert!(codes[700..].iter().all(|c| *c == zero(name)));
        }
    }
}
