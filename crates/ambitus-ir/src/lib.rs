//! What a training step is, as pure data.
//!
//! A run is a [`Session`]: declared [`StateDecl`]s (weights, gradients, optimizer, EMA, counters) and straight-line
//! [`Program`]s over them (`micro`, `update`, `evaluate`, ...). A program is built with the [`Builder`], checked by
//! [`verify`], printed and parsed by [`text`]. Nothing here knows of passes, devices, files or models.

pub mod builder;
pub mod ops;
pub mod plan;
pub mod program;
pub mod target;
pub mod tensor;
pub mod text;
pub mod verify;

pub use builder::Builder;
pub use ops::{Cost, Op, OpDef, Props};
pub use program::{
    Input, Instr, Origin, Output, Phase, Program, Session, StateDecl, StateId, StateKind, StateUse, ValueId,
};
pub use tensor::{DType, Shape, TensorType};
