//! Element types, shapes and the layout of a value.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 32-bit IEEE float.
    F32,
    /// bfloat16.
    BF16,
    /// 16-bit IEEE float.
    F16,
    /// 32-bit signed integer: token ids, segment offsets, labels, random keys.
    I32,
    /// Byte: codes of quantised tensors, queue tokens.
    U8,
}

impl DType {
    /// Every element type, in the order of the documents.
    pub const ALL: [DType; 5] = [DType::F32, DType::BF16, DType::F16, DType::I32, DType::U8];

    /// Returns the bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::BF16 | DType::F16 => 2,
            DType::U8 => 1,
        }
    }

    /// Returns true for floating-point types.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::BF16 | DType::F16)
    }

    /// Returns the name used in the text form.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::I32 => "i32",
            DType::U8 => "u8",
        }
    }
}

impl FromStr for DType {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let found = DType::ALL.into_iter().find(|d| d.name() == s);
        found.ok_or_else(|| format!("unknown element type `{s}`"))
    }
}

/// Up to [`Shape::MAX_RANK`] axis lengths, outermost first. Dereferences to a slice.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; Shape::MAX_RANK],
    rank: u8,
}

impl Shape {
    /// The most axes that a tensor can have.
    pub const MAX_RANK: usize = 4;
    /// The most elements that a shape in a text can have: counts and sizes stay far from overflowing.
    pub const MAX_ELEMENTS: usize = 1 << 48;
    /// The longest axis in a text.
    pub const MAX_AXIS: usize = 1 << 31;

    /// Returns a shape from axis lengths.
    ///
    /// # Panics
    /// With more than [`Shape::MAX_RANK`] axes: no op makes such a value.
    pub fn new(dims: &[usize]) -> Shape {
        assert!(dims.len() <= Shape::MAX_RANK, "rank {} is too high", dims.len());
        let mut all = [1; Shape::MAX_RANK];
        all[..dims.len()].copy_from_slice(dims);
        Shape { dims: all, rank: dims.len() as u8 }
    }

    /// Returns true when the axes are within the bounds for texts; empty axes do not make up for long ones.
    pub(crate) fn is_bounded(dims: impl IntoIterator<Item = usize>) -> bool {
        let total = dims.into_iter().try_fold(1usize, |n, d| {
            let short = d <= Shape::MAX_AXIS;
            n.checked_mul(d.max(1)).filter(|n| short && *n <= Shape::MAX_ELEMENTS)
        });
        total.is_some()
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.iter().product()
    }

    /// Returns the length of the last axis (1 for rank 0).
    pub fn cols(&self) -> usize {
        self.last().copied().unwrap_or(1)
    }

    /// Product of all axes but the last.
    pub fn rows(&self) -> usize {
        self.iter().rev().skip(1).product()
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.iter().map(usize::to_string).collect();
        write!(f, "[{}]", dims.join(","))
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Shape {
    type Err = String;
    fn from_str(s: &str) -> Result<Shape, String> {
        let bad = || format!("`{s}` is not a shape such as [2,3]");
        let inner = s.strip_prefix('[').and_then(|s| s.strip_suffix(']')).ok_or_else(bad)?;
        let dims: Vec<usize> = if inner.is_empty() {
            Vec::new()
        } else {
            inner.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| bad())?
        };
        if dims.len() > Shape::MAX_RANK {
            return Err(bad());
        }
        if !Shape::is_bounded(dims.iter().copied()) {
            return Err(format!("the shape {s} is too large"));
        }
        Ok(Shape::new(&dims))
    }
}

/// What a value is: element type, shape, and the distance between rows in memory.
///
/// The last axis is contiguous; consecutive rows lie `pitch` elements apart. The bytes between a row's end and the next
/// row (the *pad*) are zero: whoever writes a value writes its pads as zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Axis lengths.
    pub shape: Shape,
    /// Elements from one row to the next; at least the last axis.
    pub pitch: usize,
}

impl TensorType {
    /// Offsets in the arena are multiples of this (bytes).
    pub const ALIGN: u64 = 256;
    /// Rows of wide matrices start at multiples of this (bytes), so that vector loads never straddle.
    const ROW_ALIGN: usize = 16;
    /// Rows narrower than this (elements) are never padded: small tables would only grow.
    const PAD_FROM: usize = 32;

    /// Returns a type with the layout that every builder uses: odd wide last axes are padded to 16 bytes.
    pub fn new(dtype: DType, dims: &[usize]) -> TensorType {
        let shape = Shape::new(dims);
        let cols = shape.cols();
        let step = Self::ROW_ALIGN / dtype.size();
        let pad = shape.len() == 2 && cols >= Self::PAD_FROM;
        let pitch = if pad { cols.next_multiple_of(step) } else { cols };
        TensorType { dtype, shape, pitch }
    }

    /// `f32` of the given axes.
    pub fn f32(dims: &[usize]) -> TensorType {
        TensorType::new(DType::F32, dims)
    }

    /// `i32` of the given axes.
    pub fn i32(dims: &[usize]) -> TensorType {
        TensorType::new(DType::I32, dims)
    }

    /// Same layout rule, other axes.
    pub fn with_shape(self, dims: &[usize]) -> TensorType {
        TensorType::new(self.dtype, dims)
    }

    /// Returns the byte at which an element begins, row-major without pads.
    pub fn byte_of(&self, element: usize) -> u64 {
        let cols = self.shape.cols().max(1);
        ((element / cols * self.pitch + element % cols) * self.dtype.size()) as u64
    }

    /// Returns true when the bytes from element `first` on are a value of type `part`: some rows of a matrix, or, where nothing
    /// has pads, elements in a line. Parts begin where values may.
    pub fn has_part(&self, first: usize, part: TensorType) -> bool {
        let rows = self.shape.len() == 2
            && part.shape.len() == 2
            && (part.shape[1], part.pitch) == (self.shape[1], self.pitch)
            && first.is_multiple_of(self.shape[1].max(1));
        let line = self.is_dense() && part.is_dense() && part.shape.len() == 1;
        let inside = first.checked_add(part.shape.elements()).is_some_and(|n| n <= self.shape.elements());
        part.dtype == self.dtype
            && (rows || line)
            && inside
            && self.byte_of(first).is_multiple_of(Self::ALIGN)
    }

    /// Returns true when rows follow each other without pads.
    pub fn is_dense(&self) -> bool {
        self.pitch == self.shape.cols()
    }

    /// Returns the bytes in memory, pads included.
    pub fn bytes(&self) -> u64 {
        (self.shape.rows() as u64) * (self.pitch as u64) * (self.dtype.size() as u64)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype.name(), self.shape)
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for TensorType {
    type Err = String;
    fn from_str(s: &str) -> Result<TensorType, String> {
        let split = s.find('[').ok_or_else(|| format!("`{s}` has no shape"))?;
        let dtype: DType = s[..split].parse()?;
        let shape: Shape = s[split..].parse()?;
        Ok(TensorType::new(dtype, &shape))
    }
}
