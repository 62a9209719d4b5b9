//! `ambitus plan`: a plan, or tables of plans, for people and for programs.

use crate::args::PlanArgs;
use crate::commands::{Result, options, recipe, refused, without_options};
use crate::terminal::{self, Terminal, json};
use ambitus_families::ALL;
use ambitus_families::error::RunError;
use ambitus_plan::cards::{Card, Cards};
use ambitus_plan::cluster::Cluster;
use ambitus_plan::device::Device;
use ambitus_plan::dump::Timings;
use ambitus_plan::refusal::require_fit;
use ambitus_plan::report::cards::Tiers;
use ambitus_plan::report::placements::Placements;
use ambitus_plan::report::strategies::Strategies;
use ambitus_plan::resolve::{self, Purpose};
use ambitus_plan::resolved::Resolved;
use ambitus_plan::search;
use ambitus_recipe::rates::LearningRate;
use ambitus_recipe::recipe::{Origins, Recipe};
use ambitus_train::run::stages;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Kinds of cards in a table of `--scaling`: each is a column, planned for many times.
const MOST_KINDS: usize = 16;
/// Learning rates at each end of a run that `--json` has.
const SHOWN_RATES: u64 = 100;

pub fn run(a: &PlanArgs) -> Result<()> {
    let mut a = a.clone();
    // `--cards RECIPE`: the option's value is optional.
    if a.run.recipe.is_none() && a.cards.as_ref().is_some_and(|text| Path::new(text).extension().is_some()) {
        a.run.recipe = a.cards.replace(String::new()).map(PathBuf::from);
    }
    let a = &a;
    let cluster = cluster(a)?;
    let on = On::of(a, cluster.as_ref())?;
    require_one_table(a, &on)?;
    if a.cards.is_some() && cluster.is_none() {
        return plan_cards(a);
    }
    let mut console = Terminal::new();
    let (mut whole, origins) = planned(a)?;
    if let Some(cluster) = &cluster {
        take_ranks(&mut whole, cluster)?;
    }
    let (mut plans, mut fits) = (Vec::new(), Ok(()));
    for (i, (r, origins)) in parts(&whole, &origins).into_iter().enumerate() {
        let resolved = on.resolve(a, r, &origins, &mut console);
        let resolved = resolved.inspect_err(|e| refused(e, a.run.json)).map_err(|e| of_part(&whole, i, e))?;
        let timings = passes(a, (!whole.stages.is_empty()).then_some(i + 1), &resolved)?;
        let mut tables = placements(a, cluster.as_ref(), on.card(), &resolved)?;
        if a.lattice {
            let all = resolved.asked.lattice(&resolved.device, resolved.budget)?;
            let lines = search::lines(&all).join("\n");
            tables.push((
                "lattice",
                format!("every combination, by predicted time\n{lines}"),
                serde_json::json!(all),
            ));
        }
        let fit = if a.run.json {
            let fit = require_fit(&resolved);
            let mut plan = as_json(&resolved, &fit, on.card(), tables)?;
            if let Some(timings) = timings {
                plan["timings"] = serde_json::json!(timings);
            }
            plans.push(plan);
            fit
        } else {
            head(&whole, i);
            show(&resolved, a.explain)?;
            tables.iter().for_each(|(name, table, _)| terminal::result(&format!("{name}: {table}")));
            if let Some(timings) = timings {
                terminal::result(&format!("what passes took:\n{timings}"));
            }
            require_fit(&resolved)
        };
        fits = fits.and_then(|()| fit.map_err(|e| of_part(&whole, i, e)));
    }
    if a.run.json {
        match plans.as_slice() {
            [plan] if whole.stages.is_empty() => json(plan),
            _ => json(&stages::whole_plan(&whole, plans)),
        }
    }
    fits
}

/// What is planned for.
enum On {
    /// The recipe's device.
    Here,
    /// This machine's processor, with rates that are measured now.
    Processor,
    /// A card of the table.
    Card(Box<Card>),
    /// Several of them.
    Cluster(Box<Cluster>),
}

