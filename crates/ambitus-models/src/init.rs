//! How parameters are drawn for training from scratch.

/// Distribution of one parameter's elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All zero.
    Zero,
    /// All this.
    Constant(f32),
    /// Uniform in `-bound..bound`. PyTorch's linear and convolution layers: bound = 1/sqrt(fan in).
    Uniform(f32),
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
}
