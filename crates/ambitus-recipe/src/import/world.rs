//! The number of ranks, and their kind.

use super::fsdp;
use super::given::Given;
use super::judge::{Judge, conflict};
use crate::near::nearest;
use crate::recipe::tree::Node;
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

/// The sizes of `parallelism_config`.
const SIZES: [&str; 2] = ["parallel.dp_shard_size", "parallel.dp_replicate_size"];
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
            j.ask(
                "num_processes",
                Some("ranks"),
                "-1 means that the launch command says it: write `ranks:` in the recipe",
            );
        } else {
            ranks = Some(g.count(1, most)?);
        }
    }
    if let Some(g) = j.get("nproc_per_node") {
        match g.whole() {
            _ if let Some(m) = j.code(&["num_machines"]) => {
                let question =
                    format!("{} is code, and ranks are the product: write `ranks:` in the recipe", m.full());
                j.ask("nproc_per_node", Some("ranks"), &question);
            }
            // `gpu`, `cpu` and `auto` count what the machine has.
            Err(_) => {
                j.ask("nproc_per_node", Some("ranks"), "depends on the machine: write `ranks:` in the recipe")
            }
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
        for id in ["num_processes", "nproc_per_node", "parallel.dp_replicate_size", "parallel.dp_shard_size"]
        {
            // Of a hybrid it is the group.
            if id != "parallel.dp_shard_size" || shard.is_none() {
                j.used(id, "ranks", n);
            }
        }
    }
    let of_machine = ranks.filter(|_| j.code(&["num_machines"]).is_none()).map(|n| n / machines.unwrap_or(1));
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

/// Refuses what another engine would have to run.
fn refuse_others(j: &mut Judge) -> Result<(), RecipeError> {
    const INSTEAD: &str = "ZeRO-3 is what `distributed_type: FSDP` with `fsdp_sharding_strategy: FULL_SHARD` does, ZeRO-2 \
                           what SHARD_GRAD_OP does, offload_optimizer and offload_param are `fsdp_offload_params: true`: \
                           write these in place of it";
    // `fp16: {enabled: true}` is DeepSpeed's too; of others it is a switch.
    let enabled =
        |g: &&Given| matches!(&g.node, Node::Map(of) if of.iter().any(|(k, _)| k.name == "enabled"));
    let switch = |id| j.get(id).filter(enabled);
    let own =
        j.get("zero").or_else(|| j.get("zero_batch")).or_else(|| switch("fp16")).or_else(|| switch("bf16"));
    if let Some(g) = own.or(j.get("deepspeed").filter(|g| !g.is_off())) {
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
                    "Megatron-LM splits single layers over ranks (tensor parallel), which is not supported: write \
                     `distributed_type: FSDP` with `fsdp_sharding_strategy: FULL_SHARD`, which divides the same bytes",
                ));
            }
            "XLA" | "TPU" => {
                return Err(g.bad("TPUs are not supported: FSDP, MULTI_GPU, MULTI_CPU or NO are read"));
            }
            k if TYPES.contains(&k) => {}
            k if k.starts_with("MULTI_") => {
                return Err(g.bad(format!(
                    "{k} is a device that is not supported; MULTI_GPU means the same on NVIDIA GPUs"
                )));
            }
            k => {
                let near = nearest(k, TYPES.iter().copied()).map(|n| format!("; {n} is nearest"));
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
        return Err(g.bad("Megatron-LM's tensor parallelism is not supported: FSDP is read (`fsdp_config`)"));
    }
    j.nothing("megatron", "distributed_type is not MEGATRON_LM");
    j.nothing("deepspeed", "it is off");
    j.nothing("deepspeed_config", "distributed_type is not DEEPSPEED");
    if let Some(g) = j.get("model_parallel") {
        // `tp_config` is a map that holds `tp_size`.
        let one = match &g.node {
            Node::Map(_) => false,
            _ => g.count(1, u64::from(MAX_RANKS))? == 1,
        };
        if !one {
            return Err(g.bad(
                "tensor, context and sequence parallelism are not supported: put these ranks into sharding \
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
    let ranks = ["num_processes", "nproc_per_node"].iter().any(|id| j.get(id).is_some())
        || SIZES.iter().any(|id| j.get(id).is_some_and(|g| g.whole() != Ok(1)));
    let written = j.get("distributed_type").map(|g| g.text()).transpose()?.map(|t| t.to_ascii_uppercase());
    let kind = match written.as_deref().map(|t| t.rsplit('.').next().unwrap_or_default()) {
        Some("NO") => Kind::Single,
        Some("FSDP") => Kind::Sharded,
        Some(_) if fsdp => Kind::Sharded,
        Some(_) => Kind::Replicated,
        None if fsdp || (arguments.is_none() && j.any("fsdp.")) => Kind::Sharded,
        None if multi || ranks => Kind::Replicated,
        None => Kind::Open,
    };
    let (key, said) = match kind {
        Kind::Single => ("ranks", "ranks: 1"),
        Kind::Sharded => ("sharding.strategy", "sharding, as the FSDP keys say"),
        _ => ("sharding.strategy", "sharding.strategy: none"),
    };
    if let (Kind::Single, Some(g)) = (kind, j.get("distributed_type")) {
        j.line("ranks", 1, g.from());
    }
    if kind == Kind::Sharded && written.as_deref().is_some_and(|t| !t.ends_with("FSDP")) {
        j.nothing("distributed_type", "`fsdp` in the arguments shards, which goes before it");
    }
    for id in ["distributed_type", "use_fsdp", "multi_gpu"] {
        match j.get(id) {
            Some(g) if id != "distributed_type" && g.is_off() => j.nothing(id, "it is off"),
            _ => j.says(id, key, said.to_owned()),
        }
    }
    Ok(kind)
}

/// Reads `parallelism_config`: replicas of shard groups, which FSDP2 makes. Elsewhere accelerate makes none of it: DDP copies
/// the whole model to each of as many ranks.
fn mesh(j: &mut Judge, kind: Kind, ranks: &mut Option<u64>) -> Result<Option<u64>, RecipeError> {
    let size = |id: &str| j.get(id).map(|g| g.count(1, u64::from(MAX_RANKS))).transpose();
    let (shard, replicas) = (size(SIZES[0])?, size(SIZES[1])?);
    let Some(g) = SIZES.iter().find_map(|id| j.get(id)) else { return Ok(None) };
    if let Some(code) = j.code(&SIZES) {
        let question =
            format!("{} is code, and ranks are the product: write `ranks:` in the recipe", code.full());
        SIZES.iter().for_each(|id| j.ask(id, Some("ranks"), &question));
        return Ok(None);
    }
    let (r, s) = (replicas.unwrap_or(1), shard.unwrap_or(1));
    let second = kind == Kind::Sharded && fsdp::is_second(j)?;
    if second && r > 1 && s == 1 {
        return Err(g.bad(
            "replicas without shards are data parallel, which accelerate refuses here: write `distributed_type: \
             MULTI_GPU`, or a dp_shard_size above 1",
        ));
    }
    if r * s == 1 && !second {
        SIZES.iter().for_each(|id| j.nothing(id, "1 is none"));
        return Ok(None);
    }
    if let Some(n) = *ranks
        && n != r * s
    {
        return Err(
            g.bad(format!("{r} replicas of {s} shards are {} ranks, and num_processes says {n}", r * s))
        );
    }
    let why = match kind {
        Kind::Sharded if second => {
            *ranks = Some(r * s);
            return Ok(Some(s).filter(|_| r > 1));
        }
        Kind::Single => "distributed_type: NO starts one process",
        Kind::Sharded => {
            "FSDP1 ignores the mesh: fsdp_version: 2 reads it; under FSDP1 HYBRID_SHARD has replicas"
        }
        _ => {
            "without FSDP every rank holds the whole model, whatever the mesh: FSDP with fsdp_version: 2 reads it"
        }
    };
    for id in SIZES {
        // As many as there must be for such a mesh.
        if ranks.is_none() && kind != Kind::Single {
            j.says(id, "ranks", format!("ranks: {}, and nothing more: {why}", r * s));
            j.line("ranks", r * s, g.from());
        }
        j.nothing(id, why);
    }
    let lost = if kind == Kind::Sharded { (SIZES[1], r) } else { (SIZES[0], s) };
    if let (Some(g), (_, 2..)) = (j.get(lost.0), lost) {
        j.note(None, format!("{}: not taken over: {why}", g.full()));
    }
    *ranks = Some(r * s);
    Ok(None)
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
