//! One model over several GPUs, compared with a whole copy on each: how a run could be placed, and what each GPU would hold.

use super::strategies;
use crate::budget::{RunPlan, Shape};
use crate::cluster::Cluster;
use crate::device::Device;
use crate::placement;
use crate::session::program;
use ambitus_compile::passes::shard::Strategy;
use ambitus_families::error::RunError;
use ambitus_ir::target::Target;
use ambitus_recipe::size::ByteSize;
use serde::Serialize;
use std::fmt;

/// How cards share the work of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Each card has the whole model and some of the micro-batches.
    Data,
    /// Each card has some of the blocks; a micro-batch goes through one after another.
    Model,
    /// Each card has some of the blocks, and its own micro-batch at a time.
    Pipeline,
}

/// What a tied embedding does to a pipeline.
const SHARED_ENDS: &str = "the first blocks and the head share a weight, which has one home: rows go back to it in every \
                           micro-batch, and a pipeline's GPUs wait there for each other";

/// A run in one placement.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which.
    pub placement: Placement,
    /// Of a pipeline: backward of a micro-batch goes before forward of later ones (1F1B); not where the ends share a weight.
    pub interleaved: bool,
    /// The first and the number of blocks of each card; empty if each has all.
    pub blocks: Vec<(usize, usize)>,
    /// Micro-batches of an update that a card computes.
    pub micro_batches: usize,
    /// Of these, those that are in the cards together.
    pub in_flight: usize,
    /// The peak of each card.
    pub peak_bytes: Vec<u64>,
    /// All are within what a card offers.
    pub fits: bool,
    /// Predicted seconds of an update.
    pub step_seconds: f64,
    /// Of these, seconds in which the cards wait for each other, on average.
    pub waiting_seconds: f64,
    /// Bytes that a card sends and gets in an update, at most.
    pub exchanged_bytes: f64,
}

/// The placements of a run on the cards of a cluster.
#[derive(Clone, Debug, Serialize)]
pub struct Placements {
    /// What each card has for the run.
    pub card_bytes: u64,
    /// GB of memory as the card is sold.
    pub sold_gb: u64,
    /// Cards.
    pub cards: usize,
    /// What is compared.
    pub rows: Vec<Row>,
    /// What limits these rows, or why there are no more.
    pub note: Option<String>,
}

impl Placements {
    /// Plans the update in every placement, with options as they are. What is offloaded stays on the card, as offload is not
    /// planned together with placements.
    ///
    /// # Errors
    /// From planning.
    pub fn of(cluster: &Cluster, shape: &Shape, threads: usize) -> Result<Placements, RunError> {
        let (cards, card_bytes) = (cluster.ranks(), cluster.card.usable.0);
        let device = Device::for_cards(&cluster.card, cluster.links(), threads).connected(cards);
        let device = device.computing_in(shape.session.precision)?;
        let mut shape = Shape { beside: device.beside(), ..shape.clone() };
        shape.session.offload = Default::default();
        shape.session.placement = None;
        let (data, blocks) = replicated(&shape, cards, card_bytes, device.target())?;
        let mut rows = vec![data];
        shape.session.sharding = None;
        let mut note = None;
        if blocks < cards {
            note =
                Some(format!("the model has {blocks} blocks, too few for each of {cards} GPUs to have one"));
        } else {
            for placement in [Placement::Model, Placement::Pipeline] {
                let row = cut(&shape, placement, cards, card_bytes, device.target())?;
                if row.as_ref().is_some_and(|row| placement == Placement::Pipeline && !row.interleaved) {
                    note = Some(SHARED_ENDS.to_owned());
                }
                rows.extend(row);
            }
        }
        Ok(Placements { card_bytes, sold_gb: cluster.card.sold_gb, cards, rows, note })
    }
}

