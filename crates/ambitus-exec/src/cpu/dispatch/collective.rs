//! Collectives between executors, in steps of a bounded number of elements through the scratch.

use super::{Instruction, Resolved, kernel};
use crate::cpu::core_ops::flat::{pack, unpack, zero_pads};
use crate::cpu::disk::{bytes, bytes_mut};
use crate::cpu::executor::AsyncMode;
use crate::cpu::operand::{Frame, In, Io, Out, Scratch};
use crate::cpu::types::Types;
use ambitus_comm::staging;
use ambitus_ir::TensorType;
use ambitus_ir::ops::Op;
use ambitus_ir::ops::collective::{AllGatherStart, CollectiveDone, Group, Mesh, ReduceScatterStart};
use ambitus_ir::ops::transfer::{End, TransferStart};

/// Returns the elements of one step when each of `members` sends `elements` to one or all.
fn step(members: usize, elements: usize) -> usize {
    (staging(members) / 4 / members.max(1)).min(elements)
}

/// Returns the floats of scratch of a gather's start.
pub fn gather_workspace(op: &AllGatherStart, t: Types<'_>) -> usize {
    let members = op.mesh.size(op.group);
    if members == 1 { 0 } else { members * step(members, t.x[0].shape.elements()) }
}

/// Returns the floats of scratch of a sum's start.
pub fn reduce_workspace(op: &ReduceScatterStart, t: Types<'_>) -> usize {
    let ranks = op.mesh.ranks;
    if ranks == 1 { 0 } else { 2 * ranks * step(ranks, t.y[0].shape.elements()) }
}

/// Returns the floats of scratch of a transfer's start.
pub fn transfer_workspace(op: &TransferStart) -> usize {
    match op.end {
        End::Both => 0,
        End::Send | End::Receive => 2 * step(2, op.ty().bytes().div_ceil(4) as usize),
    }
}

/// Returns the floats of scratch of the done of any of them, which may do the work in the start's place.
pub fn done_workspace(op: &CollectiveDone, t: Types<'_>) -> usize {
    let elements = |t: &[TensorType]| t.first().map_or(0, |t| t.shape.elements());
    match op.members {
        0 | 1 => 0,
        members => 2 * members * step(members, elements(t.x).max(elements(t.y))),
    }
}

/// Returns the start: does the work, or leaves it to the done.
pub fn start(this: &Instruction<'_>, mut io: Io) -> Resolved {
    let results = io.results() - 1;
    let xs = (0..io.operands()).map(|i| io.x(i)).collect::<Result<Vec<_>, _>>()?;
    let ys = (0..results).map(|k| io.y(k)).collect();
    match this.copies {
        AsyncMode::Early => work(this.op, xs, ys, io.ws(), this.path),
        AsyncMode::Late => kernel(|_| ()),
    }
}

/// Returns the done, by the attributes of its start.
pub fn done(this: &Instruction<'_>, mut io: Io) -> Resolved {
    let results = io.results();
    let sources = io.operands() - results - 1;
    let xs = (0..sources).map(|i| io.x(i)).collect::<Result<Vec<_>, _>>()?;
    let ys = (0..results).map(|k| io.donated(sources + k, k)).collect::<Result<Vec<_>, _>>()?;
    match this.copies {
        AsyncMode::Early => kernel(|_| ()),
        AsyncMode::Late => work(this.begun.unwrap_or(this.op), xs, ys, io.ws(), this.path),
    }
}

fn work(op: &Op, xs: Vec<In>, ys: Vec<Out>, ws: Scratch, path: &str) -> Resolved {
    match op {
        Op::AllGatherStart(op) => gather(op.clone(), xs, ys, ws, path.to_owned()),
        Op::ReduceScatterStart(op) => reduce(op.clone(), xs, ys, ws, path.to_owned()),
        Op::TransferStart(op) => transfer(op, xs, ys, ws, path.to_owned()),
        _ => Err("is no collective".to_owned()),
    }
}

/// Returns the bytes of an operand, pads included.
fn raw<'s>(x: &'s In, f: &'s Frame<'_>) -> &'s [u8] {
    bytes(x.data(f))
}

