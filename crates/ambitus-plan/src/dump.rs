//! A plan's programs as text: for bug reports, and to see that a change of the compiler changes no program.

use crate::budget::RunPlan;
use ambitus_families::error::RunError;
use ambitus_ir::text::{print_program, print_session};
use ambitus_ir::{Program, Session};
use std::path::Path;

impl RunPlan {
    /// Writes every program as it is run, each with the states of its session, in the form that [`ambitus_ir::text::parse`]
    /// reads: `PROGRAM.txt` below `folder`, or below its `rank-N` where ranks have parts of the model.
    ///
    /// # Errors
    /// [`RunError::Io`], [`RunError::Full`].
    pub fn dump(&self, folder: &Path) -> Result<(), RunError> {
        for (rank, planned) in self.whole().iter().enumerate() {
            let folder =
                if self.parts.is_some() { folder.join(format!("rank-{rank}")) } else { folder.to_owned() };
            std::fs::create_dir_all(&folder)
                .map_err(|e| RunError::io(&folder, "cannot make the folder", e))?;
            for p in &planned.programs {
                write(&folder, &planned.session, &p.program)?;
            }
        }
        Ok(())
    }
}

fn write(folder: &Path, session: &Session, program: &Program) -> Result<(), RunError> {
    let mut states = Session::default();
    states.states.clone_from(&session.states);
    let text = format!("{}\n{}", print_session(&states), print_program(session, program));
    let path = folder.join(format!("{}.txt", program.name));
    std::fs::write(&path, text).map_err(|e| RunError::io(&path, "cannot write", e))
}
