//! `ranks` and `sharding`: the number of ranks over which a run is spread, and what of the model each keeps.
//!
//! ```yaml
//! ranks: 4
//! sharding:
//!   strategy: full          # full | grad_op | none | hybrid_full | hybrid_grad_op
//!   group: 2                # hybrids only: ranks of a shard group
//!   units: block            # or {min_params: 100000000}
//!   backward_prefetch: pre  # pre | post | none
//!   forward_prefetch: false
//! ```

use super::Recipe;
use super::validate::{Invalid, refuse};
use ambitus_compile::passes::shard;
use serde::{Deserialize, Serialize};
use std::fmt;

/// More ranks than any cluster this is planned for.
pub const MAX_RANKS: u32 = 1 << 16;
/// No unit is larger than this many parameters.
const MAX_PARAMS: u64 = 1 << 48;

/// What each rank keeps of parameters, gradients and optimizer states. The fields' defaults are what an absent key means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sharding {
    /// What is sharded.
    pub strategy: Strategy,
    /// For the hybrids: ranks that share one copy of the model; the groups hold replicas of each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// What is gathered at once. Replicas gather nothing, but sum the norm by the same units as the others do.
    pub units: Units,
    /// When backward gathers its next unit.
    pub backward_prefetch: BackwardPrefetch,
    /// Forward gathers its next unit while it computes one: trades one unit's bytes for less waiting.
    pub forward_prefetch: bool,
}

/// What is sharded, as FSDP names it. The numbers are the same; less memory costs more gathering.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Parameters, gradients and optimizer states (FULL_SHARD, ZeRO-3): the least memory, a gather in forward and backward.
    #[default]
    Full,
    /// As with `full`, except that gathered parameters stay from forward to backward (SHARD_GRAD_OP, as ZeRO-2): one gather.
    GradOp,
    /// Nothing: every rank has all of it (NO_SHARD, data parallel).
    None,
    /// [`Strategy::Full`] inside a group, replicas between groups (HYBRID_SHARD).
    HybridFull,
    /// [`Strategy::GradOp`] inside a group, replicas between groups (HYBRID_SHARD_ZERO2).
    HybridGradOp,
}

impl Strategy {
    /// Returns whether the strategy has groups.
    pub fn is_hybrid(self) -> bool {
        matches!(self, Strategy::HybridFull | Strategy::HybridGradOp)
    }
}

impl fmt::Display for Strategy {
    /// Writes the form of a recipe.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Strategy::Full => "full",
            Strategy::GradOp => "grad_op",
            Strategy::None => "none",
            Strategy::HybridFull => "hybrid_full",
            Strategy::HybridGradOp => "hybrid_grad_op",
        })
    }
}

/// How the model is cut into what is gathered at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Units {
    /// Each block; embedding and head are units too.
    #[default]
    Block,
    /// Neighbours together until they have this many parameters.
    MinParams(u64),
}

/// When backward gathers its next unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackwardPrefetch {
    /// Before it computes the current one: two units live together, least waiting.
    #[default]
    Pre,
    /// After it has computed the current one, while its gradients are reduced.
    Post,
    /// When it is needed: least memory, most waiting.
    None,
}

impl Recipe {
    /// Returns the ranks of the run: 1 where the recipe says nothing.
    pub fn ranks(&self) -> u32 {
        self.ranks.unwrap_or(1)
    }

    /// Returns how the run is sharded: fully where the recipe says nothing.
    pub fn sharding(&self) -> Sharding {
        self.sharding.unwrap_or_default()
    }

    /// Takes another strategy, as `--sharding` names it. The other keys stay: units too, as they order the norm's sums, so the run
    /// keeps its bits; but nothing is gathered ahead where nothing is gathered.
    pub fn share_by(&mut self, strategy: shard::Strategy) {
        let (strategy, group) = match strategy {
            shard::Strategy::Full => (Strategy::Full, None),
            shard::Strategy::GradOp => (Strategy::GradOp, None),
            shard::Strategy::None => (Strategy::None, None),
            shard::Strategy::Hybrid(n) => (Strategy::HybridFull, Some(n as u32)),
            shard::Strategy::HybridGradOp(n) => (Strategy::HybridGradOp, Some(n as u32)),
        };
        let before = self.sharding();
        let forward_prefetch = before.forward_prefetch && strategy != Strategy::None;
        self.sharding = Some(Sharding { strategy, group, forward_prefetch, ..before });
    }

    /// Returns how ranks share what is kept, as the compiler takes it; `None` for one rank, and where each has a part of the
    /// model.
    ///
    /// # Errors
    /// Groups that do not divide the ranks.
    pub fn shared(&self) -> Result<Option<shard::Sharding>, String> {
        let (ranks, asked) = (self.ranks() as usize, self.sharding());
        if ranks == 1 || self.is_placed() {
            return Ok(None);
        }
        let group = asked.group.unwrap_or(self.ranks()) as usize;
        let strategy = match asked.strategy {
            Strategy::Full => shard::Strategy::Full,
            Strategy::GradOp => shard::Strategy::GradOp,
            Strategy::None => shard::Strategy::None,
            Strategy::HybridFull => shard::Strategy::Hybrid(group),
            Strategy::HybridGradOp => shard::Strategy::HybridGradOp(group),
        };
        let units = match asked.units {
            Units::Block => shard::Units::Blocks,
            Units::MinParams(n) => shard::Units::Parameters(n as usize),
        };
        let backward = match asked.backward_prefetch {
            BackwardPrefetch::Pre => shard::Backward::Pre,
            BackwardPrefetch::Post => shard::Backward::Post,
            BackwardPrefetch::None => shard::Backward::None,
        };
        let prefetch = shard::Prefetch { forward: asked.forward_prefetch, backward };
        let sharding =
            shard::Sharding::new(strategy, ranks).map_err(|why| format!("sharding.group: {why}"))?;
        Ok(Some(shard::Sharding { units, prefetch, ..sharding }))
    }

