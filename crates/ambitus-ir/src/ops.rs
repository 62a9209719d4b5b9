//! The one list of operations, and what every operation says of itself.
//!
//! An op is one page in its family's file: attributes, formula, shape rule, gradient, cost and properties. Passes ask
//! for properties and never match names. A fused op carries its `decompose` into core ops: the oracle for every
//! executor, and what lowering uses where a target lacks the kernel.

pub mod activation;
pub mod alignment;
pub mod attention;
mod attr;
pub mod collective;
pub mod conv;
pub mod copy;
mod decompose;
pub mod elementwise;
pub mod head;
pub mod index;
pub mod layout;
pub mod lion;
pub mod loss;
pub mod matmul;
pub mod narrow;
pub mod norm;
pub mod optim;
pub mod parts;
pub mod random;
pub mod recurrent;
pub mod reduce;
pub mod segment;
pub mod spline;
pub mod transfer;
pub mod windowed;

use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, TensorType};
pub use attr::{Attr, AttrReader};
use collective::{Group, Mesh};
use copy::Space;
use parts::{Cut, Operands, Span};
use transfer::Route;

/// Work of one instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Multiply-adds count two.
    pub flops: f64,
    /// Bytes read and written at least once.
    pub bytes: f64,
}

/// What sets an op's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes; besides them plain arithmetic on elements and rows.
    Vector,
    /// Matrix products.
    Product,
    /// Attention: a softmax between two products.
    Attention,
    /// Convolutions: products of short sums.
    Convolution,
    /// Bytes that move alongside other work, as [`OpDef::moves`] says.
    Move,
}

/// What a start moves, how many bytes, and by which way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moves {
    /// From the device's memory to the device's memory.
    Device(f64),
    /// Between the device's and the host's space.
    Host(f64),
    /// What every group of a mesh shares out among its ranks, or sums.
    Group(Mesh, Group, f64),
    /// From one rank to another.
    Route(Route, f64),
}

/// Properties that passes ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Props {
    /// What sets its time.
    pub kind: Kind,
    /// Time is set by bytes, not arithmetic: cheap to run again in backward. Follows from the kind.
    pub memory_bound: bool,
    /// Starts work on a queue; its operands and results are in use until the matching done. Its last result is the token.
    pub starts: bool,
    /// Waits for a queue: takes the start's operands (but those it donates), its results and its token.
    pub waits: bool,
}

impl Props {
    /// Of work on elements and rows.
    pub const VECTOR: Props = Props::of(Kind::Vector);
    /// Of matrix products.
    pub const PRODUCT: Props = Props::of(Kind::Product);
    /// Of attention.
    pub const ATTENTION: Props = Props::of(Kind::Attention);
    /// Of convolutions.
    pub const CONVOLUTION: Props = Props::of(Kind::Convolution);
    /// Of what starts work on a queue.
    pub const START: Props = Props { starts: true, ..Props::of(Kind::Move) };
    /// Of what waits for it.
    pub const DONE: Props = Props { waits: true, ..Props::of(Kind::Move) };

    const fn of(kind: Kind) -> Props {
        Props { kind, memory_bound: matches!(kind, Kind::Vector), starts: false, waits: false }
    }
}

/// What autodiff hands to an op's gradient rule.
pub struct Vjp<'a> {
    /// Operands of the forward instruction.
    pub x: &'a [ValueId],
    /// Its results.
    pub y: &'a [ValueId],
    /// Gradients of the results; `None` if the loss does not depend on one.
    pub dy: &'a [Option<ValueId>],
    /// Operands whose gradient is wanted.
    pub need: &'a [bool],
}

impl Vjp<'_> {
    /// Returns the gradient of the first result.
    pub fn dy0(&self) -> Option<ValueId> {
        self.dy.first().copied().flatten()
    }
}

/// Gradients of the operands, in order; `None` if not wanted or identically zero.
pub type Grads = Vec<Option<ValueId>>;

/// What every operation says of itself.
pub trait OpDef {
    /// Returns the result types, or why the operands do not fit. Main operands are f32, bf16 or f16, and results have their
    /// type, but for sums over rows (gradients of parameters among them), statistics and losses: these are f32 whatever the
    /// operands.
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String>;

