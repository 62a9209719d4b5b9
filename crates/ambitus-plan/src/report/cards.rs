//! Which GPUs can train a run, how, and how fast.

use crate::asked::Asked;
use crate::cards::Card;
use crate::data::Data;
use crate::device::Device;
use crate::refusal;
use crate::search::Known;
use ambitus_compile::passes::precision::Precision;
use ambitus_families::error::RunError;
use ambitus_families::family::ModelDir;
use ambitus_models::Capacity;
use ambitus_recipe::size::ByteSize;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// A run on a card: the plan that `plan --card` makes, or the fastest change that fits.
#[derive(Clone, Debug, Serialize)]
pub struct Tier {
    /// The card.
    pub card: Card,
    /// Fits as asked, or with [`Tier::changes`].
    pub fits: bool,
    /// What it computes in, before changes.
    #[serde(serialize_with = "text")]
    pub precision: Precision,
    /// Options that make it fit; `None` if it fits as asked, or not at all.
    pub changes: Option<String>,
    /// What the card lacks for the recipe, whatever its memory: nothing was planned for it.
    pub unable: Option<String>,
    /// The peak on the card, where it is able. Where nothing fits: the least that any combination of options needs.
    pub peak_bytes: Option<u64>,
    /// Predicted seconds of an update, where it fits.
    pub step_seconds: Option<f64>,
    /// Rows (mel frames, tokens) in a second, where it fits.
    #[serde(rename = "frames_per_second")]
    pub rows_per_second: Option<f64>,
}

fn text<S: serde::Serializer>(precision: &Precision, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(precision)
}

/// Every card's row.
#[derive(Clone, Debug, Serialize)]
pub struct Tiers {
    /// Rows by memory.
    pub cards: Vec<Tier>,
    /// Rows and clips of the micro-batch as asked.
    #[serde(skip)]
    pub asked: Capacity,
    /// What a row is.
    pub unit: &'static str,
    /// Rows of an update.
    pub tokens_per_step: usize,
}

impl Tiers {
    /// Plans a run for each card, as `plan --card` does; on a card that is too small for that, with whatever change fits.
    ///
    /// # Errors
    /// As [`RunPlan::new`](crate::budget::RunPlan::new). A card that is too small is not an error.
    pub fn new(
        model: &ModelDir,
        asked: &Asked,
        data: &Data,
        (cards, threads): (&[&Card], usize),
    ) -> Result<Tiers, RunError> {
        let mut tables =
            Tables { model, asked, data, threads, known: Known::shared(), least: HashMap::new() };
        // What is too small for a card is too small for those with less memory.
        let mut order: Vec<usize> = (0..cards.len()).collect();
        order.sort_by_key(|at| Reverse(cards[*at].usable));
        let rows = order.into_iter().map(|at| Ok((at, tables.tier(cards[at])?)));
        let mut rows = rows.collect::<Result<Vec<_>, RunError>>()?;
        rows.sort_by_key(|(at, _)| *at);
        Ok(Tiers {
            cards: rows.into_iter().map(|(_, tier)| tier).collect(),
            asked: asked.shape.session.capacity,
            unit: asked.shape.model.rows().unit,
            tokens_per_step: asked.shape.update_rows,
        })
    }

    /// Returns whether some card can train it.
    pub fn any(&self) -> bool {
        self.cards.iter().any(|t| t.fits)
    }
}

/// What the rows share.
struct Tables<'a> {
    model: &'a ModelDir,
    asked: &'a Asked,
    data: &'a Data,
    threads: usize,
    /// All cards have the same kernels.
    known: Arc<Known>,
    /// The least that any combination of options needs, where that was too much for a card: by what it computes in, and whether it
    /// has bfloat16. Nothing else of a card, but its memory, decides that.
    least: HashMap<(Precision, bool), u64>,
}

