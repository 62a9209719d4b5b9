//! Collectives: ranks give parts and get the whole, or give the whole and get the sum's part. Like copies, each is two
//! instructions on a named queue, and operands and results are in use from start to done.
//!
//! All ranks run the same program in the same order. What differs between them is data: which elements of a flat tensor a
//! rank holds follows from its number, by [`Mesh`].
//!
//! A *flat* is many tensors in one row of elements, each at its [`Part`], gaps zero. Ranks in groups of `shard` hold a
//! flat's equal shards; the groups are replicas of each other. Sums are over all ranks, in fp32, in the order of the ranks:
//! so they have the same bits however many ranks share a flat.

use super::attr::{Attr, words};
use super::{Moves, Op, OpDef, Props, arity, bytes, float, op, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, Shape, TensorType};

/// Queue of what brings tensors together.
pub const GATHER: u32 = 2;
/// Queue of what sums gradients.
pub const REDUCE: u32 = 3;

words! {
    /// Which ranks take part in a collective.
    Group {
        /// the ranks that hold the shards of one copy
        Shard = "shard",
        /// the ranks that hold the same shard
        Replica = "replica",
    }
}

/// How ranks share flats: `ranks` in groups of `shard`, which divides them. Rank r holds shard r mod `shard` of group
/// r div `shard`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mesh {
    /// Ranks in all.
    pub ranks: usize,
    /// Ranks that hold one copy together.
    pub shard: usize,
}

impl Mesh {
    /// The most ranks of a text.
    const MOST: usize = 1 << 20;

    /// Returns a mesh of `ranks` ranks in groups of `shard`; `None` if these do not divide them.
    pub fn new(ranks: usize, shard: usize) -> Option<Mesh> {
        let fits = shard > 0 && ranks > 0 && ranks.is_multiple_of(shard) && ranks <= Self::MOST;
        fits.then_some(Mesh { ranks, shard })
    }

    /// Copies of every flat.
    pub fn replicas(&self) -> usize {
        self.ranks / self.shard
    }

    /// Returns the shard that a rank holds.
    pub fn shard_of(&self, rank: usize) -> usize {
        rank % self.shard
    }

    /// Returns the part, of as many equal ones of a flat as there are ranks, that a rank gets of a sum: the parts of a replica
    /// group make up its shard.
    pub fn piece_of(&self, rank: usize) -> usize {
        self.shard_of(rank) * self.replicas() + rank / self.shard
    }

    /// Returns the number of ranks in a group.
    pub fn size(&self, group: Group) -> usize {
        match group {
            Group::Shard => self.shard,
            Group::Replica => self.replicas(),
        }
    }

    /// Returns the ranks of a rank's group, in order.
    pub fn members(&self, group: Group, rank: usize) -> Vec<usize> {
        match group {
            Group::Shard => {
                let first = rank - self.shard_of(rank);
                (first..first + self.shard).collect()
            }
            Group::Replica => (self.shard_of(rank)..self.ranks).step_by(self.shard).collect(),
        }
    }
}

impl Attr for Mesh {
    fn show(&self) -> String {
        format!("{}/{}", self.ranks, self.shard)
    }
    fn read(s: &str) -> Option<Self> {
        let (ranks, shard) = s.split_once('/')?;
        Mesh::new(ranks.parse().ok()?, shard.parse().ok()?)
    }
}

/// Returns the number of ranks that a program was compiled for, of an op that starts a collective or a transfer.
pub fn ranks(op: &Op) -> Option<usize> {
    match op {
        Op::AllGatherStart(op) => Some(op.mesh.ranks),
        Op::ReduceScatterStart(op) => Some(op.mesh.ranks),
        Op::TransferStart(op) => Some(op.route.ranks),
        _ => None,
    }
}

/// A tensor's place in a flat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// Its first element.
    pub at: usize,
    /// Its axes; its elements follow each other row by row.
    pub shape: Shape,
}

/// Places of tensors, ascending and apart; shown as `[0[16,8],256[24]]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Parts(pub Vec<Part>);

impl Parts {
    /// `Err` unless the parts are in order, apart and inside `elements`.
    fn within(&self, elements: usize) -> Result<(), String> {
        let mut end = 0;
        for p in &self.0 {
            want(p.at >= end, format_args!("the part at {} begins in the one before", p.at))?;
            end = p.at.saturating_add(p.shape.elements());
        }
        want(end <= elements, format_args!("parts end at {end}, beyond the flat's {elements}"))
    }
}

