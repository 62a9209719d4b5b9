//! How states that are not f32 pass the seam, which moves f32: 16-bit floats widened, and rounded to nearest on the way in;
//! bytes as the numbers 0 to 255. What was read and is written again has the same bits.

use ambitus_ir::DType;
use half::{bf16, f16};

/// Returns true when a state of this type can pass as f32.
pub fn passes(dtype: DType) -> bool {
    dtype != DType::I32
}

/// Numbers from their bytes; `bytes` has as many elements of the type as `out`.
///
/// # Panics
/// For i32, which does not pass.
pub fn widen(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    debug_assert_eq!(bytes.len(), out.len() * dtype.size());
    match dtype {
        DType::F32 => each(bytes, out, f32::from_le_bytes),
        DType::BF16 => each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        DType::F16 => each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        DType::U8 => each(bytes, out, |[b]| f32::from(b)),
        DType::I32 => unreachable!("i32 states do not pass as f32"),
    }
}

/// The bytes of numbers; of a byte, those outside 0 to 255 become the nearer end.
///
/// # Panics
/// For i32, which does not pass.
pub fn narrow(dtype: DType, data: &[f32], bytes: &mut [u8]) {
    debug_assert_eq!(bytes.len(), data.len() * dtype.size());
    match dtype {
        DType::F32 => put(data, bytes, f32::to_le_bytes),
        DType::BF16 => put(data, bytes, |x| bf16::from_f32(x).to_le_bytes()),
        DType::F16 => put(data, bytes, |x| f16::from_f32(x).to_le_bytes()),
        DType::U8 => put(data, bytes, |x| [x.round() as u8]),
        DType::I32 => unreachable!("i32 states do not pass as f32"),
    }
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], number: impl Fn([u8; N]) -> f32) {
    out.iter_mut().zip(bytes.as_chunks().0).for_each(|(x, b)| *x = number(*b));
}

fn put<const N: usize>(data: &[f32], bytes: &mut [u8], number: impl Fn(f32) -> [u8; N]) {
    bytes.as_chunks_mut().0.iter_mut().zip(data).for_each(|(b, x)| *b = number(*x));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_is_written_back_bit_by_bit() {
        let all: Vec<u8> = (0..1u32 << 16).flat_map(|h| (h as u16).to_le_bytes()).collect();
        for dtype in [DType::U8, DType::BF16, DType::F16] {
            let bytes = if dtype == DType::U8 { &all[..256] } else { &all };
            let mut numbers = vec![0.0; bytes.len() / dtype.size()];
            widen(dtype, bytes, &mut numbers);
            let mut back = vec![0; bytes.len()];
            narrow(dtype, &numbers, &mut back);
            for ((x, a), b) in numbers.iter().zip(bytes.chunks(dtype.size())).zip(back.chunks(dtype.size())) {
                // Signalling NaN becomes quiet.
                assert!(a == b || x.is_nan(), "{dtype:?} {x}");
            }
        }
        let mut bytes = [0; 5];
        narrow(DType::U8, &[-1.0, 300.0, 2.6, f32::NAN, 255.0], &mut bytes);
        assert_eq!(bytes, [0, 255, 3, 0, 255]);
    }
}