impl Tables<'_> {
    fn tier(&mut self, card: &Card) -> Result<Tier, RunError> {
        let ranks = self.asked.recipe.ranks() as usize;
        let device = Device::for_card(card, self.threads).connected(ranks);
        let precision = self.asked.precision_on(&device);
        let too_small = |peak_bytes| too_small(card, precision, peak_bytes);
        let device = match device.computing_in(precision) {
            Ok(device) => device,
            Err(lacks) => return Ok(Tier { unable: Some(lacks.to_string()), ..too_small(None) }),
        };
        let budget = card.usable.0;
        let kind = (precision, card.bf16);
        if let Some(least) = self.least.get(&kind).filter(|least| **least > budget) {
            return Ok(too_small(Some(*least)));
        }
        let asked = self.asked.on(&device, budget)?;
        let found = asked.search_sharing(&device, budget, &self.known)?;
        let options = found.candidates.first().map(|c| c.options.clone()).filter(|o| !o.is_empty());
        let (changes, peak, seconds) = match found.plan.peak_bytes <= budget {
            true => (options, found.plan.peak_bytes, found.plan.step_seconds),
            false => match refusal::first(self.model, &asked, self.data, (&device, budget)) {
                Ok(named) => (Some(named.options), named.peak_bytes, named.seconds),
                Err(least) => {
                    // A part of a model is cut by what there is room for.
                    if let Some(least) = least.as_ref().filter(|_| asked.shape.session.placement.is_none()) {
                        self.least.insert(kind, least.peak_bytes);
                    }
                    let least = least.map_or(found.plan.peak_bytes, |least| least.peak_bytes);
                    return Ok(too_small(Some(least)));
                }
            },
        };
        Ok(Tier {
            fits: true,
            changes,
            step_seconds: Some(seconds),
            rows_per_second: Some(asked.shape.update_rows as f64 / seconds),
            precision: found.plan.shape.session.precision,
            ..too_small(Some(peak))
        })
    }
}

/// Returns the row of a card on which nothing fits.
fn too_small(card: &Card, precision: Precision, peak_bytes: Option<u64>) -> Tier {
    Tier {
        card: card.clone(),
        fits: false,
        precision,
        changes: None,
        unable: None,
        peak_bytes,
        step_seconds: None,
        rows_per_second: None,
    }
}

impl fmt::Display for Tiers {
    /// Writes a header that says where the times come from, and a line for each card.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = self.unit;
        writeln!(
            f,
            "as asked: a micro-batch of {} {unit} and {} clips, an update of {} {unit}\nbytes are planned; times follow \
             from the rates of cards.toml and were not measured",
            self.asked.rows, self.asked.clips, self.tokens_per_step
        )?;
        let how = |t: &Tier| match &t.changes {
            _ if t.unable.is_some() => "unable, see below".to_owned(),
            _ if !t.fits => format!("does not fit: needs {}", ByteSize(t.peak_bytes.unwrap_or(0))),
            None => "as asked".to_owned(),
            Some(options) => options.clone(),
        };
        let names = self.cards.iter().map(|t| t.card.id.chars().count()).max().unwrap_or(0).max(4);
        let hows = self.cards.iter().map(|t| how(t).chars().count()).max().unwrap_or(0).max(4);
        write!(
            f,
            "{:<names$}  {:>9}  {:<10}  {:<hows$}  {:>9}  {:>11}  {:>8}",
            "card",
            "usable",
            "precision",
            "fits",
            "peak",
            "s an update",
            format!("{unit}/s")
        )?;
        for t in &self.cards {
            write!(
                f,
                "\n{:<names$}  {:>9}  {:<10}  {:<hows$}",
                t.card.id,
                t.card.usable,
                t.precision,
                how(t)
            )?;
            if let (Some(peak), Some(seconds), Some(rate)) = (t.peak_bytes, t.step_seconds, t.rows_per_second)
            {
                write!(f, "  {:>9}  {seconds:>11.3}  {rate:>8.0}", ByteSize(peak))?;
            }
        }
        for t in &self.cards {
            if let Some(lacks) = &t.unable {
                write!(f, "\n{}: {lacks}", t.card.id)?;
            }
        }
        Ok(())
    }
}
