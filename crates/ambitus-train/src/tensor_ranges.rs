//! Which elements of which tensors an executor's states hold.
//!
//! Files name tensors of the model and what belongs to each (`exp_avg.NAME`, `ema.NAME`). A rank of several has flats instead,
//! of which it holds a range: parts of several tensors. Codes and scales of 8-bit moments are tensors of one axis, one scale
//! for every 256 elements; tensors begin at multiples of these in a flat, and ranks' ranges too, so no scale is of two.

use ambitus_compile::passes::shard::Layout;
use ambitus_ir::{DType, Shape, StateDecl, StateId, TensorType};
use std::ops::Range;

/// A run of elements of a tensor in a state.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The tensor's name in files.
    pub name: String,
    /// The whole tensor's type.
    pub ty: TensorType,
    /// Which of its elements, row-major.
    pub range: Range<usize>,
    /// The state that has them.
    pub state: StateId,
    /// The first of them in the state.
    pub at: usize,
    /// The state is of a flat: each rank has another part, or a copy of it.
    pub in_flat: bool,
}

/// Returns what the states hold; `held`: of a rank whose tensors lie so.
pub fn of(states: &[StateDecl], held: Option<(&Layout, usize)>) -> Vec<Piece> {
    let mut out = Vec::with_capacity(states.len());
    for (i, s) in states.iter().enumerate() {
        let state = StateId(i as u32);
        let flat = held.and_then(|(layout, rank)| {
            let flat = layout.flats.iter().find(|f| s.name.ends_with(&f.name))?;
            Some((flat, flat.held(layout.mesh(), rank), &s.name[..s.name.len() - flat.name.len()]))
        });
        let Some((flat, held, prefix)) = flat else {
            let range = 0..s.ty.shape.elements();
            out.push(Piece { name: s.name.clone(), ty: s.ty, range, state, at: 0, in_flat: false });
            continue;
        };
        // Elements of the flat for each of the state: of scales a block, else one.
        let per = held.len().checked_div(s.ty.shape.elements()).unwrap_or(1).max(1);
        for t in &flat.tensors {
            let (from, to) = (t.at.max(held.start), t.range().end.min(held.end));
            if from >= to {
                continue;
            }
            let shape = match s.ty.dtype {
                DType::U8 => Shape::new(&[t.shape.elements()]),
                _ if per > 1 => Shape::new(&[t.shape.elements().div_ceil(per)]),
                _ => t.shape,
            };
            out.push(Piece {
                name: format!("{prefix}{}", t.name),
                ty: TensorType::new(s.ty.dtype, &shape),
                range: (from - t.at) / per..(to - t.at).div_ceil(per),
                state,
                at: (from - held.start) / per,
                in_flat: true,
            });
        }
    }
    out
}
