//! What planning itself takes, and models that are too long for it.

use super::{PLANNED_AT_ONCE, START_BYTES, Shape};
use crate::session::{self, SessionOptions, program};
use ambitus_compile::pipeline::Trained;
use ambitus_families::error::RunError;
use ambitus_ir::plan::program_bytes;
use ambitus_ir::target::Target;
use ambitus_ir::{Program, Session};
use ambitus_recipe::size::ByteSize;

/// What a refusal may take to say which changes would fit, however small the budget is; of a long model the budget.
const REFUSAL_BYTES: u64 = 128 << 20;
/// Instructions of a forward program from which on a model is long.
const LONG: usize = 2_500;
/// Resident bytes of the compiler and the planner: code, tables of models. Measured, as [`super::PROCESS_BYTES`].
const PLANNER_BYTES: u64 = 5 << 20;

/// What the process takes while programs of so many bytes are planned, so often at once.
pub(super) fn planning(shape: &Shape, at_once: u64, programs: u64) -> u64 {
    match shape.beside.with_host {
        true => START_BYTES + PLANNER_BYTES + shape.data_bytes + at_once * programs,
        false => shape.beside.fixed_bytes,
    }
}

/// The program of a micro-batch without backward.
fn forward(shape: &Shape) -> Program {
    shape.model.loss(&mut Session::default(), shape.session.capacity, program::MICRO, false)
}

/// A model of more than a hundred blocks: each plan takes seconds.
pub fn is_long(shape: &Shape) -> bool {
    is_long_program(&forward(shape))
}

fn is_long_program(forward: &Program) -> bool {
    forward.instrs.len() > LONG
}

/// Refuses a model that is too long to be planned within the budget, before it is planned: by one forward program, which every
/// choice of options has; of a long model by all of its programs, as often as its plan has them in memory.
///
/// # Errors
/// [`RunError::DoesNotFit`], with its number of instructions; a model that cannot be trained.
pub fn require_planning(shape: &Shape, budget: u64, target: &dyn Target) -> Result<(), RunError> {
    // Beside a card it is not in the budget.
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
    let is_long = is_long_program(&forward);
    let most = if is_long { budget } else { budget.max(REFUSAL_BYTES) };
    let SessionOptions { ema, evaluate, sample, .. } = &shape.session;
    // Where all is trained each instruction has at least one in backward; the programs beside it are as long.
    let beside = (u64::from(*evaluate) + u64::from(sample.is_some())) * (1 + u64::from(*ema));
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
