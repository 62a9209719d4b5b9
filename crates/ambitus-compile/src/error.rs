use ambitus_ir::Shape;
use thiserror::Error;

/// Why a session cannot be compiled. Everything else that goes wrong here is a bug and panics with the pass's name.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CompileError {
    /// The program has no loss.
    #[error("program `{0}` has no output named `loss`")]
    NoLoss(String),
    /// An op on the way to a trainable tensor cannot be differentiated.
    #[error("{path}: {why}, but a trainable tensor lies behind it; freeze it or use another op")]
    NoGradient {
        /// provenance of the instruction
        path: String,
        /// what the op says
        why: String,
    },
    /// Trainable tensors that the loss does not depend on.
    #[error("the loss does not depend on {}; freeze them", .0.join(", "))]
    NoPath(Vec<String>),
    /// A pattern of names that is none of the model's.
    #[error("`{pattern}` matches no parameter that it could apply to; there are {names}")]
    NoMatch {
        /// the pattern
        pattern: String,
        /// some names that there are
        names: String,
    },
    /// Every parameter is frozen.
    #[error("nothing is left to train: every parameter is frozen; freeze less")]
    NothingTrains,
    /// An adapter that is no smaller than what it adapts.
    #[error("rank {rank} does not suit {weight} {shape}: take 1 to {}, or leave it out of the targets", .shape[0].min(.shape[1]))]
    Rank {
        /// the adapter's rank
        rank: usize,
        /// the adapted weight
        weight: String,
        /// its shape
        shape: Shape,
    },
    /// A weight that is adapted and trained itself.
    #[error(
        "{weight} has an adapter, and `{pattern}` would train it as well: make one of the two patterns narrower"
    )]
    Both {
        /// the pattern of what else is trained
        pattern: String,
        /// the weight
        weight: String,
    },
    /// Dropout needs to know whose row is whose.
    #[error(
        "program `{0}` has no input `segments`, which an adapter's dropout is drawn by: set the dropout to 0"
    )]
    NoSegments(String),
    /// A loss scale is known to be right when all gradients are there.
    #[error(
        "an update in backward cannot skip itself when a later gradient overflows, as a loss scale needs: compute in bf16"
    )]
    ScaledInBackward,
    /// A tensor's norm is known to be right when all ranks' parts of it are there.
    #[error(
        "ranks that share parameters clip by the global norm, when all gradients are there: clip no tensor by its own norm, \
         and do not update in backward"
    )]
    ShardedPerTensor,
    /// Where ranks keep parameters follows from one program so far.
    #[error(
        "a model of several players is trained by one rank so far: leave out ranks, sharding and placement"
    )]
    PlayersOnRanks,
    /// Adapters are looked for in every program.
    #[error("a model of several players has no adapters so far: freeze what should stay as it is")]
    PlayersAdapted,
    /// The players would have to share one loss scale.
    #[error("a model of several players has no loss scale so far: compute in bf16 or fp32")]
    PlayersScaled,
}