impl On {
    fn of(a: &PlanArgs, cluster: Option<&Cluster>) -> Result<On> {
        Ok(match (&a.card, cluster) {
            (_, Some(cluster)) => On::Cluster(Box::new(cluster.clone())),
            (Some(name), _) if name.eq_ignore_ascii_case("cpu") => On::Processor,
            (Some(name), _) => On::Card(Box::new(Cards::load(a.cards_file.as_deref())?.find(name)?.clone())),
            (None, None) => On::Here,
        })
    }

    fn card(&self) -> Option<&Card> {
        match self {
            On::Card(card) => Some(card),
            On::Cluster(cluster) => Some(&cluster.card),
            On::Here | On::Processor => None,
        }
    }

    fn resolve(
        &self,
        a: &PlanArgs,
        r: Recipe,
        origins: &Origins,
        console: &mut Terminal,
    ) -> Result<Resolved> {
        match self {
            On::Here => resolve::resolve(ALL, r, origins, Purpose::Plan(a.assume.as_ref()), console),
            On::Processor => {
                let threads = resolve::threads_of_rank(&r);
                plan_for(a, (r, origins), &|_| Device::calibrated_cpu(threads), console)
            }
            On::Card(card) => {
                plan_for(a, (r, origins), &|threads| Ok(Device::for_card(card, threads)), console)
            }
            On::Cluster(cluster) => {
                let one = |threads| Ok(Device::for_cards(&cluster.card, cluster.links(), threads));
                plan_for(a, (r, origins), &one, console)
            }
        }
    }
}

/// Refuses tables of what is not named.
fn require_one_table(a: &PlanArgs, on: &On) -> Result<()> {
    if a.scaling.is_some() && on.card().is_none() {
        return Err(RunError::Usage(
            "--scaling: needs --card NAME, --cards NxNAME or --cluster FILE, of cards.toml".to_owned(),
        ));
    }
    if a.scaling.as_ref().is_some_and(|names| names.split(',').count() > MOST_KINDS) {
        return Err(RunError::Usage(format!("--scaling: more than {MOST_KINDS} kinds of GPUs: name fewer")));
    }
    if a.cards.is_some() && !matches!(on, On::Cluster(_)) && (a.dump.is_some() || a.timings || a.lattice) {
        return Err(RunError::Usage(
            "--dump, --timings, --lattice: take one plan; name one GPU with --card NAME".to_owned(),
        ));
    }
    Ok(())
}

/// Sets the recipe's ranks to the number of cards.
fn take_ranks(whole: &mut Recipe, cluster: &Cluster) -> Result<()> {
    let cards = cluster.ranks() as u32;
    if whole.ranks.is_some_and(|ranks| ranks != cards) {
        return Err(RunError::Usage(format!(
            "ranks: the recipe has {}, these are {cards} GPUs: give as many, or change ranks (--ranks; --accelerate may have \
             laid it over the recipe)",
            whole.ranks()
        )));
    }
    whole.ranks = Some(cards);
    Ok(())
}

