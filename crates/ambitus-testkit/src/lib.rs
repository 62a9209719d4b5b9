//! What tests compare with: the slow reference interpreter, op cases, tolerances, gradient checks, toy models.

pub mod cases;
mod drawn;
pub mod emulated_cuda;
pub mod gradcheck;
pub mod gradients;
pub mod interp;
pub mod owners;
pub mod paper;
pub mod tensor;
pub mod tolerances;
pub mod toys;

pub use cases::{Case, Operand, cases};
pub use drawn::{drawn, is_long};
pub use interp::{Interp, InterpError, Rounding, Tensors, World};
pub use tensor::{Rng, Tensor};
