//! Collectives and transfers: packing and unpacking of flats, exchanges in steps of bounded scratch, and sums in the order of
//! ranks. What they give is what the CPU executor's do, bit for bit.

use super::matmul::clear_pads;
use super::{Argument, View, kernels, launch_over};
use crate::bind::{Io, Steps, Tensor};
use crate::step::{Exchange, Message, Step, Work};
use ambitus_ir::TensorType;
use ambitus_ir::ops::collective::{AllGatherStart, Part, ReduceScatterStart};
use ambitus_ir::ops::transfer::TransferStart;
use std::ops::Range;

kernels! { "collective";
    /// A tensor's elements that are staged at the places `begin..begin + count`, to the tensor.
    UnpackArgs "unpack" [256 threads, 64 registers] {
        staged: u64, y: View, stretch: Stretch, at: i64, begin: i64, count: i64
    }
    /// The reverse.
    PackArgs "pack" [256 threads, 64 registers] {
        staged: u64, x: View, stretch: Stretch, at: i64, begin: i64, count: i64
    }
    /// y[i] = got[0, i] + got[1, i] + ..., in that order.
    OrderedSumArgs "ordered_sum" [256 threads, 32 registers] { got: u64, y: u64, n: i64, ranks: i32 }
}

/// Bytes of the staging buffer of an exchange's step: large enough that starting a step costs little compared with it (37
/// microseconds over NVLink), and small compared with the units that are gathered.
const STAGE: usize = 16 << 20;
/// Elements that steps are multiples of, so that what is sent is aligned.
const ALIGNED: usize = 256;

/// Returns the elements of one step, of as many as each of `members` sends to one or all.
fn step(members: usize, elements: usize, size: usize) -> usize {
    ((STAGE / size / members.max(1)).max(1).next_multiple_of(ALIGNED)).min(elements)
}

/// Returns the scratch of a gather: a step of every member.
pub(crate) fn all_gather_workspace(op: &AllGatherStart, x: &[TensorType]) -> u64 {
    let members = op.mesh.size(op.group);
    let (elements, size) = (x[0].shape.elements(), x[0].dtype.size());
    if members == 1 { 0 } else { (members * step(members, elements, size) * size) as u64 }
}

/// Returns the scratch of a sum: a step to every rank, and one from every rank.
pub(crate) fn reduce_scatter_workspace(op: &ReduceScatterStart, y: &[TensorType]) -> u64 {
    let (ranks, elements) = (op.mesh.ranks, y[0].shape.elements());
    if ranks == 1 { 0 } else { (2 * ranks * step(ranks, elements, 4) * 4) as u64 }
}

/// What is staged of a flat: of each of `parts` equal parts of `stride` elements, `n` from `first` on, one after another.
/// The mirror of `Stretch` in `device.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Stretch {
    parts: usize,
    stride: usize,
    first: usize,
    n: usize,
}

impl Argument for Stretch {
    const C: &'static str = "Stretch";
    fn put(self, to: &mut [u8]) {
        for (x, to) in [self.parts, self.stride, self.first, self.n].into_iter().zip(to.chunks_mut(8)) {
            (x as i64).put(to);
        }
    }
}

impl Stretch {
    /// Staged places before the flat's element `at`.
    fn before(&self, at: usize) -> usize {
        let (part, inside) = (at / self.stride, at % self.stride);
        let whole = part.min(self.parts) * self.n;
        if part >= self.parts { whole } else { whole + inside.saturating_sub(self.first).min(self.n) }
    }

    /// Returns the staged places of a tensor's elements: they follow each other, as the staged elements ascend.
    fn places(&self, part: &Part) -> Range<usize> {
        self.before(part.at)..self.before(part.at + part.shape.elements())
    }
}

fn launches(steps: Vec<Step>) -> impl Iterator<Item = Work> {
    steps.into_iter().filter_map(|s| if let Step::Launch(l) = s { Some(Work::Launch(l)) } else { None })
}

fn unpack(s: Stretch, staged: u64, part: &Part, y: &Tensor) -> impl Iterator<Item = Work> {
    let (places, at) = (s.places(part), part.at as i64);
    let (begin, count) = (places.start as i64, places.len() as i64);
    let args = UnpackArgs { staged, y: y.view(), stretch: s, at, begin, count };
    launches(launch_over(&args, count as u64))
}

fn pack(s: Stretch, staged: u64, part: &Part, x: &Tensor) -> impl Iterator<Item = Work> {
    let (places, at) = (s.places(part), part.at as i64);
    let (begin, count) = (places.start as i64, places.len() as i64);
    let args = PackArgs { staged, x: x.view(), stretch: s, at, begin, count };
    launches(launch_over(&args, count as u64))
}

/// Returns the exchange of an instruction whose last result is its token.
fn exchange(io: &Io, queue: u32, ranks: usize, work: Vec<Work>) -> Steps {
    if ranks != io.here.ranks {
        return Err(format!("the session is for {ranks} ranks, there are {}", io.here.ranks));
    }
    let token = io.y.last().ok_or("has no token")?.at;
    Ok(vec![Step::Exchange(Exchange { queue, token, what: io.path.clone(), work })])
}

/// Returns the scratch, if it is as long as was asked for.
fn scratch(io: &Io, want: u64) -> Result<u64, String> {
    if io.workspace_bytes < want {
        return Err(format!("{} bytes of workspace are planned, {want} are needed", io.workspace_bytes));
    }
    Ok(io.workspace)
}

