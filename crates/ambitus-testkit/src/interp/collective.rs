//! Collectives of one rank: tensors from a flat and to it. Several ranks need an executor each.

use super::core::Data;
use crate::tensor::Tensor;
use ambitus_ir::TensorType;
use ambitus_ir::ops::collective::{AllGatherStart, ReduceScatterStart};
use std::rc::Rc;

pub(super) fn gather(op: &AllGatherStart, x: &[Rc<Tensor>], y: &[TensorType]) -> Option<Vec<Data>> {
    let whole = op.mesh.size(op.group) == 1;
    let tensors = op.parts.0.iter().map(|p| x[0].data[p.at..][..p.shape.elements()].to_vec());
    whole.then(|| tensors.chain([vec![0.0; y[y.len() - 1].shape.elements()]]).collect())
}

pub(super) fn reduce(op: &ReduceScatterStart, x: &[Rc<Tensor>], y: &[TensorType]) -> Option<Vec<Data>> {
    let mut flat = vec![0.0; y[0].shape.elements()];
    if op.mesh.ranks > 1 {
        return None;
    }
    for (part, t) in op.parts.0.iter().zip(x) {
        flat[part.at..][..t.data.len()].copy_from_slice(&t.data);
    }
    Some(vec![flat, vec![0.0]])
}
