//! FSDP's keys, of accelerate's file and of TrainingArguments, to `sharding`.
//!
//! What an absent key means is what `accelerate launch` exports for it: FSDP1, FULL_SHARD, no wrapping, no prefetch.

use super::given::Given;
use super::judge::{Judge, conflict};
use super::world::{Kind, World};
use super::{Origin, Verdict};
use crate::recipe::{RecipeError, Strategy};

const STRATEGIES: &[&str] =
    &["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"];
const POLICIES: &[&str] = &["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"];
const PREFETCHES: &[&str] = &["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"];
const STATE_DICTS: &[&str] = &["FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"];
/// accelerate's and torch's.
const MIN_NUM_PARAMS: u64 = 100_000_000;
const MOST_PARAMS: u64 = 1 << 48;

/// Every key of this file.
const KEYS: &[&str] = &[
    "fsdp",
    "fsdp_config",
    "fsdp.version",
    "fsdp.sharding_strategy",
    "fsdp.reshard_after_forward",
    "fsdp.auto_wrap_policy",
    "fsdp.min_num_params",
    "fsdp.transformer_layer_cls_to_wrap",
    "fsdp.backward_prefetch",
    "fsdp.forward_prefetch",
    "fsdp.offload_params",
    "fsdp.state_dict_type",
    "fsdp.activation_checkpointing",
    "fsdp.activation_checkpointing_offload",
    "fsdp.cpu_ram_efficient_loading",
    "fsdp.sync_module_states",
    "fsdp.ignored_modules",
];

/// # Errors
/// Values that FSDP does not have, and keys that contradict each other.
pub(super) fn sharding(j: &mut Judge, world: &World, origin: &Origin) -> Result<(), RecipeError> {
    values(j)?;
    match world.kind {
        Kind::Sharded => sharded(j, world, origin)?,
        Kind::Replicated => {
            let ranks = ["distributed_type", "num_processes", "nproc_per_node", "parallel.dp_shard_size"];
            if let Some(g) = ranks.into_iter().find_map(|id| j.get(id)) {
                j.line("sharding.strategy", Strategy::None, g.from());
            }
            KEYS.iter().for_each(|id| {
                j.nothing(id, "distributed_type is not FSDP: every rank holds the whole model there")
            });
        }
        Kind::Single => {
            let why = "distributed_type: NO starts one process, which has nothing to shard";
            KEYS.iter().for_each(|id| j.nothing(id, why));
        }
        Kind::Open => KEYS.iter().for_each(|id| j.nothing(id, "FSDP is off there")),
    }
    j.nothing(
        "num_machines",
        "how ranks lie on machines is the launcher's matter; only the group of a hybrid follows from it",
    );
    Ok(())
}

/// Returns whether FSDP2 reads the keys.
///
/// # Errors
/// Another version than 1 and 2.
pub(super) fn is_second(j: &Judge) -> Result<bool, RecipeError> {
    Ok(j.get("fsdp.version").map(|g| g.count(1, 2)).transpose()? == Some(2))
}

/// Refuses what is not a value of its key, even if the key has no effect.
fn values(j: &Judge) -> Result<(), RecipeError> {
    is_second(j)?;
    for (id, names) in [
        ("fsdp.sharding_strategy", STRATEGIES),
        ("fsdp.auto_wrap_policy", POLICIES),
        ("fsdp.backward_prefetch", PREFETCHES),
        ("fsdp.state_dict_type", STATE_DICTS),
    ] {
        j.all(id).try_for_each(|g| g.choice(names).map(drop))?;
    }
    for id in [
        "fsdp.forward_prefetch",
        "fsdp.offload_params",
        "fsdp.activation_checkpointing",
        "fsdp.activation_checkpointing_offload",
        "fsdp.cpu_ram_efficient_loading",
        "fsdp.sync_module_states",
    ] {
        j.all(id).try_for_each(|g| g.flag().map(drop))?;
    }
    j.all("fsdp.min_num_params").try_for_each(|g| g.count(0, MOST_PARAMS).map(drop))?;
    // FSDP1's is a strategy, FSDP2's a switch.
    let reshard = |g: &Given| g.flag().map(drop).or_else(|_| g.choice(STRATEGIES).map(drop));
    j.all("fsdp.reshard_after_forward").try_for_each(reshard)
}

