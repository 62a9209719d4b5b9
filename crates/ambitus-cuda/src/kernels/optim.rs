//! Accumulation, norms and updates.

use super::{Argument, View, blocks, kernels, launch, launch_over};
use crate::bind::{Io, Steps};
use ambitus_ir::TensorType;
use ambitus_ir::ops::lion::Lion;
use ambitus_ir::ops::optim::{AdamW, PARTIAL};

kernels! { "optim";
    /// y = beta * y + x; with beta 0 the old y is not read.
    AccumulateArgs "accumulate" [256 threads, 48 registers] { x: View, beta: View, y: View }
    /// Sums of squares of runs of 4096 elements of several tensors x, a block each, to y.
    SumSquaresArgs "sum_squares" [256 threads, 40 registers] { each: Table<2, 59> }
    /// Sums of whole tensors in double precision, a block each.
    SumEachArgs "sum_each" [256 threads, 40 registers] { x: Views, sums: u64 }
    /// The sum of `n` doubles, with one block.
    SumAllArgs "sum_all" [256 threads, 32 registers] { sums: u64, n: i32, y: View }
    /// One step of AdamW of several w, g, m, v; nothing if `apply` is 0.
    AdamWArgs "adamw" [256 threads, 64 registers] {
        each: Table<4, 29>, lr: View, coef: View, t: View, apply: View, adam: Adam,
    }
    /// One step of Lion of several w, g, m; nothing if `apply` is 0.
    LionArgs "lion" [256 threads, 64 registers] {
        each: Table<3, 38>, lr: View, coef: View, apply: View, lion: LionOf,
    }
    /// y = y + (1 - decay) * (b - y) of several b, y; nothing if `apply` is 0.
    LerpArgs "lerp" [256 threads, 48 registers] { each: Table<2, 59>, decay: View, apply: View }
}

/// Most tensors of one [`SumEachArgs`]: arguments of a kernel are at most 4 KiB.
const VIEWS: usize = 48;

/// Several tensors: the mirror of `Views` in `device.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Views([View; VIEWS]);

impl Argument for Views {
    const C: &'static str = "Views";
    fn put(self, to: &mut [u8]) {
        for (x, to) in self.0.into_iter().zip(to.chunks_mut(size_of::<View>())) {
            x.put(to);
        }
    }
}

/// Several tensors, or tuples of them, on which one launch works: the mirror of `Table` in `device.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Table<const WIDTH: usize, const MOST: usize> {
    at: [[View; WIDTH]; MOST],
    /// The number of the first block that works on each.
    first: [i32; MOST],
    /// How many there are.
    n: i32,
}

impl<const WIDTH: usize, const MOST: usize> Table<WIDTH, MOST> {
    /// Tuples of which each has work for some blocks, in as many tables as they fill; with the blocks of each table.
    fn fill(all: impl Iterator<Item = ([View; WIDTH], u64)>) -> Vec<(Self, [u32; 2])> {
        let empty = Table { at: [[View::NONE; WIDTH]; MOST], first: [0; MOST], n: 0 };
        let mut tables: Vec<(Self, [u32; 2])> = Vec::new();
        for (views, blocks) in all.filter(|(_, blocks)| *blocks > 0) {
            if tables.last().is_none_or(|(table, _)| table.n as usize == MOST) {
                tables.push((empty, [0, 1]));
            }
            let (table, grid) = tables.last_mut().expect("just made");
            let n = table.n as usize;
            (table.at[n], table.first[n], table.n) = (views, grid[0] as i32, n as i32 + 1);
            grid[0] += blocks as u32;
        }
        tables
    }

    fn put_parts(self, to: &mut [u8]) {
        let (views, numbers) = to.split_at_mut(size_of::<[[View; WIDTH]; MOST]>());
        for (x, to) in self.at.into_iter().flatten().zip(views.chunks_mut(size_of::<View>())) {
            x.put(to);
        }
        for (x, to) in self.first.into_iter().chain([self.n]).zip(numbers.chunks_mut(4)) {
            x.put(to);
        }
    }
}

macro_rules! tables {
    ($($width:literal by $most:literal = $c:literal),*) => {$(
        impl Argument for Table<$width, $most> {
            const C: &'static str = $c;
            fn put(self, to: &mut [u8]) {
                self.put_parts(to);
            }
        }
    )*};
}
tables!(4 by 29 = "Table<4, 29>", 3 by 38 = "Table<3, 38>", 2 by 59 = "Table<2, 59>");

/// What updates of AdamW have in common: the mirror of `Adam` in `device.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Adam([f32; 8]);

impl Adam {
    pub fn new(beta1: f64, beta2: f64, eps: f64, weight_decay: f64) -> Adam {
        // In f64 here: 1 - 0.999 in f32 is off by 5e-5.
        let (new1, new2) = (1.0 - beta1, 1.0 - beta2);
        Adam([beta1, beta2, new1, new2, beta1.ln(), beta2.ln(), eps, weight_decay].map(|x| x as f32))
    }
}