    /// Checks the keys `ranks` and `sharding`.
    pub(super) fn validate_sharding(&self) -> Result<(), Invalid> {
        if let Some(ranks) = self.ranks
            && !(1..=MAX_RANKS).contains(&ranks)
        {
            refuse("ranks", format!("{ranks} is not between 1 and {MAX_RANKS}"))?;
        }
        let Some(Sharding { strategy, group, units, forward_prefetch, .. }) = self.sharding else {
            return Ok(());
        };
        match group {
            None if strategy.is_hybrid() => refuse(
                "sharding.strategy",
                format!(
                    "{strategy} shards inside groups and does not say how large they are: add group: N, the ranks of \
                     one machine as a rule, or write strategy: full"
                ),
            )?,
            Some(_) if !strategy.is_hybrid() => refuse(
                "sharding.group",
                format!(
                    "is a key of the hybrids, and strategy: {strategy} has no groups: leave it out, or write \
                     strategy: hybrid_full"
                ),
            )?,
            Some(group) if group < 2 => refuse(
                "sharding.group",
                format!(
                    "{group}: a group of one rank shards nothing: write strategy: none, or a group of 2 or more"
                ),
            )?,
            Some(group) if self.ranks.is_some_and(|ranks| ranks % group != 0) => refuse(
                "sharding.group",
                format!(
                    "{group} does not divide ranks: {}, and every rank is in one group: change one of the two",
                    self.ranks()
                ),
            )?,
            _ => {}
        }
        if let Units::MinParams(n) = units
            && !(1..=MAX_PARAMS).contains(&n)
        {
            refuse("sharding.units.min_params", format!("{n} is not between 1 and {MAX_PARAMS}"))?;
        }
        if strategy == Strategy::None && forward_prefetch {
            let why =
                "gathers ahead, and strategy: none gathers nothing: leave it out, or write strategy: full";
            refuse("sharding.forward_prefetch", why.to_owned())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(more: &str) -> Recipe {
        let text = format!("model: {{dir: a}}\ndata: {{dir: b}}\n{more}\n");
        Recipe::parse(&text, "r.yaml").unwrap_or_else(|e| panic!("{e}")).0
    }

    fn why(more: &str) -> String {
        let text = format!("model: {{dir: a}}\ndata: {{dir: b}}\n{more}\n");
        Recipe::parse(&text, "r.yaml").expect_err(more).to_string()
    }

    #[test]
    fn every_key_is_read_and_written_back() {
        let r = read(
            "ranks: 8\nsharding:\n  strategy: hybrid_grad_op\n  group: 4\n  units: {min_params: 1000000}\n  \
             backward_prefetch: post\n  forward_prefetch: true",
        );
        let expected = Sharding {
            strategy: Strategy::HybridGradOp,
            group: Some(4),
            units: Units::MinParams(1_000_000),
            backward_prefetch: BackwardPrefetch::Post,
            forward_prefetch: true,
        };
        assert_eq!((r.ranks(), r.sharding()), (8, expected));
        for recipe in [r, read("ranks: 1\nsharding: {}"), read("sharding: {strategy: none}")] {
            let written = recipe.to_yaml().unwrap();
            assert_eq!(Recipe::parse(&written, "w.yaml").expect(&written).0, recipe, "{written}");
        }
    }

    #[test]
    fn absent_keys_are_one_rank_and_full_sharding() {
        let r = read("");
        assert_eq!((r.ranks, r.sharding, r.ranks()), (None, None, 1));
        assert_eq!(r.sharding(), read("sharding: {}").sharding());
        assert_eq!(
            r.sharding(),
            read("sharding: {strategy: full, units: block, backward_prefetch: pre}").sharding()
        );
    }

    #[test]
    fn contradictions_are_refused_at_their_line() {
        for (more, message) in [
            ("ranks: 0", "r.yaml:3:8: ranks: 0 is not between 1 and 65536"),
            ("ranks: 65537", "r.yaml:3:8: ranks: 65537 is not between"),
            ("ranks: -1", "r.yaml:3:8: ranks: expected a whole number"),
            (
                "ranks: 4\nsharding: {group: 2}",
                "r.yaml:4:19: sharding.group: is a key of the hybrids, and strategy: full has no groups",
            ),
            (
                "ranks: 6\nsharding: {strategy: hybrid_full, group: 4}",
                "r.yaml:4:42: sharding.group: 4 does not divide ranks: 6",
            ),
            (
                "sharding: {strategy: hybrid_full, group: 1}",
                "r.yaml:3:42: sharding.group: 1: a group of one rank",
            ),
            (
                "ranks: 4\nsharding: {strategy: hybrid_full}",
                "r.yaml:4:22: sharding.strategy: hybrid_full shards inside groups and does not say how large",
            ),
            (
                "sharding: {units: {min_params: 0}}",
                "r.yaml:3:32: sharding.units.min_params: 0 is not between 1",
            ),
            (
                "sharding: {strategy: none, forward_prefetch: true}",
                "r.yaml:3:46: sharding.forward_prefetch: gathers ahead",
            ),
            (
                "sharding: {strategy: zero3}",
                "r.yaml:3:22: sharding.strategy: `zero3` is not one of full, grad_op, none, hybrid_full, hybrid_grad_op",
            ),
            (
                "sharding: {unit: block}",
                "unknown key `unit` (did you mean `units`?); known here: strategy, group, units",
            ),
            ("sharding: {forward_prefetch: maybe}", "expected true or false"),
        ] {
            let said = why(more);
            assert!(said.contains(message), "{more}: {said}");
        }
    }
}
