//! Element types, and their conversion to the types that the rest of the project computes in.

use half::{bf16, f16};

/// Element type of a stored tensor; little-endian in every supported format.
///
/// The order of the variants is the order of the `safetensors` writers (by alignment), which [`crate::SafetensorsWriter`]
/// sorts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum DType {
    Bool,
    U8,
    I8,
    I16,
    F16,
    Bf16,
    I32,
    F32,
    F64,
    I64,
}

impl DType {
    /// Every type, in order.
    pub const ALL: [DType; 10] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::F16,
        DType::Bf16,
        DType::I32,
        DType::F32,
        DType::F64,
        DType::I64,
    ];

    /// Returns the bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::I16 | DType::F16 | DType::Bf16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::F64 | DType::I64 => 8,
        }
    }

    /// Returns the name in a safetensors header.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "BOOL",
            DType::U8 => "U8",
            DType::I8 => "I8",
            DType::I16 => "I16",
            DType::F16 => "F16",
            DType::Bf16 => "BF16",
            DType::I32 => "I32",
            DType::F32 => "F32",
            DType::F64 => "F64",
            DType::I64 => "I64",
        }
    }

    /// Returns the type with this safetensors name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Returns true for F64, F32, F16 and BF16.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::Bf16 | DType::F32 | DType::F64)
    }
}

/// Elements of `$t` (little-endian) in `$bytes`, each put through `$f` into `$out`.
macro_rules! each {
    ($t:ty, $bytes:expr, $out:expr, $f:expr) => {
        for (out, raw) in $out.iter_mut().zip($bytes.chunks_exact(size_of::<$t>())) {
            *out = $f(<$t>::from_le_bytes(raw.try_into().expect("chunks_exact gives whole elements")));
        }
    };
}

/// Decodes to f32 (F64 and wide integers round to nearest; booleans become 0 and 1).
pub(crate) fn decode_f32(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => each!(f32, bytes, out, |v| v),
        DType::F64 => each!(f64, bytes, out, |v| v as f32),
        DType::F16 => each!(u16, bytes, out, |v| f16::from_bits(v).to_f32()),
        DType::Bf16 => each!(u16, bytes, out, |v| bf16::from_bits(v).to_f32()),
        DType::I64 => each!(i64, bytes, out, |v| v as f32),
        DType::I32 => each!(i32, bytes, out, |v| v as f32),
        DType::I16 => each!(i16, bytes, out, |v| v as f32),
        DType::I8 => each!(i8, bytes, out, |v| v as f32),
        DType::U8 => each!(u8, bytes, out, |v| v as f32),
        DType::Bool => each!(u8, bytes, out, |v| (v != 0) as u8 as f32),
    }
}

/// Decodes integers and booleans to i64; the caller has refused floats.
pub(crate) fn decode_i64(dtype: DType, bytes: &[u8], out: &mut [i64]) {
    match dtype {
        DType::I64 => each!(i64, bytes, out, |v| v),
        DType::I32 => each!(i32, bytes, out, |v| v as i64),
        DType::I16 => each!(i16, bytes, out, |v| v as i64),
        DType::I8 => each!(i8, bytes, out, |v| v as i64),
        DType::U8 => each!(u8, bytes, out, |v| v as i64),
        DType::Bool => each!(u8, bytes, out, |v| (v != 0) as i64),
        DType::F16 | DType::Bf16 | DType::F32 | DType::F64 => {
            unreachable!("floats are refused before decoding")
        }
    }
}

/// Encodes f32 as a float type, rounding to nearest even; the caller has refused integers.
pub(crate) fn encode_f32(dtype: DType, values: &[f32], out: &mut [u8]) {
    let chunks = out.chunks_exact_mut(dtype.size()).zip(values);
    match dtype {
        DType::F32 => chunks.for_each(|(o, v)| o.copy_from_slice(&v.to_le_bytes())),
        DType::F64 => chunks.for_each(|(o, &v)| o.copy_from_slice(&f64::from(v).to_le_bytes())),
        DType::F16 => chunks.for_each(|(o, &v)| o.copy_from_slice(&f16::from_f32(v).to_le_bytes())),
        DType::Bf16 => chunks.for_each(|(o, &v)| o.copy_from_slice(&bf16::from_f32(v).to_le_bytes())),
        _ => unreachable!("integers are refused before encoding"),
    }
}
