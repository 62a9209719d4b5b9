//! Dense values on the host, and the numbers that tests draw.

use ambitus_ir::{DType, TensorType};

/// A value: row-major, without pads, every element as an `f64` (exact for all element types).
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Element type and shape.
    pub ty: TensorType,
    /// Elements; as many as the shape has.
    pub data: Vec<f64>,
}

impl Tensor {
    /// Returns a value from its elements.
    ///
    /// # Panics
    /// When there are not as many as the shape has.
    pub fn new(ty: TensorType, data: Vec<f64>) -> Tensor {
        assert_eq!(data.len(), ty.shape.elements(), "elements of {ty}");
        Tensor { ty, data }
    }

    /// Returns a value filled with one number.
    pub fn full(ty: TensorType, value: f64) -> Tensor {
        Tensor { ty, data: vec![value; ty.shape.elements()] }
    }

    /// f32 of the given axes, from its elements.
    pub fn f32(dims: &[usize], data: &[f32]) -> Tensor {
        Tensor::new(TensorType::f32(dims), data.iter().map(|x| f64::from(*x)).collect())
    }

    /// Returns a vector of i32.
    pub fn i32(data: &[i32]) -> Tensor {
        Tensor::new(TensorType::i32(&[data.len()]), data.iter().map(|x| f64::from(*x)).collect())
    }

    /// Returns the scalar `[1]`.
    pub fn scalar(value: f32) -> Tensor {
        Tensor::f32(&[1], &[value])
    }

    /// Returns the elements rounded to f32.
    pub fn to_f32(&self) -> Vec<f32> {
        self.data.iter().map(|x| *x as f32).collect()
    }

    /// Returns the bytes that an executor holds, little-endian, `pitch` elements from row to row with pads of zero.
    pub fn to_bytes(&self) -> Vec<u8> {
        let cols = self.ty.shape.cols();
        let mut bytes = Vec::with_capacity(self.ty.bytes() as usize);
        for row in self.data.chunks(cols.max(1)) {
            for x in row.iter().copied().chain(std::iter::repeat_n(0.0, self.ty.pitch - cols)) {
                match self.ty.dtype {
                    DType::F32 => bytes.extend((x as f32).to_le_bytes()),
                    DType::BF16 => bytes.extend(half::bf16::from_f64(x).to_le_bytes()),
                    DType::F16 => bytes.extend(half::f16::from_f64(x).to_le_bytes()),
                    DType::I32 => bytes.extend((x as i32).to_le_bytes()),
                    DType::U8 => bytes.push(x as u8),
                }
            }
        }
        bytes
    }

    /// Returns the value of such bytes; pads are left out.
    ///
    /// # Panics
    /// When there are fewer bytes than the type has.
    pub fn from_bytes(ty: TensorType, bytes: &[u8]) -> Tensor {
        let size = ty.dtype.size();
        let element = |at: usize| {
            let b = &bytes[at * size..(at + 1) * size];
            match ty.dtype {
                DType::F32 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
                DType::BF16 => half::bf16::from_le_bytes([b[0], b[1]]).to_f64(),
                DType::F16 => half::f16::from_le_bytes([b[0], b[1]]).to_f64(),
                DType::I32 => f64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])),
                DType::U8 => f64::from(b[0]),
            }
        };
        let cols = ty.shape.cols();
        let at = |i: usize| i / cols * ty.pitch + i % cols;
        Tensor { ty, data: (0..ty.shape.elements()).map(|i| element(at(i))).collect() }
    }

    /// Rounds every element to the element type.
    pub fn round(&mut self) {
        for x in &mut self.data {
            *x = match self.ty.dtype {
                DType::F32 => f64::from(*x as f32),
                DType::BF16 => half::bf16::from_f64(*x).to_f64(),
                DType::F16 => half::f16::from_f64(*x).to_f64(),
                DType::I32 | DType::U8 => *x,
            };
        }
    }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Starts a stream.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in 0..n.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Uniform in low..high, with at most 24 bits: an f32 where the ends are small.
    pub fn range(&mut self, low: f64, high: f64) -> f64 {
        let unit = (self.bits() >> 40) as f64 / (1u64 << 24) as f64;
        f64::from((low + (high - low) * unit) as f32)
    }

    /// Returns a float value with elements uniform in low..high, representable in its type.
    pub fn tensor(&mut self, ty: TensorType, low: f64, high: f64) -> Tensor {
        let data = (0..ty.shape.elements()).map(|_| self.range(low, high)).collect();
        let mut t = Tensor { ty, data };
        t.round();
        t
    }
}
