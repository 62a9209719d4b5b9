//! Layers that several families have.

mod linear;
mod norm;

pub use linear::{linear, project};
pub use norm::rms_norm;