    /// Appends the gradient instructions. `Err` says that the op has no gradient.
    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let _ = (b, v);
        Err("has no gradient".to_owned())
    }

    /// Returns this function in core ops; `None` for core ops.
    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let _ = (b, x);
        None
    }

    /// Properties for passes.
    fn props(&self) -> Props {
        Props::VECTOR
    }

    /// Floating-point operations for operand and result types; bytes are counted by [`Op::cost`].
    fn flops(&self, x: &[TensorType], y: &[TensorType]) -> f64 {
        let _ = x;
        y.iter().map(|t| t.shape.elements() as f64).sum()
    }

    /// Returns true when the arithmetic is over pairs of rows of one segment. [`OpDef::flops`] counts as if all rows of the
    /// second operand were one segment's; [`crate::target::share_of_pairs`] says how many pairs there are.
    fn pairs_rows(&self) -> bool {
        false
    }

    /// Returns the pairs (operand, result) that share bytes always: the result *is* the operand, overwritten.
    fn donates(&self) -> Vec<(usize, usize)> {
        Vec::new()
    }

    /// Returns the pairs (operand, result) that may share bytes when the operand is not used later.
    fn may_share(&self) -> Vec<(usize, usize)> {
        Vec::new()
    }

    /// Returns what it moves, of ops that start. All of the time is the start's: the wait is the schedule's.
    fn moves(&self, x: &[TensorType], y: &[TensorType]) -> Option<Moves> {
        let _ = (x, y);
        None
    }

    /// Returns the queue of ops that start or wait.
    fn queue(&self) -> Option<u32> {
        None
    }

    /// Returns true when the op may read and write what is in the host's space: of copies.
    fn reaches_host(&self) -> bool {
        false
    }

    /// Returns the space in which a start makes its first result.
    fn makes_in(&self) -> Space {
        Space::Device
    }

    /// Returns true when operand `k`, a float, may be a 16-bit one and results of the main operands' type then lose no more than
    /// that rounding: mixed precision makes it one. False for what steers such an op from the side (factors, statistics,
    /// tables and vectors of a norm), which stays f32, and for functions that need f32 (exponentials, sums, losses).
    fn narrows(&self, k: usize) -> bool {
        let _ = k;
        false
    }

    /// Returns true when the gradient rule takes a gradient of any float type: of ops that move numbers and do not compute.
    /// Others get it in the type of their result.
    fn conducts(&self) -> bool {
        false
    }

    /// Returns true when the result is the operand, and differs from it for autodiff alone: no gradient flows on. Once there are
    /// gradients the operand stands for it.
    fn detaches(&self) -> bool {
        false
    }

    /// Returns the op that adds result `k` into a donated accumulator instead of writing it: the same operands followed by
    /// (accumulator, beta `[1]`), result `k` = beta * accumulator + old result.
    fn accumulating(&self, k: usize) -> Option<Op> {
        let _ = k;
        None
    }

    /// Returns how the op is done part by part, with the bits that it has at once; `None` if it is not.
    fn cut(&self) -> Option<Cut> {
        None
    }

    /// Returns the op on one part, of ops that do each part by itself and must know which it is.
    fn of_part(&self, part: Span) -> Option<Op> {
        let _ = part;
        None
    }

    /// [`Op::in_parts`] of ops that do not do each part by itself.
    fn in_parts(
        &self,
        b: &mut Builder<'_>,
        parts: &[Span],
        x: &mut Operands<'_>,
    ) -> Option<Vec<Vec<ValueId>>> {
        let _ = (b, parts, x);
        None
    }
}

/// Declares an op's attributes: the struct, its text form and its place in [`Op`].
macro_rules! op {
    ($(#[$meta:meta])* $name:ident = $text:literal { $($(#[$fmeta:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty),* }

        impl $name {
            /// Name in the text form.
            pub const NAME: &'static str = $text;

            pub(crate) fn show(&self) -> Vec<(&'static str, String)> {
                vec![$((stringify!($field), $crate::ops::Attr::show(&self.$field))),*]
            }

            #[allow(unused_variables)]
            pub(crate) fn read(attrs: &mut $crate::ops::AttrReader) -> Result<Self, String> {
                Ok($name { $($field: attrs.take(stringify!($field))?),* })
            }
        }

        impl From<$name> for $crate::ops::Op {
            fn from(op: $name) -> $crate::ops::Op {
                $crate::ops::Op::$name(op)
            }
        }
    };
}
pub(crate) use op;

macro_rules! ops {
    ($($family:ident : $($name:ident),+ ;)+) => {
        /// An operation with its attributes.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum Op { $($($name($family::$name)),+),+ }

        impl Op {
            /// Every op's name, in the order of the list.
            pub const NAMES: &'static [&'static str] = &[$($($family::$name::NAME),+),+];

            /// Returns the op's name in the text form.
            pub fn name(&self) -> &'static str {
                match self { $($(Op::$name(_) => $family::$name::NAME),+),+ }
            }

            /// Returns what the op says of itself.
            pub fn def(&self) -> &dyn OpDef {
                match self { $($(Op::$name(op) => op),+),+ }
            }

            /// Returns the attributes in the text form.
            pub fn attrs(&self) -> Vec<(&'static str, String)> {
                match self { $($(Op::$name(op) => op.show()),+),+ }
            }

            /// Returns the op of a name with attributes in the text form.
            ///
            /// # Errors
            /// Unknown names, missing, unknown or unreadable attributes.
            pub fn read(name: &str, attrs: Vec<(String, String)>) -> Result<Op, String> {
                let mut attrs = AttrReader::new(attrs);
                let op = match name {
                    $($($family::$name::NAME => Op::$name($family::$name::read(&mut attrs)?),)+)+
                    _ => return Err(format!("unknown op `{name}`")),
                };
                attrs.finish()?;
                Ok(op)
            }
        }
    };
}

