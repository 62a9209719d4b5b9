//! Tensors from and to a flat, in bytes: elements in a row, each tensor at its part.

use ambitus_ir::TensorType;
use ambitus_ir::ops::collective::{Part, Parts};
use std::ops::Range;

/// Returns what of a part lies in a stretch of the flat, as elements of the part.
fn inside(part: &Part, stretch: &Range<usize>) -> Option<Range<usize>> {
    let (first, end) = (part.at.max(stretch.start), (part.at + part.shape.elements()).min(stretch.end));
    (first < end).then(|| first - part.at..end - part.at)
}

/// Calls `body(byte in the tensor's storage, byte after the first of `elements`, bytes)` for every run of elements that
/// follow each other in storage.
fn runs(ty: TensorType, elements: Range<usize>, mut body: impl FnMut(usize, usize, usize)) {
    let (cols, size) = (ty.shape.cols(), ty.dtype.size());
    let mut at = elements.start;
    while at < elements.end {
        let n = if ty.is_dense() { elements.end - at } else { (cols - at % cols).min(elements.end - at) };
        let place = at / cols * ty.pitch + at % cols;
        body(place * size, (at - elements.start) * size, n * size);
        at += n;
    }
}

/// Zeroes the pads between a tensor's rows.
pub fn zero_pads(ty: TensorType, storage: &mut [u8]) {
    let (row, pitch) = (ty.shape.cols() * ty.dtype.size(), ty.pitch * ty.dtype.size());
    if row < pitch {
        storage[..ty.bytes() as usize].chunks_exact_mut(pitch).for_each(|r| r[row..].fill(0));
    }
}

/// Writes what of a tensor lies in a stretch of the flat, of which `data` has the bytes.
pub fn unpack(part: &Part, ty: TensorType, stretch: Range<usize>, data: &[u8], storage: &mut [u8]) {
    let Some(elements) = inside(part, &stretch) else { return };
    let from = &data[(part.at + elements.start - stretch.start) * ty.dtype.size()..];
    runs(ty, elements, |to, at, n| storage[to..to + n].copy_from_slice(&from[at..at + n]));
}

/// Writes a stretch of the flat: its tensors' elements (`storage(k)` has the bytes of tensor k), zero between.
pub fn pack<'s>(
    parts: &Parts,
    types: &[TensorType],
    stretch: Range<usize>,
    data: &mut [u8],
    storage: impl Fn(usize) -> &'s [u8],
) {
    data.fill(0);
    for (k, (part, ty)) in parts.0.iter().zip(types).enumerate() {
        let Some(elements) = inside(part, &stretch) else { continue };
        let to = &mut data[(part.at + elements.start - stretch.start) * ty.dtype.size()..];
        let from = storage(k);
        runs(*ty, elements, |at, done, n| to[done..done + n].copy_from_slice(&from[at..at + n]));
    }
}
