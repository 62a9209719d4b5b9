//! Arithmetic on 16-bit values: pieces of the operands are widened on the stack, an `f32` kernel runs on them, and its
//! results are rounded once. A piece is read before it is written, so that results may lie on operands.

use crate::cpu::kernels::{Pool, Rows, RowsMut, Stage};

/// Elements widened at a time: 16 KiB of stack for each operand and result.
const SPAN: usize = 4096;

/// An operand of [`staged`].
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// Elsewhere.
    Of(Rows<'a>),
    /// What result `k` held.
    Result(usize),
}

impl<'a> Operand<'a> {
    /// From rows, or `None` for what result `k` held.
    pub fn new(rows: Option<Rows<'a>>, k: usize) -> Operand<'a> {
        rows.map_or(Operand::Result(k), Operand::Of)
    }
}

/// Calls `body((row, first column), operands, results)` for pieces of rows of values of equal axes.
pub fn staged<const I: usize, const O: usize>(
    pool: &Pool,
    x: [Operand<'_>; I],
    y: [RowsMut<'_>; O],
    body: impl Fn((usize, usize), [&[f32]; I], [&mut [f32]; O]) + Sync,
) {
    let isa = pool.isa();
    let shape = y[0].shape();
    let same = |rows: (usize, usize)| assert!(rows == shape, "staged operands differ in shape");
    y.iter().for_each(|y| same(y.shape()));
    let (rows, cols) = shape;
    let spans = cols.div_ceil(SPAN);
    let (total, step) = (rows * spans, (super::TILE / cols.clamp(1, SPAN)).max(1));
    pool.run(total.div_ceil(step), |i| {
        let mut ins: [Stage; I] = std::array::from_fn(|_| Stage::new());
        let mut outs: [Stage; O] = std::array::from_fn(|_| Stage::new());
        for span in i * step..total.min((i + 1) * step) {
            let (r, c) = (span / spans, span % spans * SPAN);
            let n = SPAN.min(cols - c);
            let mut k = 0;
            let from = ins.each_mut().map(|stage| {
                let operand = x[k];
                k += 1;
                match operand {
                    Operand::Of(x) => x.part(isa, r, c, n, stage),
                    // SAFETY: this task's elements.
                    Operand::Result(k) => unsafe { y[k].old(isa, r, c, n, stage) },
                }
            });
            body((r, c), from, outs.each_mut().map(|stage| stage.floats(n)));
            for (y, out) in y.iter().zip(&mut outs) {
                // SAFETY: this task's elements.
                unsafe { y.put(isa, r, c, out.floats(n)) };
            }
        }
    });
}
