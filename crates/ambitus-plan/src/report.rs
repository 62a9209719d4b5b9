//! Tables of a plan for people and `--json`: each kind of card, the ways to spread a run over several, and what each rank has.

pub mod cards;
pub mod placements;
mod ranks;
pub mod strategies;