pub(crate) fn all_gather(op: &AllGatherStart, io: &Io) -> Steps {
    let x = io.x.first().ok_or("has no operand")?;
    let (elements, size) = (x.ty.shape.elements(), x.ty.dtype.size());
    let (rank, ranks) = (io.here.rank, io.here.ranks);
    let members = op.mesh.members(op.group, rank);
    let alone = members.len() == 1;
    let each = if alone { elements } else { step(members.len(), elements, size) };
    let staged = scratch(io, all_gather_workspace(op, &[x.ty]))?;
    let mut work: Vec<Work> = io.y[..io.y.len() - 1].iter().flat_map(|y| launches(clear_pads(y))).collect();
    for first in (0..elements).step_by(each.max(1)) {
        let n = each.min(elements - first);
        let (mine, bytes) = (x.at + (first * size) as u64, (n * size) as u64);
        let from = if alone { mine } else { staged };
        if members.len() == ranks && !alone {
            work.push(Work::Gather { from: mine, to: staged, bytes });
        } else if !alone {
            let slot = |k: usize| staged + k as u64 * bytes;
            let send = members.iter().map(|m| Message { rank: *m, sends: true, at: mine, bytes });
            let got = members.iter().enumerate().map(|(k, m)| Message {
                rank: *m,
                sends: false,
                at: slot(k),
                bytes,
            });
            work.push(Work::Messages(send.chain(got).collect()));
        }
        let stretch = Stretch { parts: members.len(), stride: elements, first, n };
        work.extend(op.parts.0.iter().zip(&io.y).flat_map(|(part, y)| unpack(stretch, from, part, y)));
    }
    exchange(io, op.queue, op.mesh.ranks, work)
}

pub(crate) fn reduce_scatter(op: &ReduceScatterStart, io: &Io) -> Steps {
    let y = io.y.first().ok_or("has no result")?;
    let (elements, ranks) = (y.ty.shape.elements(), op.mesh.ranks);
    let each = if ranks == 1 { elements } else { step(ranks, elements, 4) };
    let send = scratch(io, reduce_scatter_workspace(op, &[y.ty]))?;
    let mut work = Vec::new();
    for first in (0..elements).step_by(each.max(1)) {
        let n = each.min(elements - first);
        let bytes = 4 * n as u64;
        let staged = if ranks == 1 { y.at } else { send };
        // By piece, not by rank: so staged elements ascend in the flat.
        let stretch = Stretch { parts: ranks, stride: elements, first, n };
        work.push(Work::Zero { at: staged, bytes: ranks as u64 * bytes });
        work.extend(op.parts.0.iter().zip(&io.x).flat_map(|(part, x)| pack(stretch, staged, part, x)));
        if ranks == 1 {
            continue;
        }
        let got = send + ranks as u64 * bytes;
        let to = (0..ranks).map(|rank| Message {
            rank,
            sends: true,
            at: send + op.mesh.piece_of(rank) as u64 * bytes,
            bytes,
        });
        let from =
            (0..ranks).map(|rank| Message { rank, sends: false, at: got + rank as u64 * bytes, bytes });
        work.push(Work::Messages(to.chain(from).collect()));
        let sum = OrderedSumArgs { got, y: y.at + 4 * first as u64, n: n as i64, ranks: ranks as i32 };
        work.extend(launches(launch_over(&sum, n as u64)));
    }
    exchange(io, op.queue, ranks, work)
}

/// As they are stored: pads, which are zero, go with the rows.
pub(crate) fn transfer(op: &TransferStart, io: &Io) -> Steps {
    let (route, bytes) = (op.route, op.ty().bytes());
    if op.rank() != io.here.rank {
        return Err(format!("the session is rank {}'s, this is rank {}", op.rank(), io.here.rank));
    }
    let work = match (io.x.first(), io.y.len()) {
        (Some(x), 1) => Work::Messages(vec![Message { rank: route.to, sends: true, at: x.at, bytes }]),
        (Some(x), _) => Work::Copy { from: x.at, to: io.y[0].at, bytes },
        (None, 2) => Work::Messages(vec![Message { rank: route.from, sends: false, at: io.y[0].at, bytes }]),
        _ => return Err("has neither operand nor result".to_owned()),
    };
    exchange(io, op.queue, route.ranks, vec![work])
}

pub(crate) fn done(io: &Io) -> Steps {
    let token = io.x.last().ok_or("has no token")?.at;
    Ok(vec![Step::Join { to: token }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_ir::Shape;

    #[test]
    fn staged_places_of_a_tensor_are_those_of_its_elements() {
        for (parts, stride, first, n) in
            [(1, 12, 0, 12), (3, 8, 0, 8), (3, 8, 2, 3), (4, 5, 4, 1), (2, 7, 5, 2)]
        {
            let s = Stretch { parts, stride, first, n };
            // The kernels' formula.
            let flat: Vec<usize> = (0..parts * n).map(|i| i / n * stride + first + i % n).collect();
            for at in 0..parts * stride {
                for len in 1..=parts * stride - at {
                    let part = Part { at, shape: Shape::new(&[len]) };
                    let want: Vec<usize> =
                        (0..flat.len()).filter(|i| (at..at + len).contains(&flat[*i])).collect();
                    assert_eq!(
                        s.places(&part).collect::<Vec<_>>(),
                        want,
                        "{parts} {stride} {first} {n} {at} {len}"
                    );
                }
            }
        }
    }

    #[test]
    fn steps_fit_their_scratch() {
        for (members, elements) in [(2, 100), (4, 4096), (3, 50_000_000), (1024, 1 << 20), (100_000, 256)] {
            for size in [2, 4] {
                let each = step(members, elements, size);
                assert!(each > 0 && each <= elements);
                assert!(members * each * size <= STAGE + members * ALIGNED * size);
            }
        }
    }
}
