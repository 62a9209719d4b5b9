//! The memory that planning itself takes, and models that are too long for it.

use super::{LONG_AT_ONCE, PLANNED_AT_ONCE, START_BYTES, Shape};
use crate::session::{self, SessionOptions, program};
use ambitus_compile::pipeline::Trained;
use ambitus_families::error::RunError;
use ambitus_ir::plan::program_bytes;
use ambitus_ir::target::Target;
use ambitus_ir::{Program, Session};
use ambitus_recipe::size::ByteSize;

/// Bytes that a refusal may take to find which changes would fit, however small the budget is; for a long model, the budget. By
/// [`is_long_within`], which says up to three times what was measured.
pub(crate) const REFUSAL_BYTES: u64 = 256 << 20;
/// Bytes that a search may take however small the budget is, of a model that is not long: more of them, and it is planned as one
/// that is.
pub(crate) const SEARCH_BYTES: u64 = 64 << 20;
/// Instructions of what trains, without averages, over those of a forward program. Measured: 4.2 to 5.6.
const TRAINING: u64 = 5;
/// Instructions of a program in 16 bits, with its casts, over those in fp32: a refusal tries these too. Measured: 1.5 to 1.7.
const CASTS: u64 = 2;
/// Instructions of a forward program from which on a model is long. Of published
/// models one has 6,178, with two players.
const LONG: usize = 6_500;
/// Resident bytes of the compiler and the planner: code, tables of models. Measured, as [`super::PROCESS_BYTES`].
pub(crate) const PLANNER_BYTES: u64 = 6 << 20;
/// More of them for each further rank. Measured: 0.5.
const PLANNER_RANK_BYTES: u64 = 1 << 20;

/// Returns the bytes of compiler and planner: more of them where other ways to share a model among ranks are compared.
fn planner_bytes(shape: &Shape) -> u64 {
    PLANNER_BYTES + PLANNER_RANK_BYTES * (shape.beside.ranks as u64).saturating_sub(1)
}

/// Returns the process's bytes while `at_once` sets of programs, of `programs` bytes each, are planned.
pub(super) fn planning(shape: &Shape, at_once: u64, programs: u64) -> u64 {
    match shape.beside.with_host {
        // What is spoken is there already, also where it is left out then.
        true => {
            START_BYTES + planner_bytes(shape) + shape.data_bytes + shape.spoken.resting + at_once * programs
        }
        false => shape.beside.fixed_bytes,
    }
}

/// Returns the program of a micro-batch without backward.
fn forward(shape: &Shape) -> Program {
    shape.model.loss(&mut Session::default(), 0, shape.session.capacity, program::MICRO, false)
}

/// Returns whether a model has more than about three hundred blocks, whose plans each take seconds.
pub fn is_long(shape: &Shape) -> bool {
    is_long_program(&forward(shape))
}

/// Returns whether little is to be tried: for a long model ([`is_long`]), and where looking for what fits takes more than these
/// bytes; by one forward program and how many others there are.
pub fn is_long_within(shape: &Shape, bytes: u64) -> bool {
    let forward = forward(shape);
    let times = TRAINING + u64::from(shape.session.ema) + without_backward(&shape.session);
    let searching = planning(shape, LONG_AT_ONCE, CASTS * times * program_bytes(&forward));
    is_long_program(&forward) || (shape.beside.with_host && searching > bytes)
}

/// Returns the number of programs that are as long as a forward one: evaluation, sampling, and two that speak, on averages too.
fn without_backward(options: &SessionOptions) -> u64 {
    let SessionOptions { ema, evaluate, sample, speech, .. } = options;
    let spoken = if speech.is_some() { 2 } else { 0 };
    (u64::from(*evaluate) + u64::from(sample.is_some()) + spoken) * (1 + u64::from(*ema))
}

fn is_long_program(forward: &Program) -> bool {
    forward.instrs.len() > LONG
}

/// Refuses a model that is too long to be planned within the budget, before it is planned. Counts one forward program, which
/// every choice of options has; for a long model all of its programs, as many times as its plan has them in memory.
///
/// # Errors
/// [`RunError::DoesNotFit`], with its number of instructions; a model that cannot be trained.
pub fn require_planning(
    shape: &Shape,
    is_long: bool,
    budget: u64,
    target: &dyn Target,
) -> Result<(), RunError> {
    // With a card it is not in the budget.
    if !shape.beside.with_host {
        return Ok(());
    }
    let refuse = |needed: u64, which: &str, n: usize| {
        Err(RunError::does_not_fit(
            needed,
            format!(
                "does not fit: needs {} or more, budget {}, in plan\n  the model has {n} instructions in {which}, and planning them \
                 takes more than the budget; raise --memory",
                ByteSize(needed),
                ByteSize(budget),
            ),
        ))
    };
    let forward = forward(shape);
    let most = if is_long { budget } else { budget.max(REFUSAL_BYTES) };
    // Where all is trained each instruction has at least one in backward.
    let beside = without_backward(&shape.session);
    let micro = if shape.session.trained == Trained::All { 2 } else { 1 };
    let least = planning(shape, PLANNED_AT_ONCE[0], (micro + beside) * program_bytes(&forward));
    if least > most {
        return refuse(least, "forward alone", forward.instrs.len());
    }
    if !is_long {
        return Ok(());
    }
    let programs = session::build(&*shape.model, &shape.session, target)?.programs;
    let needed = planning(shape, shape.planned_at_once, programs.iter().map(program_bytes).sum());
    if needed > most {
        return refuse(needed, "its programs", programs.iter().map(|p| p.instrs.len()).sum());
    }
    Ok(())
}
