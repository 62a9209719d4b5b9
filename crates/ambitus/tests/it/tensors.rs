//! Single tensors in safetensors files.

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize_to_file};
use std::path::Path;

/// Returns the shape and the values of a tensor of f32.
pub fn floats(path: &Path, name: &str) -> (Vec<usize>, Vec<f32>) {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::F32, "{name}");
    let values = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    (tensor.shape().to_vec(), values.collect())
}

/// Returns the shape and the values of a tensor of i64.
pub fn integers(path: &Path, name: &str) -> (Vec<usize>, Vec<i64>) {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::I64, "{name}");
    let values = tensor.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()));
    (tensor.shape().to_vec(), values.collect())
}

/// Writes one tensor of f32.
pub fn write_floats(path: &Path, name: &str, shape: &[usize], values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, shape.to_vec(), &bytes).unwrap();
    serialize_to_file([(name, view)], None, path).unwrap();
}

/// Writes tensors of i64.
pub fn write_integers(path: &Path, tensors: &[(&str, &[usize], &[i64])]) {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(_, _, all)| all.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        (*name, TensorView::new(Dtype::I64, shape.to_vec(), bytes).unwrap())
    });
    serialize_to_file(views, None, path).unwrap();
}
