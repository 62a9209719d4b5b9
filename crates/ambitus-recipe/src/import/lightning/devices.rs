//! Over how many devices Lightning spreads a run, and how.

use super::{Given, Judge, MAX_RANKS, Node, RecipeError, World};

/// Says ranks and device. Each holds the whole model.
///
/// # Errors
/// Numbers that make no rank, or too many.
pub(super) fn devices(j: &mut Judge, world: &mut World) -> Result<(), RecipeError> {
    let [devices, nodes, strategy, kind] =
        ["lightning.devices", "lightning.nodes", "lightning.strategy", "lightning.accelerator"];
    let most = u64::from(MAX_RANKS);
    let machines = j.get(nodes).map_or(Ok(1), |g| g.count(1, most))?;
    let mut ranks = None;
    if let Some(g) = j.get(devices) {
        // `0,1` and `[0, 1]` name them.
        let each = match &g.node {
            Node::List(items) => Some(items.len() as u64),
            Node::Text(text) if text.contains(',') => {
                let inner = text.trim_matches(['[', ']']);
                Some(inner.split(',').filter(|name| !name.trim().is_empty()).count() as u64)
            }
            Node::Text(text) if text == "auto" || text == "-1" => None,
            _ if g.whole()? == -1 => None,
            _ => Some(g.count(1, most)?),
        };
        match each.map(|n| n * machines) {
            Some(n) if !(1..=most).contains(&n) => {
                return Err(g.bad(format!("makes {n} ranks; from 1 to {most} are possible")));
            }
            Some(n) => {
                j.used(devices, "ranks", n);
                ranks = Some(n);
            }
            None => j.default(
                devices,
                "ranks",
                "all that the machine has are taken there; here one, unless `ranks:` says more",
            ),
        }
    }
    match machines {
        1 => j.always(nodes, "it is one machine"),
        n => j.says(nodes, "ranks", format!("{n} machines, how ranks lie on which is the launcher's matter")),
    }
    world.ranks = world.ranks.or(ranks);
    let several = ranks.is_some_and(|n| n > 1);
    let sharded =
        |name: &str| ["fsdp", "deepspeed", "sharded", "parallel"].iter().any(|part| name.contains(part));
    match j.get(strategy).map(Given::text).transpose()? {
        Some(name) if sharded(&name.to_ascii_lowercase()) && !name.contains("data") => {
            let question =
                "each rank holds a share of the model there: write `sharding: {strategy: full}` or `grad_op`";
            j.ask(strategy, Some("sharding.strategy"), question);
        }
        Some(_) if several => j.used(strategy, "sharding.strategy", "none"),
        _ => j.nothing(strategy, "one rank holds the whole model, and several do so there"),
    }
    if several && j.get(strategy).is_none() {
        j.absent(&[strategy], "sharding.strategy", "none", "every rank holds the whole model there");
    }
    match j.get(kind).map(Given::text).transpose()?.as_deref() {
        Some("cpu") => j.used(kind, "device", "cpu"),
        Some("auto" | "gpu" | "cuda") | None => {
            j.nothing(kind, "a recipe leaves the device open: say --device cuda, or plan with --card NAME");
        }
        Some(_) => j.lost(kind, "the devices are cpu and cuda"),
    }
    Ok(())
}
