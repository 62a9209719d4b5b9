//! Cases of attention that knows small distances.

use super::{Operand, Table, constant, ints};
use crate::interp::{Interp, Rounding};
use crate::tensor::Tensor;
use ambitus_ir::ops::windowed::{WindowedAttention, WindowedAttentionGrad};

/// (what, heads, channels of a head, W, rows, segments)
type Windowed = (&'static str, usize, usize, usize, usize, &'static [i32]);

pub(super) fn windowed(t: &mut Table) {
    let packed: &[i32] = &[0, 5, 5, 12, 19];
    let table: [Windowed; 8] = [
        ("packed", 3, 6, 2, 23, packed),
        ("padded tables", 2, 35, 4, 23, packed),
        ("96 channels", 2, 96, 4, 70, &[0, 30, 30, 66]),
        ("a window wider than texts", 2, 5, 6, 12, &[0, 1, 12]),
        ("only the row itself", 1, 8, 0, 9, &[0, 9]),
        ("130 channels", 1, 130, 3, 40, &[0, 37]),
        ("all empty", 2, 4, 1, 6, &[0, 0, 0]),
        // More keys than a tile of an executor has.
        ("long texts", 1, 20, 4, 330, &[0, 3, 280, 321]),
    ];
    for (what, heads, head_dim, near, rows, segments) in table {
        let dims = [rows, heads * head_dim];
        let [q, k] = [(); 2].map(|()| t.within(&dims, -2.0, 2.0));
        let tables = [2 * near + 1, head_dim];
        let (v, rel_k, rel_v) = (t.x(&dims), t.within(&tables, -2.0, 2.0), t.x(&tables));
        let mut operands = vec![q, k, v, rel_k, rel_v, ints(segments)];
        // Slow to differentiate by differences.
        operands.iter_mut().for_each(|o| o.differentiable &= rows < 300);
        // What the gradient reads of the forward op has to belong to its operands.
        let x: Vec<Tensor> = operands.iter().map(|o| o.tensor.clone()).collect();
        let y = Interp::new(Rounding::ToType).op(&WindowedAttention { heads }.into(), &x);
        let y = y.expect("the case fits its op");
        let mut more: Vec<Operand> = x[..5].iter().cloned().map(constant).collect();
        more.extend(y.into_iter().map(constant));
        more.extend([t.fixed(&dims), ints(segments)]);
        if what == "96 channels" {
            // What rows of no segment hold must not matter.
            let spoiled = |all: &[Operand], which: &[usize]| {
                let mut all: Vec<Operand> = all.iter().map(|o| constant(o.tensor.clone())).collect();
                let end = segments[segments.len() - 1] as usize * dims[1];
                which.iter().for_each(|i| all[*i].tensor.data[end..].fill(f64::NAN));
                all
            };
            let name = format!("{what}, NaN outside");
            t.add(&name, WindowedAttention { heads }, spoiled(&operands, &[0, 1, 2]));
            t.add(&name, WindowedAttentionGrad { heads }, spoiled(&more, &[0, 1, 2, 7]));
        }
        t.add(what, WindowedAttention { heads }, operands);
        t.add(what, WindowedAttentionGrad { heads }, more);
    }
}
