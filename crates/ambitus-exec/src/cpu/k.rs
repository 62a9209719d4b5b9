//! Temporary.
#![allow(missing_docs, unused, clippy::all)]
pub use super::kernels::*;
pub use shim::*;
mod shim {
    use crate::cpu::kernels::*;
    #[derive(Clone, Copy)] pub struct Conv1d { pub cin: usize, pub cout: usize, pub groups: usize, pub kernel: usize, pub pad_left: usize }
    #[derive(Clone, Copy)] pub struct AdamW { pub lr: f32, pub beta1: f32, pub beta2: f32, pub eps: f32, pub weight_decay: f32, pub bias_correction1: f32, pub bias_correction2: f32, pub grad_scale: f32, pub apply: bool }
    pub struct CrossEntropyGrad<'a> { pub scale: f32, pub dx: MatMut<'a>, pub dw: Option<MatMut<'a>>, pub acc: f32 }
    pub fn conv1d(_: &Pool, _: Mat, _: &[i32], _: &[f32], _: Option<&[f32]>, _: &Conv1d, _: MatMut, _: &mut [f32]) { unimplemented!() }
    pub fn conv1d_grad_input(_: &Pool, _: Mat, _: &[i32], _: &[f32], _: &Conv1d, _: MatMut, _: &mut [f32]) { unimplemented!() }
    pub fn conv1d_grad_weight(_: &Pool, _: Mat, _: Mat, _: &[i32], _: &Conv1d, _: f32, _: &mut [f32], _: &mut [f32]) { unimplemented!() }
    pub fn conv1d_workspace(_: &Conv1d, _: usize, _: usize, _: usize) -> usize { 0 }
    pub fn column_sum(_: &Pool, _: Mat, _: f32, _: &mut [f32], _: &mut [f32]) { unimplemented!() }
    pub fn column_sum_workspace(_: usize, _: usize) -> usize { 0 }
    pub fn scatter_add_rows(_: &Pool, _: &[i32], _: Mat, _: f32, _: MatMut) { unimplemented!() }
    pub fn masked_mse(_: &Pool, _: Mat, _: Mat, _: &[f32], _: f32, _: &mut [f32]) -> f32 { unimplemented!() }
    pub fn masked_mse_workspace(_: usize, _: usize) -> usize { 0 }
    pub fn masked_mse_grad(_: &Pool, _: Mat, _: Mat, _: &[f32], _: f32, _: MatMut) { unimplemented!() }
    pub fn linear_cross_entropy(_: &Pool, _: Mat, _: Mat, _: &[i32], _: f32, _: usize, _: Option<CrossEntropyGrad>, _: &mut [f32]) -> f32 { unimplemented!() }
    pub fn linear_cross_entropy_workspace(_: usize, _: usize, _: usize, _: usize, _: usize) -> usize { 0 }
    pub fn grn(_: &Pool, _: Mat, _: &[i32], _: &[f32], _: &[f32], _: MatMut, _: &mut [f32]) { unimplemented!() }
    pub fn grn_grad(_: &Pool, _: Mat, _: &[i32], _: &[f32], _: Mat, _: MatMut, _: f32, _: &mut [f32], _: &mut [f32], _: &mut [f32]) { unimplemented!() }
    pub fn grn_workspace(_: usize, _: usize, _: usize) -> usize { 0 }
    pub fn adamw(_: &Pool, _: &AdamW, _: &mut [f32], _: &[f32], _: &mut [f32], _: &mut [f32]) { unimplemented!() }
    pub fn dropout(_: &Pool, _: Mat, _: &[i32], _: &[[u32; 2]], _: u64, _: f32, _: MatMut) { unimplemented!() }
}