fn gather(op: AllGatherStart, mut xs: Vec<In>, mut ys: Vec<Out>, mut ws: Scratch, path: String) -> Resolved {
    let x = xs.pop().ok_or("has no operand")?;
    let (elements, size) = (x.ty().shape.elements(), x.ty().dtype.size());
    let mesh = op.mesh;
    let members = mesh.size(op.group);
    let each = step(members, elements).max(1);
    // Filled in the first run: who this rank is, is not known before.
    let mut group: Vec<usize> = Vec::with_capacity(members);
    kernel(move |f| {
        for y in &mut ys {
            let ty = y.ty();
            zero_pads(ty, bytes_mut(y.data(f)));
        }
        let mine = &raw(&x, f)[..elements * size];
        let put = |first: usize, data: &[u8], ys: &mut [Out]| {
            for (part, y) in op.parts.0.iter().zip(ys) {
                let ty = y.ty();
                unpack(part, ty, first..first + data.len() / size, data, bytes_mut(y.data(f)));
            }
        };
        if members == 1 {
            return put(0, mine, &mut ys);
        }
        let Some(ranks) = f.ranks else { return };
        fill(&mut group, mesh, op.group, ranks.rank());
        for first in (0..elements).step_by(each) {
            let mine = &mine[first * size..(first + each).min(elements) * size];
            let all = &mut bytes_mut(ws.data(f))[..members * mine.len()];
            if !ranks.call(|comm| comm.all_gather(&path, &group, mine, all)) {
                return;
            }
            for (k, theirs) in all.chunks_exact(mine.len()).enumerate() {
                put(k * elements + first, theirs, &mut ys);
            }
        }
    })
}

fn reduce(op: ReduceScatterStart, xs: Vec<In>, mut ys: Vec<Out>, mut ws: Scratch, path: String) -> Resolved {
    let mut y = ys.pop().ok_or("has no result")?;
    let elements = y.ty().shape.elements();
    let (mesh, types) = (op.mesh, xs.iter().map(In::ty).collect::<Vec<_>>());
    let each = step(mesh.ranks, elements).max(1);
    let all: Vec<usize> = (0..mesh.ranks).collect();
    kernel(move |f| {
        let part = |stretch, data: &mut [u8]| pack(&op.parts, &types, stretch, data, |k| raw(&xs[k], f));
        let out = &mut y.data(f)[..elements];
        if mesh.ranks == 1 {
            return part(0..elements, bytes_mut(out));
        }
        let Some(ranks) = f.ranks else { return };
        for first in (0..elements).step_by(each) {
            let n = each.min(elements - first);
            let (send, rest) = ws.data(f).split_at_mut(mesh.ranks * n);
            let got = &mut rest[..mesh.ranks * n];
            for (rank, to) in send.chunks_exact_mut(n).enumerate() {
                let at = mesh.piece_of(rank) * elements + first;
                part(at..at + n, bytes_mut(to));
            }
            if !ranks.call(|comm| comm.all_to_all(&path, &all, bytes(send), bytes_mut(got))) {
                return;
            }
            let out = &mut out[first..first + n];
            let (head, tail) = got.split_at(n);
            out.copy_from_slice(head);
            for theirs in tail.chunks_exact(n) {
                out.iter_mut().zip(theirs).for_each(|(sum, x)| *sum += x);
            }
        }
    })
}

/// The ranks of this rank's group, once.
fn fill(group: &mut Vec<usize>, mesh: Mesh, which: Group, rank: usize) {
    if group.is_empty() {
        group.extend(mesh.members(which, rank));
    }
}

/// Pads go with the rows: they are zero.
fn transfer(
    op: &TransferStart,
    mut xs: Vec<In>,
    mut ys: Vec<Out>,
    mut ws: Scratch,
    path: String,
) -> Resolved {
    let (route, total) = (op.route, op.ty().bytes() as usize);
    let each = 4 * step(2, total.div_ceil(4)).max(1);
    let (x, mut y) = (xs.pop(), ys.pop());
    kernel(move |f| {
        let mine = x.as_ref().map(|x| &raw(x, f)[..total]);
        let mut got = y.as_mut().map(|y| &mut bytes_mut(y.data(f))[..total]);
        if let (Some(mine), Some(got)) = (mine, &mut got) {
            return got.copy_from_slice(mine);
        }
        let Some(ranks) = f.ranks else { return };
        let both = bytes_mut(ws.data(f));
        for first in (0..total).step_by(each) {
            let part = first..(first + each).min(total);
            let both = &mut both[..2 * part.len()];
            let done = ranks.call(|comm| match (mine, &mut got) {
                (Some(mine), _) => comm.send(&path, route.to, &mine[part], both),
                (_, Some(got)) => comm.receive(&path, route.from, &mut got[part], both),
                _ => Ok(()),
            });
            if !done {
                return;
            }
        }
    })
}
