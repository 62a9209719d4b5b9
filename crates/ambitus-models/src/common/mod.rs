//! Layers that several families have.

pub mod codec;
pub mod crossed;
mod linear;
mod norm;

pub use linear::{linear, pointwise, project};
pub use norm::{group_norm, layer_norm, rms_norm};
