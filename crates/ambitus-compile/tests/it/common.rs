//! What the tests of passes share.

use ambitus_compile::pipeline::{self, Options};
use ambitus_ir::target::Target;
use ambitus_ir::{Program, Session};
use ambitus_models::orpheus::config::Config;

/// Llama-3.2-3B with Orpheus' vocabulary.
pub fn llama_3b() -> Config {
    Config { vocab: 156_939, ..Config::orpheus_3b() }
}

/// The micro-batch program of a model, compiled, alone in its session.
pub fn compiled(model: &dyn Fn(&mut Session) -> Program, options: Options, target: &dyn Target) -> Session {
    let mut session = Session::default();
    let forward = model(&mut session);
    let micro = pipeline::micro(&mut session, forward, options, target).expect("the model is differentiable");
    session.programs.push(micro);
    session
}