impl Attr for Parts {
    fn show(&self) -> String {
        let parts: Vec<String> = self.0.iter().map(|p| format!("{}{}", p.at, p.shape)).collect();
        format!("[{}]", parts.join(","))
    }
    fn read(s: &str) -> Option<Self> {
        let mut rest = s.strip_prefix('[')?.strip_suffix(']')?;
        let mut parts = Vec::new();
        while !rest.is_empty() {
            let (at, shape) = rest.split_at(rest.find('[')?);
            let (shape, after) = shape.split_at(shape.find(']')? + 1);
            let at = at.parse().ok().filter(|at| *at <= Shape::MAX_ELEMENTS)?;
            parts.push(Part { at, shape: shape.parse().ok()? });
            rest = match after.strip_prefix(',') {
                Some("") => return None,
                Some(more) => more,
                None if after.is_empty() => after,
                None => return None,
            };
        }
        Some(Parts(parts))
    }
}

fn token() -> TensorType {
    TensorType::new(DType::U8, &[1])
}

/// A flat or a part of it: elements without pads between.
fn dense(t: TensorType) -> Result<(), String> {
    float(t)?;
    want(t.is_dense(), format_args!("{t} has pads between its rows"))
}

op! {
    /// Starts bringing the tensors of a flat together: the group's shards (x is this rank's) are the flat, in the order of
    /// the ranks; results (the tensors at `parts`, in x's type, and a queue token u8 `[1]`), to be read after the done only.
    AllGatherStart = "all_gather_start" {
        /// queue that runs collectives in order
        queue: u32,
        /// the ranks
        mesh: Mesh,
        /// whose parts are put together
        group: Group,
        /// where the results lie in the flat
        parts: Parts,
    }
}

impl OpDef for AllGatherStart {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 1)?;
        dense(x[0])?;
        let flat = x[0].shape.elements().saturating_mul(self.mesh.size(self.group));
        want(!self.parts.0.is_empty(), "has no parts")?;
        self.parts.within(flat)?;
        let tensors = self.parts.0.iter().map(|p| TensorType::new(x[0].dtype, &p.shape));
        Ok(tensors.chain([token()]).collect())
    }

    fn props(&self) -> Props {
        Props::START
    }

    fn moves(&self, _: &[TensorType], y: &[TensorType]) -> Option<Moves> {
        Some(match self.mesh.size(self.group) {
            1 => Moves::Device(bytes(y)),
            _ => Moves::Group(self.mesh, self.group, bytes(y)),
        })
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> f64 {
        0.0
    }

    fn queue(&self) -> Option<u32> {
        Some(self.queue)
    }
}

op! {
    /// Starts summing a flat over all ranks: operands are this rank's tensors at `parts`, f32; results (the sum's piece of
    /// this rank, [`Mesh::piece_of`], and a queue token u8 `[1]`), to be read after the done only. Added in fp32 in the
    /// order of the ranks.
    ReduceScatterStart = "reduce_scatter_start" {
        /// queue that runs collectives in order
        queue: u32,
        /// the ranks
        mesh: Mesh,
        /// where the operands lie in the flat; zero between
        parts: Parts,
        /// axes of the result
        piece: Shape,
    }
}

impl OpDef for ReduceScatterStart {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        want(!x.is_empty(), "needs an operand")?;
        arity(x, self.parts.0.len())?;
        for (t, part) in x.iter().zip(&self.parts.0) {
            want(t.dtype == DType::F32, format_args!("{t} is not f32, which sums are formed in"))?;
            want(t.shape == part.shape, format_args!("{t} is not of its part's axes {}", part.shape))?;
        }
        let piece = TensorType::f32(&self.piece);
        dense(piece)?;
        self.parts.within(piece.shape.elements().saturating_mul(self.mesh.ranks))?;
        Ok(vec![piece, token()])
    }

    fn props(&self) -> Props {
        Props::START
    }

    fn moves(&self, x: &[TensorType], _: &[TensorType]) -> Option<Moves> {
        // Over all ranks, whoever shares the flat.
        let all = Mesh { shard: self.mesh.ranks, ..self.mesh };
        Some(Moves::Group(all, Group::Shard, bytes(x)))
    }

    fn flops(&self, _: &[TensorType], y: &[TensorType]) -> f64 {
        y.first().map_or(0.0, |t| t.shape.elements() as f64) * self.mesh.ranks as f64
    }

    fn queue(&self) -> Option<u32> {
        Some(self.queue)
    }
}

