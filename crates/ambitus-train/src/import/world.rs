//! Over how many ranks, and of what kind.

use super::judge::{Judge, conflict};
use super::{Verdict, fsdp, near};
use crate::recipe::{MAX_RANKS, RecipeError};

/// What several ranks do with the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// One rank.
    Single,
    /// Each has all of it.
    Replicated,
    /// FSDP: as its keys say.
    Sharded,
    /// Nothing is said.
    Open,
}

/// The ranks of a run.
pub(super) struct World {
    pub kind: Kind,
    pub ranks: Option<u64>,
    /// Ranks of one machine, where both numbers are known.
    pub of_machine: Option<u64>,
    /// Ranks that share a copy, where `parallelism_config` says so.
    pub shard: Option<u64>,
}

const TYPES: &[&str] = &["NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA"];

/// # Errors
/// What cannot be run here, with what to write instead; numbers that contradict each other.
pub(super) fn world(j: &mut Judge) -> Result<World, RecipeError> {
    refuse_others(j)?;
    let kind = kind(j)?;
    let most = u64::from(MAX_RANKS);
    let machines = j.get("num_machines").map(|g| g.count(1, most)).transpose()?;
    let mut ranks = None;
    if let Some(g) = j.get("num_processes") {
        if g.whole()? == -1 {
            j.ask("num_processes", "-1 means that the launch command says it: write `ranks:` in the recipe");
        } else {
            ranks = Some(g.count(1, most)?);
        }
    }
    if let Some(g) = j.get("nproc_per_node") {
        match g.whole() {
            // `gpu`, `cpu` and `auto` count what the machine has.
            Err(_) => j.ask("nproc_per_node", "depends on the machine: write `ranks:` in the recipe"),
            Ok(_) => {
                let all = g.count(1, most)? * machines.unwrap_or(1);
                if let (Some(n), Some(other)) = (ranks, j.get("num_processes"))
                    && n != all
                {
                    return Err(conflict(other, g));
                }
                ranks = Some(all);
            }
        }
    }
    let shard = mesh(j, kind, &mut ranks)?;
    if let Some(n) = ranks.filter(|n| *n > most) {
        let key = ["nproc_per_node", "num_processes", "parallel.dp_shard_size"]
            .into_iter()
            .find_map(|id| j.get(id));
        if let Some(g) = key {
            return Err(g.bad(format!("makes {n} ranks; {most} is the most")));
        }
    }
    if kind == Kind::Single {
        if ranks.is_some_and(|n| n > 1) {
            j.lost("num_processes", "distributed_type: NO starts one process, whatever this says");
        }
        ranks = Some(1);
    }
    if let Some(n) = ranks {
        for id in ["num_processes", "nproc_per_node", "parallel.dp_shard_size", "parallel.dp_replicate_size"]
        {
            j.used(id, "ranks", n);
        }
    }
    let of_machine = ranks.map(|n| n / machines.unwrap_or(1));
    if let (Some(n), Some(m), Some(g)) = (ranks, machines, j.get("num_machines"))
        && n % m != 0
    {
        return Err(
            g.bad(format!("{m} machines cannot have {n} ranks in equal shares: change one of the two"))
        );
    }
    device(j)?;
    Ok(World { kind, ranks, of_machine, shard })
}

/// What another engine would have to run.
fn refuse_others(j: &mut Judge) -> Result<(), RecipeError> {
    const INSTEAD: &str = "ZeRO-3 is what `distributed_type: FSDP` with `fsdp_sharding_strategy: FULL_SHARD` does, ZeRO-2 \
                           what SHARD_GRAD_OP does, offload_optimizer and offload_param are `fsdp_offload_params: true`: \
                           write these in place of it";
    if let Some(g) = j.get("deepspeed").filter(|g| !g.is_off()) {
        return Err(g.bad(format!("DeepSpeed's configuration is not read. {INSTEAD}")));
    }
    let kind =
        j.get("distributed_type").map(|g| g.text().map(|t| (g, t.to_ascii_uppercase()))).transpose()?;
    if let Some((g, kind)) = &kind {
        let kind = kind.rsplit('.').next().unwrap_or_default();
        match kind {
            "DEEPSPEED" => return Err(g.bad(format!("DeepSpeed's configuration is not read. {INSTEAD}"))),
            "MEGATRON_LM" => {
                return Err(g.bad(
                    "Megatron-LM splits single layers over ranks (tensor parallel), which is not there: write \
                     `distributed_type: FSDP` with `fsdp_sharding_strategy: FULL_SHARD`, which divides the same bytes",
                ));
            }
            "XLA" | "TPU" => {
                return Err(g.bad("TPUs are not there: FSDP, MULTI_GPU, MULTI_CPU or NO are read"));
            }
            k if TYPES.contains(&k) => {}
            k if k.starts_with("MULTI_") => {
                return Err(g.bad(format!(
                    "{k} is a device that is not there; MULTI_GPU means the same on NVIDIA cards"
                )));
            }
            k => {
                let near = near::nearest(k, TYPES.iter().copied()).map(|n| format!("; {n} is nearest"));
                return Err(g.bad(format!(
                    "`{}` is not one of {}{}",
                    g.shown(),
                    TYPES.join(", "),
                    near.unwrap_or_default()
                )));
            }
        }
    }
    if let Some(g) = j.get("megatron").filter(|_| kind.is_none()) {
        return Err(g.bad("Megatron-LM's tensor parallelism is not there: FSDP is read (`fsdp_config`)"));
    }
    j.nothing("megatron", "distributed_type is not MEGATRON_LM");
    j.nothing("deepspeed", "it is off");
    j.nothing("deepspeed_config", "distributed_type is not DEEPSPEED");
    if let Some(g) = j.get("model_parallel") {
        // `tp_config` is a map that holds `tp_size`.
        let one = match &g.node {
            crate::recipe::tree::Node::Map(_) => false,
            _ => g.count(1, u64::from(MAX_RANKS))? == 1,
        };
        if !one {
            return Err(g.bad(
                "tensor, context and sequence parallelism are not there: put these ranks into sharding \
                 (parallelism_config_dp_shard_size), which divides parameters, gradients and states the same",
            ));
        }
    }
    j.nothing("model_parallel", "1 is none");
    Ok(())
}

