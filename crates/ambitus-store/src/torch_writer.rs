//! What stands in a PyTorch checkpoint beside its tensors: `data.pkl`, in protocol 2, of plain dictionaries, lists, numbers and texts
//! only, so that `torch.load(weights_only=True)` takes it.

use crate::strides::row_major;
use crate::tensor_file::{MAX_RANK, check_name};
use crate::torch::MAX_PICKLE;
use crate::{DType, TensorSpec};

/// Nesting of values.
const MAX_DEPTH: usize = 16;

/// A value of a checkpoint's dictionary.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Item>),
    /// A dictionary, in its order.
    Dict(Vec<(String, Item)>),
    /// The dictionary of all tensors that the file declares.
    Tensors,
}

/// Returns `data.pkl` of a dictionary, one value of which is [`Item::Tensors`]. Tensor i lies in storage i.
pub(crate) fn pickle(root: &[(String, Item)], specs: &[TensorSpec]) -> Result<Vec<u8>, String> {
    let mut names: Vec<&str> = specs.iter().map(|s| s.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|w| w[0] == w[1]) {
        return Err(format!("tensor `{}` is declared twice", twice[0]));
    }
    let mut out = vec![0x80, 2];
    dict(root, specs, MAX_DEPTH, &mut out)?;
    out.push(b'.');
    if out.len() as u64 > MAX_PICKLE {
        return Err(format!("a data.pkl of {} bytes is larger than any reader takes", out.len()));
    }
    Ok(out)
}

fn dict(
    items: &[(String, Item)],
    specs: &[TensorSpec],
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    out.push(b'}');
    for (key, item) in items {
        text(key, out);
        value(item, specs, depth, out)?;
        out.push(b's');
    }
    Ok(())
}

fn value(item: &Item, specs: &[TensorSpec], depth: usize, out: &mut Vec<u8>) -> Result<(), String> {
    let inner = depth.checked_sub(1).ok_or(format!("values are nested deeper than {MAX_DEPTH} levels"))?;
    match item {
        Item::None => out.push(b'N'),
        Item::Bool(value) => out.push(if *value { 0x88 } else { 0x89 }),
        Item::Int(value) => int(*value, out),
        Item::Float(value) => {
            out.push(b'G');
            out.extend(value.to_be_bytes());
        }
        Item::Text(value) => text(value, out),
        Item::List(items) => {
            out.push(b']');
            for item in items {
                value(item, specs, inner, out)?;
                out.push(b'a');
            }
        }
        Item::Dict(items) => dict(items, specs, inner, out)?,
        Item::Tensors => {
            out.push(b'}');
            for (i, spec) in specs.iter().enumerate() {
                text(&spec.name, out);
                tensor(i, spec, out)?;
                out.push(b's');
            }
        }
    }
    Ok(())
}

/// `torch._utils._rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict())`.
fn tensor(i: usize, spec: &TensorSpec, out: &mut Vec<u8>) -> Result<(), String> {
    check_name(&spec.name)?;
    if spec.shape.len() > MAX_RANK {
        return Err(format!("tensor `{}` has over {MAX_RANK} dimensions", spec.name));
    }
    let strided = spec.shape.iter().try_fold(8usize, |n, &d| n.checked_mul(d.max(1)));
    let bytes = spec.bytes().and_then(|bytes| i64::try_from(bytes).ok());
    let (Some(_), Some(bytes)) = (strided, bytes) else {
        return Err(format!("tensor `{}` is too large", spec.name));
    };
    out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
    text("storage", out);
    out.extend(format!("ctorch\n{}Storage\n", storage(spec.dtype)).as_bytes());
    text(&i.to_string(), out);
    text("cpu", out);
    int(bytes / spec.dtype.size() as i64, out);
    out.extend(b"tQ");
    int(0, out);
    for numbers in [&*spec.shape, &*row_major(&spec.shape)] {
        out.push(b'(');
        numbers.iter().for_each(|n| int(*n as i64, out));
        out.push(b't');
    }
    out.extend(b"\x89ccollections\nOrderedDict\n)RtR");
    Ok(())
}

fn int(value: i64, out: &mut Vec<u8>) {
    match i32::try_from(value) {
        Ok(value) => {
            out.push(b'J');
            out.extend(value.to_le_bytes());
        }
        Err(_) => {
            out.extend([0x8a, 8]);
            out.extend(value.to_le_bytes());
        }
    }
}

fn text(text: &str, out: &mut Vec<u8>) {
    out.push(b'X');
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Returns PyTorch's name of a type of storage.
fn storage(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "Float",
        DType::F64 => "Double",
        DType::F16 => "Half",
        DType::Bf16 => "BFloat16",
        DType::I64 => "Long",
        DType::I32 => "Int",
        DType::I16 => "Short",
        DType::I8 => "Char",
        DType::U8 => "Byte",
        DType::Bool => "Bool",
    }
}