op! {
    /// Ends a collective or a transfer: (operands of its start, its results, its token); results are these, ready, on the same
    /// bytes. Naming the operands keeps them in place until here.
    CollectiveDone = "collective_done" {
        /// queue of the start
        queue: u32,
        /// ranks that take part
        members: usize,
        /// operands of the start
        sources: usize,
        /// its results but the token
        results: usize,
    }
}

impl OpDef for CollectiveDone {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, self.sources + self.results + 1)?;
        want(self.sources + self.results > 0, "has neither operand nor result")?;
        want(x[x.len() - 1] == token(), "does not end with a token")?;
        Ok(x[self.sources..x.len() - 1].to_vec())
    }

    fn props(&self) -> Props {
        Props::DONE
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> f64 {
        0.0
    }

    fn donates(&self) -> Vec<(usize, usize)> {
        (0..self.results).map(|k| (self.sources + k, k)).collect()
    }

    fn queue(&self) -> Option<u32> {
        Some(self.queue)
    }
}

impl Builder<'_> {
    /// Brings the tensors of a flat together, waiting for them at once.
    pub fn all_gather(&mut self, x: ValueId, op: AllGatherStart) -> Vec<ValueId> {
        let (queue, members) = (op.queue, op.mesh.size(op.group));
        let made = self.push(op, &[x]);
        self.collective_done(queue, members, &[x], &made)
    }

    /// This rank's piece of the sum of a flat over all ranks, waiting for it at once.
    pub fn reduce_scatter(&mut self, xs: &[ValueId], op: ReduceScatterStart) -> ValueId {
        let (queue, members) = (op.queue, op.mesh.ranks);
        let made = self.push(op, xs);
        self.collective_done(queue, members, xs, &made)[0]
    }

    /// Waits for a collective of `sources` among `members` ranks, which made `made`; returns its results, ready.
    pub fn collective_done(
        &mut self,
        queue: u32,
        members: usize,
        sources: &[ValueId],
        made: &[ValueId],
    ) -> Vec<ValueId> {
        let op = CollectiveDone { queue, members, sources: sources.len(), results: made.len() - 1 };
        self.push(op, &[sources, made].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_and_pieces_cover_a_flat_once() {
        for (ranks, shard) in [(1, 1), (4, 4), (4, 1), (8, 2), (6, 3)] {
            let mesh = Mesh::new(ranks, shard).unwrap();
            let mut pieces: Vec<usize> = (0..ranks).map(|r| mesh.piece_of(r)).collect();
            for r in 0..ranks {
                let group = mesh.members(Group::Replica, r);
                let of_group: Vec<usize> = group.iter().map(|m| mesh.piece_of(*m)).collect();
                let first = mesh.shard_of(r) * mesh.replicas();
                assert_eq!(of_group, (first..first + mesh.replicas()).collect::<Vec<_>>());
                let shards: Vec<usize> =
                    mesh.members(Group::Shard, r).iter().map(|m| mesh.shard_of(*m)).collect();
                assert_eq!(shards, (0..shard).collect::<Vec<_>>());
            }
            pieces.sort_unstable();
            assert_eq!(pieces, (0..ranks).collect::<Vec<_>>());
        }
        assert_eq!((Mesh::new(4, 3), Mesh::new(0, 0), Mesh::new(4, 0)), (None, None, None));
    }

    #[test]
    fn attributes_read_back_and_bad_ones_do_not() {
        let parts = Parts(vec![
            Part { at: 0, shape: Shape::new(&[16, 8]) },
            Part { at: 256, shape: Shape::new(&[24]) },
        ]);
        assert_eq!(parts.show(), "[0[16,8],256[24]]");
        assert_eq!(Parts::read(&parts.show()), Some(parts));
        assert_eq!(Mesh::read("8/4"), Mesh::new(8, 4));
        for bad in ["", "[", "[0[2],]", "[0[2]3]", "[x[2]]", "[0[2,]]", "[99999999999999999[2]]"] {
            assert_eq!(Parts::read(bad), None, "{bad}");
        }
        for bad in ["8", "8/3", "0/0", "/", "9999999999/1"] {
            assert_eq!(Mesh::read(bad), None, "{bad}");
        }
    }
}
