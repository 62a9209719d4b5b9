//! What compilation asks of an executor, before anything runs.

use crate::ops::collective::{Group, Mesh};
use crate::ops::transfer::Route;
use crate::ops::{Kind, Moves, Op};
use crate::tensor::TensorType;

/// A kind of executor, as far as passes and the planner care. Plans are tried side by side.
pub trait Target: Sync {
    /// Returns the name in reports: `cpu`, `null`, ...
    fn name(&self) -> &str;
    /// Returns true when the target has a kernel for operands and results of these types. Otherwise the op is lowered: to itself
    /// between casts where the target has the kernel for f32 in place of 16-bit types, else by its `decompose`.
    fn has_kernel(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> bool;
    /// Returns the scratch bytes of one instruction, for its operand and result types.
    fn workspace(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> u64;
    /// Returns true when the kernel may write result `output` over operand `input`, a pair of
    /// [`OpDef::may_share`](crate::OpDef::may_share).
    fn shares(&self, op: &Op, input: usize, output: usize) -> bool;
    /// Returns the predicted seconds of one instruction.
    fn seconds(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> f64;
    /// Returns true when copies run alongside the instructions between their start and their done.
    fn copies_beside(&self) -> bool {
        true
    }
}

/// What a target does per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Floating-point operations of a large fp32 product.
    pub gemm: f64,
    /// Floating-point operations of a large product of 16-bit operands.
    pub half: f64,
    /// Bytes read and written by a copy too large for caches.
    pub bytes: f64,
    /// Bytes copied between the device's and the host's space, one way.
    pub link: f64,
    /// What joins ranks.
    pub links: Links,
}

/// What joins ranks: equal hosts with `per_host` ranks each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Links {
    /// Ranks of a host.
    pub per_host: usize,
    /// Bytes that a rank sends to another of its host, while it receives as many.
    pub peer: f64,
    /// Bytes that a host sends to another, while it receives as many; of all its ranks together.
    pub network: f64,
    /// Seconds of a message between two ranks, however short.
    pub hop: f64,
}

/// Seconds of a message between two cards: NCCL starts a collective of two in some 15 microseconds.
const HOP: f64 = 15e-6;

impl Links {
    /// Returns the links of `ranks` GPUs of one host.
    pub fn of_host(ranks: usize, peer: f64) -> Links {
        Links { per_host: ranks, peer, network: f64::INFINITY, hop: HOP }
    }

    /// Returns the predicted seconds in which one rank sends `bytes` to another, while nothing else uses the link between them.
    pub fn pass(&self, route: Route, bytes: f64) -> f64 {
        let together = route.from / self.per_host == route.to / self.per_host;
        self.hop + bytes / if together { self.peer } else { self.network }
    }

    /// Returns the predicted seconds in which every rank of the groups that `mesh` makes gets the `bytes` that its group shares
    /// out, or sums as many, with rings: all but its own part goes through each rank once, and of what is not its hosts' once
    /// through the network of each host, which the groups of a host share (Thakur, Rabenseifner and Gropp, 2005; NCCL's rings).
    /// Short messages take the hops of a tree.
    pub fn seconds(&self, mesh: Mesh, group: Group, bytes: f64) -> f64 {
        let ranks = mesh.size(group);
        if ranks < 2 {
            return 0.0;
        }
        // Of a host, the ranks in one group, and the groups.
        let together = match group {
            Group::Shard => mesh.shard.min(self.per_host),
            Group::Replica => (self.per_host / mesh.shard).clamp(1, ranks),
        };
        let hosts = ranks.div_ceil(together);
        let groups = self.per_host.min(mesh.ranks).div_ceil(together);
        let rest = |n: usize| (n - 1) as f64 / n as f64 * bytes;
        let inside = if together > 1 { rest(ranks) / self.peer } else { 0.0 };
        let between = if hosts > 1 { rest(hosts) * groups as f64 / self.network } else { 0.0 };
        inside.max(between) + self.hop * (ranks as f64).log2().ceil()
    }
}

/// How near a target's kernels come to its rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Efficiency {
    /// Seconds to start an instruction.
    pub start: f64,
    /// Share of the GEMM rate that plain arithmetic reaches: no reuse in registers, exponentials.
    pub vector: f64,
    /// Share that attention reaches.
    pub attention: f64,
    /// Share that convolutions reach.
    pub convolution: f64,
}

impl Rates {
    /// Returns the predicted seconds of one instruction: the larger of its arithmetic and its bytes (the roofline), and the
    /// start.
    pub fn seconds(&self, kernels: &Efficiency, op: &Op, x: &[TensorType], y: &[TensorType]) -> f64 {
        let def = op.def();
        let kind = def.props().kind;
        let share = match kind {
            Kind::Vector => kernels.vector,
            Kind::Product => 1.0,
            Kind::Attention => kernels.attention,
            Kind::Convolution => kernels.convolution,
            Kind::Move => return kernels.start + def.moves(x, y).map_or(0.0, |what| self.moving(what)),
        };
        let cost = op.cost(x, y);
        // Attention and convolutions compute in fp32 whatever they read.
        let halves = kind == Kind::Product && x.iter().take(2).all(|t| t.dtype.size() == 2);
        let rate = if halves { self.half } else { self.gemm };
        kernels.start + (cost.flops / (share * rate)).max(cost.bytes / self.bytes)
    }

    fn moving(&self, what: Moves) -> f64 {
        match what {
            Moves::Device(bytes) => 2.0 * bytes / self.bytes,
            Moves::Host(bytes) => bytes / self.link,
            Moves::Group(mesh, group, bytes) => self.links.seconds(mesh, group, bytes),
            Moves::Route(route, bytes) => self.links.pass(route, bytes),
        }
    }
}

/// [`Target::shares`] of a target whose kernel for this op does, or does not, read each operand before it overwrites it:
/// what the op allows, and donation always.
pub fn shares(op: &Op, pair: (usize, usize), overwrites: bool) -> bool {
    (overwrites && op.def().may_share().contains(&pair)) || op.def().donates().contains(&pair)
}

/// Returns the share of the pairs of rows that an op counts that lie in one segment, with clips of `rows` rows (the sum of
/// squared lengths over the sum of lengths).
pub fn share_of_pairs(op: &Op, x: &[TensorType], rows: f64) -> f64 {
    let all = x.get(1).filter(|_| op.def().pairs_rows()).map(|t| t.shape[0] as f64);
    all.map_or(1.0, |all| (rows / all).min(1.0))
}

/// A target with the clips of a data set: its seconds are those of packed clips of this length.
#[derive(Clone, Copy)]
pub struct Packed<'t> {
    /// The target.
    pub target: &'t dyn Target,
    /// Rows of a clip, as [`share_of_pairs`] takes them.
    pub rows: f64,
}

impl Target for Packed<'_> {
    fn name(&self) -> &str {
        self.target.name()
    }

    fn has_kernel(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> bool {
        self.target.has_kernel(op, x, y)
    }

    fn workspace(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> u64 {
        self.target.workspace(op, x, y)
    }

    fn shares(&self, op: &Op, input: usize, output: usize) -> bool {
        self.target.shares(op, input, output)
    }

    fn seconds(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> f64 {
        share_of_pairs(op, x, self.rows) * self.target.seconds(op, x, y)
    }

    fn copies_beside(&self) -> bool {
        self.target.copies_beside()
    }
}
