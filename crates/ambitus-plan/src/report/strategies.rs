//! Compares ways to spread a run over the GPUs of a cluster, and how a run would scale.

use crate::budget::{RunPlan, Shape};
use crate::cluster::Cluster;
use crate::device::Device;
use ambitus_compile::passes::precision::Precision;
use ambitus_compile::passes::shard::{Backward, Prefetch, Sharding, Strategy};
use ambitus_families::error::RunError;
use ambitus_recipe::size::ByteSize;
use serde::Serialize;
use std::fmt;

/// A run on `cards` GPUs.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Cards, each a rank.
    pub cards: usize,
    /// Which.
    pub card: String,
    /// Who holds what.
    #[serde(serialize_with = "text")]
    pub strategy: Strategy,
    /// The peak of each card.
    pub peak_bytes: u64,
    /// Within what the card offers.
    pub fits: bool,
    /// Predicted seconds of an update.
    pub step_seconds: f64,
    /// Of these, seconds in which computing waits for the exchange.
    pub exposed_seconds: f64,
    /// Rows (mel frames, tokens) of an update in a second.
    #[serde(rename = "frames_per_second")]
    pub rows_per_second: f64,
}

fn text<S: serde::Serializer>(strategy: &Strategy, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(strategy)
}

/// A run on several cards, of one kind or of each of several.
#[derive(Clone, Debug, Serialize)]
pub struct Strategies {
    /// The cards.
    pub clusters: Vec<Cluster>,
    /// What is compared.
    pub rows: Vec<Row>,
    /// What a row of a batch is.
    pub unit: &'static str,
}

/// The largest number of cards of [`Strategies::scaling`].
const MOST: usize = 1024;

impl Strategies {
    /// Plans the update on all cards of a cluster, by every strategy and the one that is asked for, with options as they are.
    ///
    /// # Errors
    /// From planning.
    pub fn of(cluster: &Cluster, shape: &Shape, threads: usize) -> Result<Strategies, RunError> {
        let mut strategies = vec![Strategy::None];
        if cluster.ranks() > 1 {
            strategies.extend([Strategy::GradOp, Strategy::Full]);
        }
        if cluster.hosts > 1 && cluster.cards_per_host > 1 {
            let group = cluster.cards_per_host;
            strategies.extend([Strategy::HybridGradOp(group), Strategy::Hybrid(group)]);
        }
        let asked = shape.session.sharding.map(|s| s.strategy());
        strategies.extend(asked.filter(|s| cluster.ranks() > 1 && !strategies.contains(s)));
        let rows = strategies.into_iter().map(|s| row(cluster, shape, s, threads));
        Ok(Strategies {
            clusters: vec![cluster.clone()],
            rows: rows.collect::<Result<_, _>>()?,
            unit: shape.model.rows().unit,
        })
    }

    /// Plans full sharding and replicas on 1, 2, 4, ... cards, each card with the micro-batches it has now: the update grows
    /// with the cards (weak scaling). Hosts have as many cards as the cluster's. Several clusters are set side by side, each with
    /// what it computes in.
    ///
    /// # Errors
    /// From planning.
    pub fn scaling(
        clusters: Vec<(Cluster, Precision)>,
        shape: &Shape,
        threads: usize,
    ) -> Result<Strategies, RunError> {
        let counts = std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|n| *n <= MOST);
        let each = shape.micro_batches_of_rank();
        let mut rows = Vec::new();
        for cards in counts {
            let micro_batches = each * cards;
            let update_rows = shape.update_rows * micro_batches / shape.micro_batches.max(1);
            let mut shape = Shape { update_rows, micro_batches, ..shape.clone() };
            for (cluster, precision) in &clusters {
                shape.session.precision = *precision;
                let hosts = cards.div_ceil(cluster.cards_per_host);
                let cards_per_host = cards.min(cluster.cards_per_host);
                let part = Cluster { hosts, cards_per_host, ..cluster.clone() };
                for strategy in [Strategy::Full, Strategy::None] {
                    rows.push(row(&part, &shape, strategy, threads)?);
                }
            }
        }
        let clusters = clusters.into_iter().map(|(cluster, _)| cluster).collect();
        Ok(Strategies { clusters, rows, unit: shape.model.rows().unit })
    }
}

/// Returns `strategy` for a shape on `cards` GPUs, with the shape's own units, or a recipe's default ones.
pub fn shared(shape: &Shape, strategy: Strategy, cards: usize) -> Result<Option<Sharding>, RunError> {
    if cards == 1 {
        return Ok(None);
    }
    let sharding = Sharding::new(strategy, cards).map_err(RunError::Usage)?;
    Ok(Some(match shape.session.sharding {
        Some(Sharding { prefetch, units, .. }) => Sharding { prefetch, units, ..sharding },
        None => Sharding { prefetch: Prefetch { forward: false, backward: Backward::Pre }, ..sharding },
    }))
}

fn row(cluster: &Cluster, shape: &Shape, strategy: Strategy, threads: usize) -> Result<Row, RunError> {
    let cards = cluster.ranks();
    let device = Device::for_cards(&cluster.card, cluster.links(), threads).connected(cards);
    let device = device.computing_in(shape.session.precision)?;
    let mut shape = Shape { beside: device.beside(), ..shape.clone() };
    shape.session.sharding = shared(&shape, strategy, cards)?;
    shape.session.placement = None;
    let plan = RunPlan::new(shape, device.target())?;
    Ok(Row {
        cards,
        card: cluster.card.id.clone(),
        strategy,
        peak_bytes: plan.peak_bytes,
        fits: plan.peak_bytes <= cluster.card.usable.0,
        step_seconds: plan.step_seconds,
        exposed_seconds: plan.exchange.exposed,
        rows_per_second: plan.shape.update_rows as f64 / plan.step_seconds,
    })
}

impl fmt::Display for Strategies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<String> = self
            .clusters
            .iter()
            .map(|c| format!("each {} has {} of its own", c.card.id, c.card.usable))
            .collect();
        writeln!(
            f,
            "{}, and `none` (data parallel) needs a whole copy in each: their memory does not add up for it",
            each.join(", ")
        )?;
        let names = self.rows.iter().map(|r| r.card.chars().count()).max().unwrap_or(0).max(4);
        write!(
            f,
            "{:>5}  {:<names$}  {:<18}  {:>10}  {:<4}  {:>11}  {:>9}  {:>10}",
            "cards",
            "card",
            "strategy",
            "peak each",
            "fits",
            "s an update",
            "s waiting",
            format!("{}/s", self.unit)
        )?;
        for r in &self.rows {
            write!(
                f,
                "\n{:>5}  {:<names$}  {:<18}  {:>10}  {:<4}  {:>11.3}  {:>9.3}  {:>10.0}",
                r.cards,
                r.card,
                r.strategy.to_string(),
                ByteSize(r.peak_bytes).to_string(),
                if r.fits { "yes" } else { "no" },
                r.step_seconds,
                r.exposed_seconds,
                r.rows_per_second
            )?;
        }
        Ok(())
    }
}