impl Argument for Adam {
    const C: &'static str = "Adam";
    fn put(self, to: &mut [u8]) {
        for (x, to) in self.0.into_iter().zip(to.chunks_mut(4)) {
            x.put(to);
        }
    }
}

/// What updates of Lion have in common: the mirror of `Lion` in `device.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct LionOf([f32; 5]);

impl LionOf {
    pub fn new(beta1: f64, beta2: f64, weight_decay: f64) -> LionOf {
        LionOf([beta1, beta2, 1.0 - beta1, 1.0 - beta2, weight_decay].map(|x| x as f32))
    }
}

impl Argument for LionOf {
    const C: &'static str = "Lion";
    fn put(self, to: &mut [u8]) {
        for (x, to) in self.0.into_iter().zip(to.chunks_mut(4)) {
            x.put(to);
        }
    }
}

/// Blocks over groups of four elements.
fn blocks_of_fours<K: super::Kernel>(over: View) -> u64 {
    blocks::<K>(over.stored().div_ceil(4))
}

pub(crate) fn accumulate(io: &Io) -> Steps {
    let (x, beta, y) = (io.x[1].view(), io.x[2].view(), io.y[0].view());
    Ok(launch_over(&AccumulateArgs { x, beta, y }, y.stored().div_ceil(4)))
}

pub(crate) fn sum_squares(ios: &[Io]) -> Steps {
    let each = ios.iter().map(|io| {
        let parts = io.x[0].ty.shape.elements().div_ceil(PARTIAL);
        ([io.x[0].view(), io.y[0].view()], parts as u64)
    });
    Ok(Table::fill(each).into_iter().map(|(each, grid)| launch(&SumSquaresArgs { each }, grid)).collect())
}

/// Returns the scratch of SumPartials: a double per operand.
pub(crate) fn sum_partials_workspace(x: &[TensorType]) -> u64 {
    8 * x.len() as u64
}

pub(crate) fn sum_partials(io: &Io) -> Steps {
    let mut steps = Vec::new();
    for (i, some) in io.x.chunks(VIEWS).enumerate() {
        let mut x = Views([View::NONE; VIEWS]);
        x.0.iter_mut().zip(some).for_each(|(view, x)| *view = x.view());
        let sums = io.workspace + 8 * (i * VIEWS) as u64;
        steps.push(launch(&SumEachArgs { x, sums }, [some.len() as u32, 1]));
    }
    let all = SumAllArgs { sums: io.workspace, n: io.x.len() as i32, y: io.y[0].view() };
    steps.push(launch(&all, [1, 1]));
    Ok(steps)
}

/// Of several tensors with the same lr, coef, t and apply.
pub(crate) fn adamw(op: &AdamW, ios: &[Io]) -> Steps {
    let each = ios.iter().map(|io| {
        let views = [0, 1, 2, 3].map(|i| io.x[i].view());
        (views, blocks_of_fours::<AdamWArgs>(views[0]))
    });
    let [lr, coef, t, apply] = [4, 5, 6, 7].map(|i| ios[0].x[i].view());
    let adam = Adam::new(op.beta1, op.beta2, op.eps, op.weight_decay);
    let tables = Table::fill(each).into_iter();
    Ok(tables.map(|(each, grid)| launch(&AdamWArgs { each, lr, coef, t, apply, adam }, grid)).collect())
}

/// Of several tensors with the same lr, coef and apply.
pub(crate) fn lion(op: &Lion, ios: &[Io]) -> Steps {
    let each = ios.iter().map(|io| {
        let views = [0, 1, 2].map(|i| io.x[i].view());
        (views, blocks_of_fours::<LionArgs>(views[0]))
    });
    let [lr, coef, apply] = [3, 4, 5].map(|i| ios[0].x[i].view());
    let lion = LionOf::new(op.beta1, op.beta2, op.weight_decay);
    let tables = Table::fill(each).into_iter();
    Ok(tables.map(|(each, grid)| launch(&LionArgs { each, lr, coef, apply, lion }, grid)).collect())
}

/// Of several tensors with the same decay and apply.
pub(crate) fn lerp(ios: &[Io]) -> Steps {
    let each = ios.iter().map(|io| {
        let (b, y) = (io.x[1].view(), io.y[0].view());
        ([b, y], blocks_of_fours::<LerpArgs>(y))
    });
    let [decay, apply] = [2, 3].map(|i| ios[0].x[i].view());
    let tables = Table::fill(each).into_iter();
    Ok(tables.map(|(each, grid)| launch(&LerpArgs { each, decay, apply }, grid)).collect())
}
