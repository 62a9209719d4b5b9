//! What a card is asked to do, with every address final: the form in which programs are recorded.

use ambitus_ir::DType;
use std::sync::Arc;

/// One thing to do. Steps of a program run in order, except that a copy or an exchange runs alongside the
/// steps up to its [`Step::Join`].
#[derive(Clone, Debug)]
pub enum Step {
    /// A kernel.
    Launch(Launch),
    /// A matrix product.
    Gemm(Gemm),
    /// Starts copying bytes on a queue of copies.
    Fork {
        /// the queue
        queue: u32,
        /// from this address
        from: u64,
        /// to this address
        to: u64,
        /// number of bytes
        bytes: u64,
    },
    /// Waits for the copy to an address, or for the exchange of a token.
    Join {
        /// where the copy goes, or the token's address
        to: u64,
    },
    /// Starts an exchange with other ranks on a queue of its own.
    Exchange(Exchange),
}

/// What a collective or a transfer does, in order, alongside the steps up to the [`Step::Join`] of its token.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The queue.
    pub queue: u32,
    /// The token's address, by which it is waited for.
    pub token: u64,
    /// The instruction's path, for messages.
    pub what: Arc<str>,
    /// What it does.
    pub work: Vec<Work>,
}

/// One thing of an exchange.
#[derive(Clone, Debug)]
pub enum Work {
    /// Zeroes bytes.
    Zero {
        /// from this address on
        at: u64,
        /// number of bytes
        bytes: u64,
    },
    /// A kernel.
    Launch(Launch),
    /// Copies bytes.
    Copy {
        /// from this address
        from: u64,
        /// to this address
        to: u64,
        /// number of bytes
        bytes: u64,
    },
    /// The bytes that every rank has `from` here, in the order of all ranks.
    Gather {
        /// this rank's
        from: u64,
        /// all ranks', one after another
        to: u64,
        /// of each rank
        bytes: u64,
    },
    /// Messages that are under way together.
    Messages(Vec<Message>),
}

/// Bytes between this rank and another, or itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The other rank.
    pub rank: usize,
    /// This rank sends; otherwise it gets.
    pub sends: bool,
    /// Address of the bytes.
    pub at: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Exchange {
    /// Returns whether it needs other ranks.
    pub fn is_between_ranks(&self) -> bool {
        self.work.iter().any(|w| matches!(w, Work::Gather { .. } | Work::Messages(_)))
    }
}

/// A kernel launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Threads of a block.
    pub block: u32,
    /// Bytes of a block's shared memory, besides what the kernel declares.
    pub shared: u32,
    /// Blocks.
    pub grid: [u32; 2],
    /// The struct of its arguments.
    pub args: Vec<u8>,
}

/// A column-major matrix product as BLAS has it: D = op(A) op(B) + beta C, with C and D the same bytes, op(A) `[m, k]`,
/// op(B) `[k, n]`, D `[m, n]`, sums in fp32; and on top a bias per row of D.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemm {
    /// Rows of D.
    pub m: u64,
    /// Columns of D.
    pub n: u64,
    /// Length of the sums.
    pub k: u64,
    /// Products: matrix i starts `stride` elements after matrix i - 1.
    pub batch: u64,
    /// A.
    pub a: Matrix,
    /// B.
    pub b: Matrix,
    /// D.
    pub d: Matrix,
    /// Address of beta; 0: D is not read.
    pub beta: u64,
    /// Address of a bias `[m]` of D's type; 0: none.
    pub bias: u64,
    /// Scratch.
    pub workspace: u64,
    /// Bytes of scratch.
    pub workspace_bytes: u64,
}

/// A column-major operand of a [`Gemm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Address.
    pub at: u64,
    /// Element type.
    pub dtype: DType,
    /// Elements from column to column.
    pub ld: u64,
    /// Elements from one matrix of a batch to the next.
    pub stride: u64,
    /// Used transposed.
    pub transposed: bool,
}
