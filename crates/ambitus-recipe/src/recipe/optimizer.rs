//! `optimizer:`, what applies gradients.

use ambitus_compile::optimizer::States;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What applies gradients, and how it keeps its moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OptimizerChoice {
    /// AdamW, in fp32.
    #[default]
    #[serde(rename = "adamw")]
    AdamW,
    /// AdamW, in bf16, the second stochastically rounded.
    #[serde(rename = "adamw-bf16")]
    AdamWBf16,
    /// AdamW, in 8 bits, block by block.
    #[serde(rename = "adamw-8bit")]
    AdamW8bit,
    /// Lion, in fp32.
    #[serde(rename = "lion")]
    Lion,
    /// Lion, in 8 bits, block by block.
    #[serde(rename = "lion-8bit")]
    Lion8bit,
}

impl OptimizerChoice {
    /// Every choice with its name.
    const ALL: [(OptimizerChoice, &'static str); 5] = [
        (OptimizerChoice::AdamW, "adamw"),
        (OptimizerChoice::AdamWBf16, "adamw-bf16"),
        (OptimizerChoice::AdamW8bit, "adamw-8bit"),
        (OptimizerChoice::Lion, "lion"),
        (OptimizerChoice::Lion8bit, "lion-8bit"),
    ];

    /// Returns what there is to choose from, as a clause.
    pub fn known() -> String {
        format!("the optimizers are {}", OptimizerChoice::ALL.map(|(_, name)| name).join(", "))
    }

    /// Returns how moments are stored.
    pub fn states(self) -> States {
        match self {
            OptimizerChoice::AdamW | OptimizerChoice::Lion => States::Fp32,
            OptimizerChoice::AdamWBf16 => States::Bf16,
            OptimizerChoice::AdamW8bit | OptimizerChoice::Lion8bit => States::EightBit,
        }
    }

    /// Returns whether it is Lion.
    pub fn is_lion(self) -> bool {
        matches!(self, OptimizerChoice::Lion | OptimizerChoice::Lion8bit)
    }

    /// Returns the same rule with smaller moments, the larger of them first.
    pub fn narrower(self) -> &'static [OptimizerChoice] {
        match self {
            OptimizerChoice::AdamW => &[OptimizerChoice::AdamWBf16, OptimizerChoice::AdamW8bit],
            OptimizerChoice::AdamWBf16 => &[OptimizerChoice::AdamW8bit],
            OptimizerChoice::Lion => &[OptimizerChoice::Lion8bit],
            OptimizerChoice::AdamW8bit | OptimizerChoice::Lion8bit => &[],
        }
    }
}

impl fmt::Display for OptimizerChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(OptimizerChoice::ALL.iter().find(|(o, _)| o == self).map_or("", |(_, name)| name))
    }
}

impl std::str::FromStr for OptimizerChoice {
    type Err = String;
    /// Parses an optimizer as in a recipe, and as after `--optimizer`.
    fn from_str(text: &str) -> Result<OptimizerChoice, String> {
        let found = OptimizerChoice::ALL.into_iter().find(|(_, name)| *name == text);
        found.map(|(o, _)| o).ok_or_else(|| format!("`{text}` is none: {}", OptimizerChoice::known()))
    }
}
