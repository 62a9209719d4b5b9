//! Which instructions one launch carries out: the sums of squares, the updates and the averages of many tensors.
//!
//! A program has an instruction for each tensor, and the start of a kernel takes longer than the work on a small one. Here each goes
//! up to the first of its kind, over instructions that touch none of its bytes. What an instruction computes does not depend on its
//! company, so no bit does.

use crate::bind::{Io, Tensor};
use crate::ops;
use ambitus_ir::Instr;
use std::collections::BTreeMap;
use std::ops::Range;

/// Elements of the largest tensor that shares a launch: the work on larger ones takes thirty times a kernel's start on the fastest
/// cards, and copies that wait behind it would begin later.
const MOST: usize = 1 << 23;

/// Returns the instructions in the order in which they are carried out, by number, those of one launch together. `ios` has what
/// each works on.
pub(crate) fn groups(instrs: &[Instr], ios: &[Io]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::with_capacity(instrs.len());
    let mut open: Vec<Open> = Vec::new();
    for (i, (instr, io)) in instrs.iter().zip(ios).enumerate() {
        // What a copy or an exchange touches up to its end began at its start, which a group may come after.
        if instr.op.def().props().waits {
            open.clear();
        }
        let common = ops::common(&instr.op).filter(|_| io.x[0].ty.shape.elements() <= MOST);
        let found = common.clone().and_then(|common| {
            let with = |o: &Open| (&instrs[groups[o.group][0]].op, &ios[groups[o.group][0]]);
            open.iter()
                .position(|o| *with(o).0 == instr.op && with(o).1.x[common.clone()] == io.x[common.clone()])
        });
        match found {
            Some(k) if !open[k].touched.meets(io) => groups[open[k].group].push(i),
            _ => {
                found.into_iter().for_each(|k| _ = open.remove(k));
                open.extend(common.map(|_| Open { group: groups.len(), touched: Touched::default() }));
                groups.push(vec![i]);
            }
        }
        open.iter_mut().for_each(|o| o.touched.add(io));
    }
    groups
}

/// A group that others may join.
struct Open {
    group: usize,
    /// By its instructions and all that come after its first.
    touched: Touched,
}

#[derive(Default)]
struct Touched {
    read: Bytes,
    written: Bytes,
}

impl Touched {
    fn add(&mut self, io: &Io) {
        io.x.iter().for_each(|t| self.read.add(range(t)));
        written(io).for_each(|r| self.written.add(r));
    }

    /// Returns whether the order of these and an instruction counts.
    fn meets(&self, io: &Io) -> bool {
        io.x.iter().any(|t| self.written.meets(&range(t)))
            || written(io).any(|r| self.written.meets(&r) || self.read.meets(&r))
    }
}

fn range(t: &Tensor) -> Range<u64> {
    t.at..t.at + t.ty.bytes()
}

fn written(io: &Io) -> impl Iterator<Item = Range<u64>> {
    io.y.iter().map(range).chain(Some(io.workspace..io.workspace + io.workspace_bytes))
}

/// Stretches of memory that do not meet, each by its start, with its end.
#[derive(Default)]
struct Bytes(BTreeMap<u64, u64>);

impl Bytes {
    fn meets(&self, r: &Range<u64>) -> bool {
        !r.is_empty() && self.0.range(..r.end).next_back().is_some_and(|(_, end)| *end > r.start)
    }