fn sharded(j: &mut Judge, world: &World, origin: &Origin) -> Result<(), RecipeError> {
    let second = is_second(j)?;
    let reading =
        if second { "FSDP2's reading of the other keys" } else { "FSDP1's reading of the other keys" };
    j.say("fsdp.version", Verdict::Used(reading.to_owned()));
    let words = Words::read(j)?;
    let strategy = match second {
        true => strategy_2(j, world, origin, &words)?,
        false => strategy_1(j, &words)?,
    };
    let strategy = hybrid(j, world, strategy)?;
    if strategy == Strategy::None {
        let why = "NO_SHARD gathers nothing";
        for id in [
            "fsdp.auto_wrap_policy",
            "fsdp.min_num_params",
            "fsdp.transformer_layer_cls_to_wrap",
            "fsdp.backward_prefetch",
            "fsdp.forward_prefetch",
        ] {
            j.nothing(id, why);
        }
    } else {
        units(j, &words)?;
        prefetch(j, second)?;
    }
    beside(j, &words, origin)
}

/// What `fsdp="full_shard auto_wrap"` says.
#[derive(Default)]
struct Words<'a> {
    given: Option<&'a Given>,
    strategy: Option<Strategy>,
    auto_wrap: bool,
    offload: bool,
}

impl<'a> Words<'a> {
    fn read(j: &mut Judge<'a>) -> Result<Words<'a>, RecipeError> {
        let Some(g) = j.get("fsdp") else { return Ok(Words::default()) };
        let mut found = Words { given: Some(g), ..Words::default() };
        // `true` turns FSDP on and leaves the rest to `fsdp_config`.
        let words = if g.flag().is_ok() { Vec::new() } else { g.words()? };
        for word in &words {
            let strategy = STRATEGIES.iter().position(|s| s.eq_ignore_ascii_case(word)).map(named);
            match word.to_ascii_lowercase().as_str() {
                "auto_wrap" => found.auto_wrap = true,
                "offload" => found.offload = true,
                _ if strategy.is_some() && found.strategy.is_none_or(|s| Some(s) == strategy) => {
                    found.strategy = strategy;
                }
                _ if strategy.is_some() => return Err(g.bad("names two strategies: keep one of them")),
                _ => {
                    let known = STRATEGIES.iter().map(|s| s.to_ascii_lowercase());
                    let known: Vec<String> = known.chain(["auto_wrap".into(), "offload".into()]).collect();
                    let near = crate::near::nearest(word, known.iter().map(String::as_str));
                    let near = near.map(|n| format!("; {n} is nearest")).unwrap_or_default();
                    return Err(g.bad(format!(
                        "`{}` is not one of {}{near}",
                        crate::recipe::short(word),
                        known.join(", ")
                    )));
                }
            }
        }
        if words.len() == 1 && found.offload {
            return Err(g.bad("`offload` alone says nothing to offload from: write \"full_shard offload\""));
        }
        Ok(found)
    }
}

/// Returns a strategy by its place in [`STRATEGIES`].
fn named(index: usize) -> Strategy {
    [Strategy::Full, Strategy::GradOp, Strategy::None, Strategy::HybridFull, Strategy::HybridGradOp]
        [index.min(4)]
}

fn strategy_of(g: &Given) -> Result<Strategy, RecipeError> {
    let name = g.choice(STRATEGIES)?;
    Ok(STRATEGIES.iter().position(|s| *s == name).map_or(Strategy::Full, named))
}

fn strategy_1(j: &mut Judge, words: &Words) -> Result<Strategy, RecipeError> {
    let written = j.get("fsdp.sharding_strategy");
    let of_file = written.map(strategy_of).transpose()?;
    if let (Some(a), Some(b), Some(first), Some(second)) = (of_file, words.strategy, written, words.given)
        && a != b
    {
        return Err(conflict(first, second));
    }
    let strategy = of_file.or(words.strategy);
    // The launcher exports FULL_SHARD for an absent fsdp_sharding_strategy, and the plugin reads that first.
    if let Some(g) = j.get("fsdp.reshard_after_forward") {
        match g.flag() {
            Ok(_) => j.nothing("fsdp.reshard_after_forward", "under FSDP1 fsdp_sharding_strategy decides"),
            Err(_) => {
                let meant = strategy_of(g)?;
                let why = "under FSDP1 accelerate reads fsdp_sharding_strategy, whose default FULL_SHARD goes before it";
                if meant == strategy.unwrap_or_default() {
                    j.nothing("fsdp.reshard_after_forward", why);
                } else {
                    j.ask(
                        "fsdp.reshard_after_forward",
                        Some("sharding.strategy"),
                        &format!(
                            "{why}; if {} was meant, write `sharding: {{strategy: {meant}}}`",
                            g.shown()
                        ),
                    );
                }
            }
        }
    }
    let strategy = strategy.unwrap_or_default();
    if of_file.is_some() {
        j.used("fsdp.sharding_strategy", "sharding.strategy", strategy);
    } else if words.strategy.is_none() {
        let ids = ["fsdp", "fsdp.version", "fsdp.sharding_strategy"];
        j.absent(&ids, "sharding.strategy", strategy, "FULL_SHARD, accelerate's default");
    }
    if let Some(g) = words.given {
        j.line("sharding.strategy", strategy, g.from());
        j.says("fsdp", "sharding.strategy", format!("sharding.strategy: {strategy}"));
    }
    Ok(strategy)
}

fn strategy_2(j: &mut Judge, world: &World, origin: &Origin, words: &Words) -> Result<Strategy, RecipeError> {
    j.nothing("fsdp.sharding_strategy", "FSDP2 reads fsdp_reshard_after_forward instead");
    let written = j.get("fsdp.reshard_after_forward");
    let reshard = match written {
        Some(g) => g.flag()?,
        // accelerate's default is true, the Trainer passes false.
        None => origin.accelerate,
    };
    let strategy = match (reshard, world.shard.is_some()) {
        (true, false) => Strategy::Full,
        (false, false) => Strategy::GradOp,
        (true, true) => Strategy::HybridFull,
        (false, true) => Strategy::HybridGradOp,
    };
    match written {
        Some(_) => j.used("fsdp.reshard_after_forward", "sharding.strategy", strategy),
        None if j.code(&["fsdp.reshard_after_forward"]).is_some() => {}
        None if reshard => {
            j.line("sharding.strategy", strategy, "reshard_after_forward: true, accelerate's default")
        }
        None => {
            j.line(
                "sharding.strategy",
                strategy,
                "reshard_after_forward: false, the Trainer's default with version 2",
            );
            j.note(Some("sharding.strategy"), format!(
                "with FSDP2 and no reshard_after_forward, transformers' Trainer passes false (sharding.strategy: \
                 {strategy}), accelerate's own default is true: if full sharding was meant, write `strategy: full`"
            ));
        }
    }
    let said = format!("sharding.strategy: {strategy}, by FSDP2's reshard_after_forward");
    match (words.given, words.strategy) {
        // Of `full_shard` and an absent key the note above speaks.
        (Some(g), Some(word)) if word != strategy && (word != Strategy::Full || written.is_some()) => {
            let instead = match word {
                Strategy::HybridFull | Strategy::HybridGradOp => {
                    "give parallelism_config's dp_replicate_size".to_owned()
                }
                word => format!("write `sharding: {{strategy: {word}}}`"),
            };
            j.note(
                Some("sharding.strategy"),
                format!(
                    "{}: FSDP2 has no such strategy: reshard_after_forward, which is {reshard} here, decides \
                 (sharding.strategy: {strategy}); if the word was meant, {instead}",
                    g.full()
                ),
            );
            let said = format!("{said}; FSDP2 has no strategy by that word");
            j.says("fsdp", "sharding.strategy", said);
        }
        _ => j.says("fsdp", "sharding.strategy", said),
    }
    Ok(strategy)
}

fn hybrid(j: &mut Judge, world: &World, strategy: Strategy) -> Result<Strategy, RecipeError> {
    if !strategy.is_hybrid() {
        return Ok(strategy);
    }
    let group = world.shard.or(world.of_machine);
    let key = j.get("fsdp.sharding_strategy").or(j.get("fsdp")).or(j.get("parallel.dp_shard_size"));
    match (group, key) {
        (Some(group), _) if group >= 2 => {
            let id = if world.shard.is_some() { "parallel.dp_shard_size" } else { "num_machines" };
            match j.get(id) {
                Some(_) => j.used(id, "sharding.group", group),
                None => j.line("sharding.group", group, "one machine: all ranks are one group"),
            }
            Ok(strategy)
        }
        (Some(_), Some(g)) => Err(g.bad("a hybrid shards inside a machine, and there is one rank of each: NO_SHARD")),
        (_, Some(g)) => Err(g.bad(
            "a hybrid shards inside a machine: give num_processes and num_machines too, from which its group follows",
        )),
        _ => Ok(strategy),
    }
}

fn units(j: &mut Judge, words: &Words) -> Result<(), RecipeError> {
    let min = j.get("fsdp.min_num_params").map(|g| g.count(0, MOST_PARAMS)).transpose()?;
    let policy = j.get("fsdp.auto_wrap_policy").map(|g| g.choice(POLICIES)).transpose()?;
    // The Trainer's `auto_wrap` wraps by size where a size is given.
    let by_size = min.is_some_and(|n| n > 0) && j.get("fsdp.transformer_layer_cls_to_wrap").is_none();
    let from_words = match words.auto_wrap {
        true if by_size => Some("SIZE_BASED_WRAP"),
        true => Some("TRANSFORMER_BASED_WRAP"),
        false => None,
    };
    match policy.or(from_words) {
        Some("TRANSFORMER_BASED_WRAP") => {
            match (policy, words.given) {
                (None, Some(g)) => j.line("sharding.units", "block", format!("auto_wrap in {}", g.from())),
                _ => j.used("fsdp.auto_wrap_policy", "sharding.units", "block"),
            }
            j.nothing(
                "fsdp.min_num_params",
                "under TRANSFORMER_BASED_WRAP a unit is a block whatever its size; it counts for SIZE_BASED_WRAP only",
            );
            j.always(
                "fsdp.transformer_layer_cls_to_wrap",
                "a block is one of the model's own, whatever its class is called; embedding and head are units too",
            );
        }
        Some("SIZE_BASED_WRAP") if min != Some(0) => {
            let mut sizes = j.all("fsdp.min_num_params");
            if let Some(first) = sizes.next()
                && let Some(other) = sizes.find(|g| !g.same(first))
            {
                return Err(conflict(first, other));
            }
            let value = format!("{{min_params: {}}}", min.unwrap_or(MIN_NUM_PARAMS));
            match min {
                Some(_) => j.used("fsdp.min_num_params", "sharding.units", &value),
                None => {
                    let from = "SIZE_BASED_WRAP, accelerate's default size";
                    j.absent(&["fsdp.min_num_params"], "sharding.units", &value, from);
                }
            }
            j.says("fsdp.auto_wrap_policy", "sharding.units", format!("sharding.units: {value}"));
            j.nothing("fsdp.transformer_layer_cls_to_wrap", "SIZE_BASED_WRAP goes by size alone");
        }
        _ => {
            const POLICY: &[&str] = &["fsdp", "fsdp.auto_wrap_policy"];
            let why = match j.code(POLICY) {
                Some(g) => format!("{} is code, and says what is wrapped", g.full()),
                None => "without wrapping the original gathers the whole model at once; here it is gathered block by \
                         block: units change the order of sums (their last bits) and nothing else"
                    .to_owned(),
            };
            j.absent(
                POLICY,
                "sharding.units",
                "block",
                "nothing is wrapped there: the whole model would be gathered at once",
            );
            for id in ["fsdp.auto_wrap_policy", "fsdp.min_num_params", "fsdp.transformer_layer_cls_to_wrap"] {
                j.nothing(id, &why);
            }
        }
    }
    Ok(())
}

fn prefetch(j: &mut Judge, second: bool) -> Result<(), RecipeError> {
    let backward = j.get("fsdp.backward_prefetch").map(|g| g.choice(PREFETCHES)).transpose()?;
    let forward = j.get("fsdp.forward_prefetch").map(|g| g.flag()).transpose()?;
    if second {
        if let (Some(true), Some(g)) = (forward, j.get("fsdp.forward_prefetch")) {
            return Err(g.bad(
                "FSDP2 has no forward prefetch, and accelerate refuses it: remove it, or fsdp_version: 1",
            ));
        }
        j.line("sharding.backward_prefetch", "pre", "FSDP2 always prefetches so");
        j.nothing("fsdp.backward_prefetch", "FSDP2 always gathers the next unit before it computes one");
        j.nothing("fsdp.forward_prefetch", "FSDP2 has none");
        return Ok(());
    }
    match backward {
        None => {
            let ids = ["fsdp.version", "fsdp.backward_prefetch"];
            j.absent(&ids, "sharding.backward_prefetch", "none", "accelerate's default");
        }
        Some("BACKWARD_PRE") => j.used("fsdp.backward_prefetch", "sharding.backward_prefetch", "pre"),
        Some("BACKWARD_POST") => j.used("fsdp.backward_prefetch", "sharding.backward_prefetch", "post"),
        Some(_) => j.used("fsdp.backward_prefetch", "sharding.backward_prefetch", "none"),
    }
    if let Some(on) = forward {
        j.used("fsdp.forward_prefetch", "sharding.forward_prefetch", on);
    }
    Ok(())
}

/// Judges FSDP's keys that are not about sharding.
fn beside(j: &mut Judge, words: &Words, origin: &Origin) -> Result<(), RecipeError> {
    const OFFLOADED: &str = "{parameters: true, gradients: true, optimizer: true}";
    let offload = j.get("fsdp.offload_params").map(|g| g.flag()).transpose()?;
    match offload {
        Some(true) => j.used("fsdp.offload_params", "offload", OFFLOADED),
        _ => {
            if let Some(g) = words.given.filter(|_| words.offload) {
                j.line("offload", OFFLOADED, format!("offload in {}", g.from()));
            }
            let off = "nothing waits in the host's memory unless the budget needs it";
            j.default("fsdp.offload_params", "offload", off);
        }
    }
    if let Some(g) = j.get("fsdp.state_dict_type") {
        g.choice(STATE_DICTS)?;
    }
    j.nothing(
        "fsdp.state_dict_type",
        "each rank writes what it holds, nothing is gathered; any number of ranks reads it, and `ambitus export` writes what the original loads",
    );
    match j.get("fsdp.activation_checkpointing").map(|g| g.flag()).transpose()? {
        Some(true) => j.used("fsdp.activation_checkpointing", "checkpoint", "all"),
        _ => j.default(
            "fsdp.activation_checkpointing",
            "checkpoint",
            "recomputes only what the budget needs; `checkpoint: none` forbids it",
        ),
    }
    match j.get("fsdp.activation_checkpointing_offload").map(|g| g.flag()).transpose()? {
        Some(true) if words.offload || offload == Some(true) => {
            let all = OFFLOADED.replace('}', ", activations: blocks}");
            j.lines.iter_mut().filter(|l| l.key == "offload").for_each(|l| l.value.clone_from(&all));
            j.says(
                "fsdp.activation_checkpointing_offload",
                "offload.activations",
                "offload: {activations: blocks}".to_owned(),
            );
        }
        Some(true) => j.used("fsdp.activation_checkpointing_offload", "offload", "{activations: blocks}"),
        _ => j.default(
            "fsdp.activation_checkpointing_offload",
            "offload.activations",
            "activations stay unless the budget needs their place",
        ),
    }
    let on = |j: &Judge, id: &str| j.get(id).map(|g| g.flag()).transpose();
    let (lean, sync) = (on(j, "fsdp.cpu_ram_efficient_loading")?, on(j, "fsdp.sync_module_states")?);
    // accelerate's launcher turns both on unless told, the Trainer only the second.
    if lean.unwrap_or(origin.accelerate) && sync == Some(false) {
        let own = if lean.is_none() { " (accelerate's default)" } else { "" };
        j.note(None, format!(
            "fsdp_cpu_ram_efficient_loading: true{own} with fsdp_sync_module_states: false is refused by accelerate, under \
             FSDP2 too; here neither changes anything"
        ));
    }
    j.nothing(
        "fsdp.cpu_ram_efficient_loading",
        "each rank reads its own part of the weights, in bounded pieces to where they live: never a whole copy in the host's memory",
    );
    j.nothing(
        "fsdp.sync_module_states",
        "every rank starts from the same file and seed: there is nothing to send round",
    );
    j.lost("fsdp.ignored_modules", "every parameter is sharded; the numbers are the same");
    Ok(())
}