/// Plans a whole copy on each card; also returns the number of the model's blocks.
fn replicated(
    shape: &Shape,
    cards: usize,
    card_bytes: u64,
    target: &dyn Target,
) -> Result<(Row, usize), RunError> {
    let mut shape = shape.clone();
    shape.session.sharding = strategies::shared(&shape, Strategy::None, cards)?;
    let plan = RunPlan::new(shape, target)?;
    let blocks = plan.planned.program(program::MICRO).map_or(0, |p| p.program.blocks.len());
    let row = Row {
        placement: Placement::Data,
        interleaved: false,
        blocks: Vec::new(),
        micro_batches: plan.shape.micro_batches_of_rank(),
        in_flight: 1,
        peak_bytes: vec![plan.peak_bytes; cards],
        fits: plan.peak_bytes <= card_bytes,
        step_seconds: plan.step_seconds,
        waiting_seconds: plan.exchange.exposed,
        exchanged_bytes: plan.exchange.bytes,
    };
    Ok((row, blocks))
}

/// Returns the fastest cut that fits; where none does, the one that needs least.
fn cut(
    shape: &Shape,
    placement: Placement,
    cards: usize,
    card_bytes: u64,
    target: &dyn Target,
) -> Result<Option<Row>, RunError> {
    let mut shape = shape.clone();
    let room = card_bytes.saturating_sub(shape.beside.fixed_bytes);
    shape.session.placement = Some(placement::Placement::new(cards, placement == Placement::Pipeline, room));
    let plan = RunPlan::new(shape, target)?;
    let Some(parts) = &plan.parts else { return Ok(None) };
    let fixed = plan.peak_bytes - plan.planned.arena_bytes();
    let peak_bytes: Vec<u64> = parts.ranks.iter().map(|p| fixed + p.arena_bytes()).collect();
    Ok(Some(Row {
        placement,
        interleaved: parts.how.interleaved,
        blocks: parts.how.blocks_of_ranks(),
        micro_batches: plan.shape.micro_batches,
        in_flight: parts.how.in_flight,
        fits: peak_bytes.iter().all(|b| *b <= card_bytes),
        peak_bytes,
        step_seconds: plan.step_seconds,
        waiting_seconds: parts.waiting_seconds,
        exchanged_bytes: parts.exchanged_bytes,
    }))
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Placement::Data => "data",
            Placement::Model => "model",
            Placement::Pipeline => "pipeline",
        })
    }
}

impl fmt::Display for Placements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, sold) = (self.cards, self.sold_gb);
        writeln!(
            f,
            "{n} GPUs with {sold} GB each, of which {} can be used. data parallel leaves each replica {sold} GB, not {}: every \
             GPU has a whole copy, and they share the micro-batches. model and pipeline split one model over all {n}: each \
             block is on one GPU, with its gradients and moments. A pipeline works on several micro-batches at a time: \
             less waiting, and what forward keeps of each of them",
            ByteSize(self.card_bytes),
            n as u64 * sold
        )?;
        write!(
            f,
            "{:<9}  {:<14}  {:>13}  {:>9}  {:<28}  {:<4}  {:>11}  {:>9}",
            "placement",
            "blocks",
            "micro-batches",
            "at a time",
            "peak of each card",
            "fits",
            "s an update",
            "s waiting"
        )?;
        for r in &self.rows {
            let blocks: Vec<String> = r.blocks.iter().map(|(_, n)| n.to_string()).collect();
            let blocks = if blocks.is_empty() { "all".to_owned() } else { blocks.join("+") };
            let peaks = r.peak_bytes.chunk_by(|a, b| a == b).map(|same| match same.len() {
                1 => ByteSize(same[0]).to_string(),
                n => format!("{n} x {}", ByteSize(same[0])),
            });
            let peaks: Vec<String> = peaks.collect();
            write!(
                f,
                "\n{:<9}  {:<14}  {:>13}  {:>9}  {:<28}  {:<4}  {:>11.3}  {:>9.3}",
                r.placement,
                blocks,
                r.micro_batches,
                r.in_flight,
                peaks.join(", "),
                if r.fits { "yes" } else { "no" },
                r.step_seconds,
                r.waiting_seconds
            )?;
        }
        self.note.iter().try_for_each(|note| write!(f, "\n{note}"))
    }
}