// The one list. Order is the order in documents and dumps.
ops! {
    elementwise: Unary, Binary, Select, Cast, Fill, Scale, ScaleRows;
    reduce: Reduce;
    layout: Reshape, Permute, Broadcast, Slice, Concat, Reverse, Iota, Detach;
    index: Gather, ScatterAdd;
    matmul: MatMul, Linear, LinearIn;
    activation: Activation, ActivationGrad, SwiGlu, SwiGluGrad, Snake;
    norm: LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad, Grn, GrnGrad;
    segment: SegmentIds, SegmentPositions, AdaLayerNorm, AdaLayerNormGrad, GatedResidual, GatedResidualGrad,
             SegmentBroadcast, SegmentSum;
    attention: RotaryFrequencies, Rotary, Attention, AttentionGrad;
    conv: Conv1d, Conv1dInputGrad, Conv1dWeightGrad;
    recurrent: Lstm;
    alignment: MonotonicPath;
    spline: RationalSpline, RationalSplineGrad;
    windowed: WindowedAttention, WindowedAttentionGrad;
    loss: MaskedMse, MaskedMseGrad, LinearCrossEntropy, LinearCrossEntropyGrad;
    head: HeadSums, HeadLoss, HeadGrad;
    random: Dropout;
    index: Sinusoid, WriteRows;
    optim: Accumulate, SumSquares, SumPartials, AdamW, Lerp;
    narrow: AdamWBf16, AdamW8bit;
    lion: Lion, LionBf16, Lion8bit;
    copy: CopyStart, StoreStart, CopyDone;
    collective: AllGatherStart, ReduceScatterStart, CollectiveDone;
    transfer: TransferStart;
}

impl Op {
    /// Work of one instruction: the op's arithmetic, and every operand and result moved once.
    pub fn cost(&self, x: &[TensorType], y: &[TensorType]) -> Cost {
        Cost { flops: self.def().flops(x, y), bytes: bytes(x) + bytes(y) }
    }
}

/// Returns the bytes of all of these.
pub(crate) fn bytes(types: &[TensorType]) -> f64 {
    types.iter().map(|t| t.bytes() as f64).sum()
}

/// `Err(why)` unless `ok`. `why` is written only then: inference runs after every pass.
pub(crate) fn want(ok: bool, why: impl std::fmt::Display) -> Result<(), String> {
    if ok { Ok(()) } else { Err(why.to_string()) }
}

/// Checks the number of operands.
pub(crate) fn arity(x: &[TensorType], n: usize) -> Result<(), String> {
    want(x.len() == n, format_args!("takes {n} operands, got {}", x.len()))
}

/// Checks that a value is an `f32` scalar `[1]`.
pub(crate) fn scalar(t: TensorType) -> Result<(), String> {
    want(t.dtype == DType::F32 && *t.shape == [1], format_args!("{t} is not the scalar f32[1]"))
}

/// Checks a segment table i32 `[S+1]` and returns S.
pub(crate) fn segments(t: TensorType) -> Result<usize, String> {
    let ok = t.dtype == DType::I32 && t.shape.len() == 1 && t.shape[0] >= 2;
    want(ok, format_args!("{t} is not a segment table i32[S+1]"))?;
    Ok(t.shape[0] - 1)
}

/// Checks that a value is a float.
pub(crate) fn float(t: TensorType) -> Result<(), String> {
    want(t.dtype.is_float(), format_args!("{t} is not of a float type"))
}

/// Checks that operands have one float type, without regard to axes.
pub(crate) fn alike(x: &[TensorType]) -> Result<(), String> {
    let one = x.iter().all(|t| t.dtype == x[0].dtype && t.dtype.is_float());
    want(one, format_args!("operands {x:?} are not of one float type; cast explicitly"))
}

/// Checks a matrix and returns (rows, columns).
pub(crate) fn matrix(t: TensorType) -> Result<(usize, usize), String> {
    want(t.shape.len() == 2, format_args!("{t} is not a matrix"))?;
    Ok((t.shape[0], t.shape[1]))
}