    fn add(&mut self, mut r: Range<u64>) {
        while self.meets(&r) {
            let (start, end) = self.0.range(..r.end).next_back().map(|(s, e)| (*s, *e)).unwrap_or_default();
            self.0.remove(&start);
            r = r.start.min(start)..r.end.max(end);
        }
        if !r.is_empty() {
            self.0.insert(r.start, r.end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bind::ALONE;
    use ambitus_ir::ops::copy::CopyDone;
    use ambitus_ir::ops::elementwise::{Unary, UnaryKind};
    use ambitus_ir::ops::optim::{Lerp, SumSquares};
    use ambitus_ir::{Op, Origin, Phase, TensorType};

    /// An instruction from tensors of 64 elements at some places to one at another.
    fn step(op: impl Into<Op>, x: &[u64], y: u64) -> (Instr, Io) {
        let tensor = |at: &u64| Tensor { at: 256 * at, ty: TensorType::f32(&[64]) };
        let origin = Origin { path: "".into(), phase: Phase::Update };
        let instr = Instr { op: op.into(), inputs: Vec::new(), outputs: Vec::new(), origin };
        let (x, y) = (x.iter().map(tensor).collect(), vec![tensor(&y)]);
        (instr, Io { x, y, workspace: 0, workspace_bytes: 0, here: ALONE, path: "".into() })
    }

    fn grouped(steps: impl IntoIterator<Item = (Instr, Io)>) -> Vec<Vec<usize>> {
        let (instrs, ios): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
        groups(&instrs, &ios)
    }

    fn squares(x: u64, y: u64) -> (Instr, Io) {
        step(SumSquares {}, &[x], y)
    }

    fn other(x: u64, y: u64) -> (Instr, Io) {
        step(Unary { kind: UnaryKind::Sqrt }, &[x], y)
    }

    #[test]
    fn what_touches_other_bytes_is_passed_over() {
        assert_eq!(grouped([squares(1, 11), other(2, 12), squares(3, 13)]), [vec![0, 2], vec![1]]);
        // What both read does not part them.
        assert_eq!(grouped([squares(1, 11), other(3, 12), squares(3, 13)]), [vec![0, 2], vec![1]]);
    }

    #[test]
    fn what_depends_on_something_between_begins_another_group() {
        let alone = |steps| assert_eq!(grouped(steps), [vec![0], vec![1], vec![2]]);
        alone(vec![squares(1, 11), other(2, 3), squares(3, 13)]);
        alone(vec![squares(1, 11), other(13, 4), squares(3, 13)]);
        alone(vec![squares(1, 11), other(4, 13), squares(3, 13)]);
        // On the first itself, as its bytes or as its result.
        assert_eq!(grouped([squares(1, 11), squares(11, 12)]), [vec![0], vec![1]]);
        assert_eq!(grouped([squares(1, 11), squares(2, 1)]), [vec![0], vec![1]]);
        // Scratch is written.
        let mut scratch = other(2, 12);
        (scratch.1.workspace, scratch.1.workspace_bytes) = (256 * 3 + 128, 64);
        alone(vec![squares(1, 11), scratch, squares(3, 13)]);
        // A third joins the second, not the first.
        let steps = [squares(1, 11), other(2, 3), squares(3, 13), squares(4, 14)];
        assert_eq!(grouped(steps), [vec![0], vec![1], vec![2, 3]]);
    }

    #[test]
    fn nothing_passes_over_the_end_of_a_copy() {
        let done = step(CopyDone { queue: 0 }, &[7, 8, 9], 8);
        assert_eq!(grouped([squares(1, 11), done, squares(3, 13)]), [vec![0], vec![1], vec![2]]);
    }

    #[test]
    fn only_what_has_the_same_numbers_and_the_same_op_is_together() {
        let average = |x, decay, y| step(Lerp {}, &[y, x, decay, 31], y);
        let steps =
            [average(1, 30, 11), squares(2, 12), average(3, 30, 13), average(4, 32, 14), squares(5, 15)];
        assert_eq!(grouped(steps), [vec![0, 2], vec![1, 4], vec![3]]);
        let mut large = squares(1 << 20, 13);
        large.1.x[0].ty = TensorType::f32(&[MOST + 1]);
        assert_eq!(grouped([squares(1, 11), large, squares(2, 12)]), [vec![0, 2], vec![1]]);
    }

    #[test]
    fn stretches_of_memory_that_meet_are_one() {
        let mut bytes = Bytes::default();
        for r in [10..20, 30..40, 50..60, 15..35, 70..70] {
            bytes.add(r);
        }
        assert_eq!(bytes.0.into_iter().collect::<Vec<_>>(), [(10, 40), (50, 60)]);
        let bytes = Bytes([(10, 40), (50, 60)].into());
        for (r, meets) in
            [(0..10, false), (0..11, true), (39..40, true), (40..50, false), (45..70, true), (55..55, false)]
        {
            assert_eq!(bytes.meets(&r), meets, "{r:?}");
        }
    }
}