/// Returns a plan for programs.
fn as_json(
    resolved: &Resolved,
    fit: &Result<()>,
    card: Option<&Card>,
    tables: Vec<(&'static str, String, Value)>,
) -> Result<Value> {
    let mut plan = resolved.json();
    let said = fit.as_ref().err().and_then(RunError::refusal);
    if let (Some(Value::Object(said)), Some(plan)) = (said, plan.as_object_mut()) {
        plan.extend(said);
    }
    plan["minimum_budget_bytes"] = resolved.asked.least_budget(&resolved.device)?.into();
    plan["learning_rates"] = learning_rates(&resolved.rates[0]);
    let players = resolved.model.model.players();
    if players.len() > 1 {
        let of_players = players.iter().zip(&resolved.rates);
        let of_players = of_players.map(|(p, rate)| (p.name.to_owned(), learning_rates(rate)));
        plan["learning_rates_of_players"] = of_players.collect::<serde_json::Map<_, _>>().into();
    }
    plan["choices"] = serde_json::json!(resolved.choices);
    plan["assumed"] = serde_json::json!(resolved.data.assumed().map(|(what, why)| format!("{what} ({why})")));
    plan["candidates"] = serde_json::json!(resolved.candidates);
    plan["search_seconds"] = serde_json::json!(resolved.search_seconds);
    let [micro_batch, clip] = resolved.largest()?;
    let unit = resolved.plan.shape.model.rows().unit;
    plan[format!("largest_micro_batch_{unit}")] = serde_json::json!(micro_batch);
    plan[format!("longest_clip_{unit}")] = serde_json::json!(clip);
    plan["speech"] = serde_json::json!(resolved.speaking()?);
    if let Some(card) = card {
        plan["card"] = serde_json::json!(card);
    }
    for (name, _, table) in tables {
        plan[name] = table;
    }
    Ok(plan)
}

/// Writes what passes leave, and says what they take, where that is asked for.
fn passes(a: &PlanArgs, stage: Option<usize>, r: &Resolved) -> Result<Option<Timings>> {
    if let Some(folder) = &a.dump {
        let folder = stage.map_or_else(|| folder.clone(), |n| folder.join(format!("stage-{n}")));
        r.plan.dump(&folder, r.device.target())?;
    }
    a.timings.then(|| r.plan.timings(r.device.target())).transpose()
}

/// Returns the rates of the first and the last updates.
fn learning_rates(rate: &LearningRate) -> Value {
    let of = |updates: std::ops::Range<u64>| updates.map(|i| rate.at(i)).collect::<Vec<f64>>();
    let n = rate.total.min(SHOWN_RATES);
    serde_json::json!({ "first": of(0..n), "last": of(rate.total - n..rate.total) })
}

/// Returns the cards that are planned for together.
fn cluster(a: &PlanArgs) -> Result<Option<Cluster>> {
    let known = || Cards::load(a.cards_file.as_deref());
    match (&a.cluster, &a.cards) {
        (Some(file), _) => Cluster::read(file, &known()?).map(Some),
        (_, Some(text)) if !text.is_empty() => match Cluster::parse(text, &known()?) {
            Some(cluster) => cluster.map(Some),
            None => Err(RunError::Usage(format!(
                "--cards {text}: write several GPUs of one kind as 4xa800; for one of a kind there is --card {text}"
            ))),
        },
        _ => Ok(None),
    }
}

/// A name, and what it is for people and for programs.
type Table = (&'static str, String, Value);

/// Returns what is shown in addition to a plan for several cards.
fn placements(
    a: &PlanArgs,
    cluster: Option<&Cluster>,
    card: Option<&Card>,
    r: &Resolved,
) -> Result<Vec<Table>> {
    let shape = &r.plan.shape;
    let mut out = Vec::new();
    if let Some(cluster) = cluster {
        let table = Strategies::of(cluster, shape, r.threads)?;
        out.push(("strategies", table.to_string(), serde_json::json!(table)));
        if cluster.ranks() > 1 {
            let table = Placements::of(cluster, shape, r.threads)?;
            out.push(("placements", table.to_string(), serde_json::json!(table)));
        }
    }
    if let (Some(names), Some(card)) = (&a.scaling, card) {
        let usual = Cluster::usual(card);
        let usual = match cluster {
            Some(c) if a.cluster.is_some() => {
                Cluster { network_gb_per_s: c.network_gb_per_s.or(usual.network_gb_per_s), ..c.clone() }
            }
            _ => usual,
        };
        let known = Cards::load(a.cards_file.as_deref())?;
        let mut clusters = Vec::new();
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let card = known.find(name)?.clone();
            let precision = r.asked.precision_on(&Device::for_card(&card, r.threads));
            clusters.push((Cluster { card, ..usual.clone() }, precision));
        }
        if clusters.is_empty() {
            clusters.push((usual, shape.session.precision));
        }
        let table = Strategies::scaling(clusters, shape, r.threads)?;
        out.push(("scaling", table.to_string(), serde_json::json!(table)));
    }
    Ok(out)
}

/// Returns the recipe of a plan: `--accelerate` goes before the file, the other options before `--accelerate`.
fn planned(a: &PlanArgs) -> Result<(Recipe, Origins)> {
    let (whole, origins) = recipe(&a.run, true)?;
    let Some(file) = &a.accelerate else { return Ok((whole, origins)) };
    let (read, _) = without_options(&a.run, true)?;
    let whole = crate::import::lay_over(&read, file, |r| drop(options(&a.run, r)))?;
    Ok((whole, origins))
}

/// Returns the runs that a recipe is: its stages, or itself. With who said their values.
fn parts(whole: &Recipe, origins: &Origins) -> Vec<(Recipe, Origins)> {
    match whole.stages.len() {
        0 => vec![(whole.clone(), origins.clone())],
        n => (0..n).map(|i| (whole.stage(i), origins.stage(i))).collect(),
    }
}

/// Prints a heading for a stage.
fn head(whole: &Recipe, part: usize) {
    if !whole.stages.is_empty() {
        terminal::result(&format!("{}:", stages::label(whole, part)));
    }
}

fn of_part(whole: &Recipe, part: usize, e: RunError) -> RunError {
    if whole.stages.is_empty() { e } else { stages::in_stage(whole, part, e) }
}

/// Prints a plan for people.
fn show(resolved: &Resolved, explain: bool) -> Result<()> {
    let (plan, largest) = std::thread::scope(|scope| {
        let largest = scope.spawn(|| resolved.describe_largest());
        (resolved.describe(), largest.join().unwrap_or_else(|why| std::panic::resume_unwind(why)))
    });
    for line in plan?.into_iter().chain(largest?).chain(resolved.describe_speaking()?) {
        terminal::result(&line);
    }
    for c in &resolved.choices {
        terminal::result(&format!("  {} = {} ({})", c.key, c.value, c.from));
    }
    if explain {
        terminal::result("what was tried, by predicted time:");
        for line in search::explain(&resolved.candidates).into_iter().chain(resolved.describe_lion()?) {
            terminal::result(&line);
        }
    }
    Ok(())
}

/// Returns a recipe on another device. Its own `memory` is a size for its own device.
fn plan_for(
    a: &PlanArgs,
    (mut r, origins): (Recipe, &Origins),
    device: &dyn Fn(usize) -> Result<Device>,
    console: &mut Terminal,
) -> Result<Resolved> {
    if a.run.memory.is_none() {
        r.memory = None;
    }
    let device = device(resolve::threads(&r))?.with_ranks(r.ranks() as usize);
    resolve::resolve_on(ALL, r, origins, device, Purpose::Plan(a.assume.as_ref()), console)
}

/// Prints a row for every card.
fn plan_cards(a: &PlanArgs) -> Result<()> {
    let known = Cards::load(a.cards_file.as_deref())?;
    let cards = known.by_memory();
    let Some(first) = cards.first() else { return Ok(()) };
    let (whole, origins) = planned(a)?;
    let (mut tables, mut fits) = (Vec::new(), Ok(()));
    for (i, (r, origins)) in parts(&whole, &origins).into_iter().enumerate() {
        // Model, data and sizes are the same for all; a card that cannot compute it at all would be refused.
        let precision = r.precision.unwrap_or_default();
        let able = |card: &&&Card| Device::for_card(card, 1).require(precision).is_ok();
        let any = cards.iter().find(able).unwrap_or(first);
        let any = |threads| Ok(Device::for_card(any, threads));
        let r = plan_for(a, (r, &origins), &any, &mut Terminal::new()).map_err(|e| of_part(&whole, i, e))?;
        let tiers = Tiers::new(&r.model, &r.asked, &r.data, (&cards, r.threads))?;
        if !tiers.any() && fits.is_ok() {
            let none = RunError::does_not_fit(None, "does not fit on any of these GPUs");
            fits = Err(of_part(&whole, i, none));
        }
        if !a.run.json {
            head(&whole, i);
            terminal::result(&tiers.to_string());
        }
        tables.push(tiers);
    }
    match tables.as_slice() {
        _ if !a.run.json => {}
        [tiers] if whole.stages.is_empty() => json(tiers),
        _ => json(&serde_json::json!({ "stages": tables })),
    }
    fits
}
