//! What codecs of strided convolutions have in common: two programs over windows of rows, one per direction. Rows are time, columns
//! channels.
//!
//! Strided and transposed convolutions are convolutions of three taps over blocks of rows (a reshape), whose weights
//! [`weights`] lays out; dilated ones run on the sequences of every d-th row. [`rows`] says which rows are sound and how far
//! frames depend on others.

pub mod layers;
pub mod quantizer;
pub mod rows;
pub mod weights;

/// The encoder's program.
pub const ENCODE: &str = "encode";
/// The decoder's.
pub const DECODE: &str = "decode";

/// Dilations of a block's three residual units.
pub const DILATIONS: [usize; 3] = [1, 3, 9];

/// Taps of the convolutions that are neither strided nor pointwise, where nothing else is said.
pub const TAPS: usize = 7;

/// Returns the number of zeros before the first row of a convolution of `2 * stride` taps.
pub fn stride_pad(stride: usize) -> usize {
    stride.div_ceil(2)
}
