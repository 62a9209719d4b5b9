//! Sections and flags that name another file instead of saying something themselves.

use super::Verdict;
use super::judge::Judge;
use super::world::{Kind, World};
use crate::recipe::RecipeError;
use crate::recipe::tree::Node;

const KEYS: &[&str] = &["config_file", "fsdp_config", "accelerator_config", "parallelism_config"];

/// Asks for the files that are named and not given.
///
/// # Errors
/// A section that is neither a map nor a file's name.
pub(super) fn pointers(j: &mut Judge, world: &World) -> Result<(), RecipeError> {
    for id in KEYS {
        let Some(g) = j.get(id) else { continue };
        let name = match &g.node {
            Node::Text(name) if !name.trim_start().starts_with(['{', '[']) => name,
            _ => {
                return Err(g.bad(format!("{} is neither keys with values nor a file's name", g.shown())));
            }
        };
        if *id == "fsdp_config" && world.kind != Kind::Sharded {
            continue;
        }
        if j.reads(name) {
            j.say(id, Verdict::Used(format!("{} is read beside it", g.shown())));
        } else {
            j.ask(id, None, &format!("it names a file: give {} to import as well", g.shown()));
        }
    }
    Ok(())
}
