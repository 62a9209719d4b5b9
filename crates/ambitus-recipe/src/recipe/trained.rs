//! Which parts of the model a recipe trains, and how: `freeze`, `lora`, `optimizer`, `no_decay`.

use super::validate::{Invalid, real, refuse};
use super::{Recipe, Settled};
use ambitus_compile::optimizer::{Optimizer, Rule};
use ambitus_compile::passes::lora::Lora as Adapters;
use ambitus_compile::passes::pattern::Pattern;
use ambitus_compile::pipeline::Trained;
use ambitus_ir::ops::lion::Lion;
use ambitus_ir::ops::optim::AdamW;
use serde::{Deserialize, Serialize};

/// Patterns of a list, and bytes of each: every tensor's name is held against all of them.
const MOST_PATTERNS: usize = 1000;
const LONGEST_PATTERN: usize = 1000;
/// Above the widest layer of any model.
const MAX_RANK: u32 = 1 << 16;

/// `lora:`, small trained additions to chosen layers of a frozen model (arXiv 2106.09685).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lora {
    /// Inner width of the additions: the larger, the more they can express.
    pub rank: u32,
    /// The additions are scaled by alpha / rank. Absent: the rank, so that the scale is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// Dropout probability on the additions' inputs, in training.
    pub dropout: f64,
    /// Linear layers that get an addition, by pattern (`*` is anything). Absent: attention's projections and the feed-forward.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<Vec<String>>,
    /// Scale by alpha / sqrt(rank) instead (rsLoRA, arXiv 2312.03732).
    pub rslora: bool,
    /// Parameters that are trained whole besides the additions, by pattern, as `transformer.text_embed.text_embed` for a
    /// vocabulary's new rows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also_train: Vec<String>,
}

impl Default for Lora {
    fn default() -> Lora {
        Lora { rank: 16, alpha: None, dropout: 0.0, targets: None, rslora: false, also_train: Vec::new() }
    }
}

impl Lora {
    /// Returns alpha as given, else the rank.
    pub fn alpha(&self) -> f64 {
        self.alpha.unwrap_or(self.rank.into())
    }

    /// Returns what it asks of the compiler.
    pub fn adapters(&self) -> Adapters {
        Adapters {
            rank: self.rank as usize,
            alpha: self.alpha(),
            dropout: self.dropout as f32,
            rank_stabilised: self.rslora,
            // None: the family's own.
            targets: self.targets.as_deref().map_or(Vec::new(), patterns),
            also_train: patterns(&self.also_train),
        }
    }

    fn validate(&self) -> Result<(), Invalid> {
        if !(1..=MAX_RANK).contains(&self.rank) {
            refuse("lora.rank", format!("{} is not between 1 and {MAX_RANK}; 4 to 64 is usual", self.rank))?;
        }
        real(
            "lora.alpha",
            self.alpha(),
            self.alpha() > 0.0 && self.alpha() <= 1e6,
            "above 0; the rank is usual",
        )?;
        real(
            "lora.dropout",
            self.dropout,
            (0.0..1.0).contains(&self.dropout),
            "a probability from 0 to below 1",
        )?;
        if let Some(targets) = &self.targets {
            if targets.is_empty() {
                refuse("lora.targets", "is empty: name layers, as in ['*.to_q'], or leave the key out")?;
            }
            usable("lora.targets", targets)?;
        }
        usable("lora.also_train", &self.also_train)
    }
}

fn patterns(texts: &[String]) -> Vec<Pattern> {
    texts.iter().map(Pattern::new).collect()
}

fn usable(key: &'static str, patterns: &[String]) -> Result<(), Invalid> {
    if patterns.iter().any(|p| p.trim().is_empty()) {
        refuse(key, "holds an empty pattern, which matches nothing: write a name, `*` in it is anything")?;
    }
    let longest = patterns.iter().map(String::len).max().unwrap_or(0);
    if patterns.len() > MOST_PATTERNS || longest > LONGEST_PATTERN {
        let most = format!("{MOST_PATTERNS} patterns of {LONGEST_PATTERN} bytes are the most");
        refuse(key, format!("holds {} patterns, the longest of {longest} bytes; {most}", patterns.len()))?;
    }
    Ok(())
}

impl Settled {
    /// Returns what applies gradients, of a model's players with the parameters that each trains, by pattern.
    pub fn optimizer<'p>(&self, players: impl Iterator<Item = (&'p str, &'p [&'p str])>) -> Optimizer {
        let [beta1, beta2] = self.betas;
        let own = players.filter_map(|(name, trains)| {
            let betas = self.players.get(name)?.betas?;
            Some((trains.iter().map(|p| Pattern::new(*p)).collect(), betas))
        });
        let (choice, weight_decay) = (self.recipe().optimizer.unwrap_or_default(), self.weight_decay);
        let rule = if choice.is_lion() {
            Rule::Lion(Lion { beta1, beta2, weight_decay })
        } else {
            Rule::AdamW(AdamW { beta1, beta2, eps: self.eps, weight_decay })
        };
        Optimizer {
            rule,
            own_betas: own.collect(),
            no_decay: patterns(&self.no_decay),
            states: choice.states(),
        }
    }
}

impl Recipe {
    /// Returns what the recipe trains, for the compiler.
    pub fn trained(&self) -> Trained {
        match &self.lora {
            Some(lora) => Trained::Adapters(lora.adapters()),
            None if self.freeze.is_empty() => Trained::All,
            None => Trained::Except(patterns(&self.freeze)),
        }
    }

    /// Checks the keys `freeze`, `no_decay` and `lora`.
    pub(super) fn validate_trained(&self) -> Result<(), Invalid> {
        usable("freeze", &self.freeze)?;
        usable("no_decay", self.no_decay.as_deref().unwrap_or_default())?;
        let Some(lora) = &self.lora else { return Ok(()) };
        if !self.freeze.is_empty() {
            refuse(
                "freeze",
                "cannot be combined with `lora`, which freezes everything but its additions: leave `freeze` out \
                 (`lora.also_train` names what else is to be trained)",
            )?;
        }
        lora.validate()
    }
}