fn kind(j: &mut Judge) -> Result<Kind, RecipeError> {
    let on = |j: &Judge, id: &str| j.get(id).map(|g| g.flag()).transpose().map(|on| on == Some(true));
    let arguments = j.get("fsdp").map(|g| g.words()).transpose()?;
    let words =
        arguments.as_ref().is_some_and(|w| !w.is_empty() && !j.get("fsdp").is_some_and(|g| g.is_off()));
    let fsdp = words || on(j, "use_fsdp")?;
    let multi = on(j, "multi_gpu")?;
    let written = j.get("distributed_type").map(|g| g.text()).transpose()?.map(|t| t.to_ascii_uppercase());
    let kind = match written.as_deref().map(|t| t.rsplit('.').next().unwrap_or_default()) {
        Some("NO") => Kind::Single,
        Some("FSDP") => Kind::Sharded,
        Some(_) if fsdp => Kind::Sharded,
        Some(_) => Kind::Replicated,
        None if fsdp || (arguments.is_none() && j.any("fsdp.")) => Kind::Sharded,
        None if multi || j.get("num_processes").is_some() || j.get("nproc_per_node").is_some() => {
            Kind::Replicated
        }
        None => Kind::Open,
    };
    let verdict = match kind {
        Kind::Single => Verdict::Used("ranks: 1".to_owned()),
        Kind::Sharded if written.as_deref().is_some_and(|t| !t.ends_with("FSDP")) => {
            Verdict::NoEffect("`fsdp` in the arguments shards, which goes before it".to_owned())
        }
        Kind::Sharded => Verdict::Used("sharding, as the FSDP keys say".to_owned()),
        _ => Verdict::Used("sharding.strategy: none".to_owned()),
    };
    if let (Kind::Single, Some(g)) = (kind, j.get("distributed_type")) {
        j.line("ranks", 1, g.from());
    }
    for id in ["distributed_type", "use_fsdp", "multi_gpu"] {
        match j.get(id) {
            Some(g) if id != "distributed_type" && g.is_off() => j.nothing(id, "it is off"),
            _ => j.say(id, verdict.clone()),
        }
    }
    Ok(kind)
}

/// `parallelism_config`: replicas of shard groups.
fn mesh(j: &mut Judge, kind: Kind, ranks: &mut Option<u64>) -> Result<Option<u64>, RecipeError> {
    let size = |j: &Judge, id: &str| j.get(id).map(|g| g.count(1, u64::from(MAX_RANKS))).transpose();
    let (replicas, shard) = (size(j, "parallel.dp_replicate_size")?, size(j, "parallel.dp_shard_size")?);
    let Some(g) = j.get("parallel.dp_shard_size").or(j.get("parallel.dp_replicate_size")) else {
        return Ok(None);
    };
    let (r, s) = (replicas.unwrap_or(1), shard.unwrap_or(1));
    if r > 1 && s == 1 {
        return Err(g.bad(
            "replicas without shards are data parallel, which accelerate refuses here: write `distributed_type: \
             MULTI_GPU`, or a dp_shard_size above 1",
        ));
    }
    if let Some(n) = *ranks
        && n != r * s
    {
        return Err(
            g.bad(format!("{r} replicas of {s} shards are {} ranks, and num_processes says {n}", r * s))
        );
    }
    if kind == Kind::Sharded && !fsdp::is_second(j)? {
        if ranks.is_none() {
            j.line("ranks", r * s, g.from());
        }
        let why = "FSDP1 ignores the mesh: fsdp_version: 2 reads it; under FSDP1 HYBRID_SHARD has replicas";
        if r > 1 {
            j.lost("parallel.dp_replicate_size", why);
        }
        for id in ["parallel.dp_replicate_size", "parallel.dp_shard_size"] {
            j.nothing(id, why);
        }
        *ranks = Some(r * s);
        return Ok(None);
    }
    *ranks = Some(r * s);
    Ok(Some(s).filter(|_| r > 1))
}

fn device(j: &mut Judge) -> Result<(), RecipeError> {
    if let Some(g) = j.get("use_cpu") {
        if g.flag()? {
            j.used("use_cpu", "device", "cpu");
        } else {
            j.nothing(
                "use_cpu",
                "a recipe leaves the device open: say --device cuda, or plan with --card NAME",
            );
        }
    }
    j.nothing("compute_environment", "a run computes where it is started");
    Ok(())
}
