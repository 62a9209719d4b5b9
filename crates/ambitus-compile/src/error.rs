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
}
