//! What refusals name, against plans of many combinations of options, in full.

use super::*;
use crate::change::Change;
use crate::device::Device;
use crate::sizes::Sizes;
use crate::testing::bytes;
use ambitus_compile::passes::policy::Blocks;
use ambitus_families::console::Silent;
use ambitus_families::family::ModelDir;
use ambitus_families::small;
use ambitus_recipe::recipe::{DeviceChoice, MicroBatch, Offload, OptimizerChoice, Precision, Recipe};
use arbtest::arbitrary::Unstructured;

/// A recipe that is asked of a processor.
struct Case {
    recipe: Recipe,
    model: ModelDir,
    data: Data,
    device: Device,
}

impl Case {
    fn new(model: ModelDir, clips: &str, change: impl FnOnce(&mut Recipe)) -> Case {
        let mut recipe = Recipe::without_data("a");
        recipe.ema = Some(true.into());
        change(&mut recipe);
        let device = Device::find(DeviceChoice::Cpu, 1).expect("every machine has a processor");
        let assume = clips.parse().expect("clips");
        let data = Data::plan(&recipe, &model, &device, (Some(&assume), false), &mut Silent).expect("clips");
        Case { recipe, model, data, device }
    }

    fn of_frames() -> Case {
        Case::new(small::of_frames(96), "11x0.5s,1x2s", |recipe| recipe.sample = None)
    }

    fn of_tokens() -> Case {
        Case::new(small::of_tokens(64, 2048), "9x100t,2x350t", |_| {})
    }

    fn asked(&self, recipe: &Recipe, data: &Data, budget: u64) -> Option<Asked> {
        let recipe = recipe.clone().settled(&self.model.defaults());
        let sizes = Sizes::of(&recipe, &*self.model.model, data).ok()?;
        Asked::new(&recipe, &self.model, &sizes, &self.device, budget).ok()
    }

    /// Returns the peak of a full plan with these options, as a command with them is planned.
    fn peak(&self, change: &Change) -> Option<u64> {
        let mut recipe = self.recipe.clone();
        change.to_recipe(&mut recipe);
        recipe.validate().ok()?;
        let shorter = change
            .limit
            .map(|limit| self.data.up_to(&limit, &recipe, &*self.model.model))
            .transpose()
            .ok()?;
        let asked = self.asked(&recipe, shorter.as_ref().unwrap_or(&self.data), u64::MAX)?;
        RunPlan::new(asked.shape, self.device.target()).ok().map(|plan| plan.peak_bytes)
    }

    fn named(&self, budget: u64) -> (Vec<Named>, Named) {
        let asked = self.asked(&self.recipe, &self.data, budget).expect("it can be asked for");
        let dims = dims::dims(&asked, &self.data, &self.device, &Origins::new());
        let Case { model, data, device, .. } = self;
        let proposals = Proposals { model, asked: &asked, data, device, budget };
        let (changes, least) = proposals.all(dims);
        (changes, least.expect("some combination can be planned"))
    }

    /// Returns the smallest that the recipe itself is accepted with.
    fn least_budget(&self) -> u64 {
        let asked = self.asked(&self.recipe, &self.data, 1 << 40).expect("it can be asked for");
        asked.least_budget(&self.device).expect("plans")
    }

    /// Any options of the space; the first few of each are the ones that save most.
    fn draw(&self, u: &mut Unstructured<'_>) -> arbtest::arbitrary::Result<Change> {
        let all = [OptimizerChoice::AdamW8bit, OptimizerChoice::AdamWBf16, OptimizerChoice::AdamW];
        let precisions = [Precision::Bf16Pure, Precision::Fp32, Precision::Bf16Mixed, Precision::Fp16Mixed];
        let mut offload = dims::offload(u.int_in_range(0..=31)?);
        if offload.pass().is_none() {
            offload = Offload { optimizer: 0.5, ..offload };
        }
        let again = [Blocks::All, Blocks::None, Blocks::Cheapest { values: 9, blocks: 0 }];
        let longest = self.data.rows.iter().copied().max().map(|n| n as usize);
        let limit = if u.ratio(1, 2)? { self.data.limits.last().copied() } else { None };
        let longest =
            if limit.is_some() { self.data.rows.iter().copied().min().map(|n| n as usize) } else { longest };
        Ok(Change {
            optimizer: Some(all[u.int_in_range(0..=5)? / 2]),
            no_samples: false,
            no_average: u.ratio(3, 4)?,
            precision: Some(precisions[u.int_in_range(0..=7)? / 2]),
            in_backward: u.ratio(1, 4)?,
            lora: if u.ratio(2, 3)? { Some(8) } else { None },
            limit,
            checkpoint: Some(u.choose(&again)?.clone()),
            offload: if u.ratio(3, 4)? { Some(offload) } else { None },
            micro_batch: if u.ratio(3, 4)? { longest } else { None },
        })
    }
}

#[test]
fn what_fits_is_named_and_else_the_least() {
    for case in [Case::of_frames(), Case::of_tokens()] {
        let mut plans: Vec<u64> = Vec::new();
        for seed in 0..400 {
            let bytes = bytes(seed);
            let change = case.draw(&mut Unstructured::new(&bytes)).expect("bytes enough");
            plans.extend(case.peak(&change));
        }
        let brute = plans.iter().copied().min().expect("some can be planned");
        assert!(plans.len() > 200, "{}", plans.len());
        let (changes, least) = case.named(brute - brute / 8);
        assert!(changes.is_empty() && least.peak_bytes > brute - brute / 8, "{changes:?}");
        assert!(least.peak_bytes as f64 <= 1.02 * brute as f64, "{least:?}, and {brute} was found");
        let most = case.least_budget();
        for share in [0, 1, 3, 6, 9] {
            let budget = least.peak_bytes + (most - most / 100 - least.peak_bytes) * share / 9;
            let (changes, again) = case.named(budget);
            assert_eq!(again.peak_bytes, least.peak_bytes, "the least does not depend on the budget");
            assert!(!changes.is_empty(), "{budget} bytes: {} fits", least.options);
            for c in &changes {
                assert!(c.peak_bytes <= budget, "{budget} bytes: {c:?}");
            }
            assert!(changes.is_sorted_by_key(|c| c.numerics), "{changes:?}");
        }
    }
}

/// A run's search has the budget, or 64 MiB; a refusal 256 MiB.
#[test]
fn a_refusal_tries_what_a_search_has_no_room_for() {
    for (blocks, budget, long) in
        [(3, 63, [false; 2]), (30, 63, [true, false]), (30, 1 << 20, [false; 2]), (400, 1 << 20, [true; 2])]
    {
        let case = Case::new(small::of_blocks(blocks, 64), "2x0.5s", |recipe| recipe.sample = None);
        let budget = budget << 20;
        let asked = case.asked(&case.recipe, &case.data, budget).expect("it can be asked for");
        assert_eq!([asked.is_long, asked.is_long_to_refuse(budget)], long, "{blocks} blocks");
    }
}

/// The order that decision 0018 gives.
#[test]
fn lesser_changes_are_named_first() {
    let case = Case::of_frames();
    let most = case.least_budget();
    let (changes, _) = case.named(most - most / 100);
    let words: Vec<&str> = changes.iter().map(|c| c.options.as_str()).collect();
    let at =
        |word: &str| words.iter().position(|w| *w == word).unwrap_or_else(|| panic!("{word}: {words:?}"));
    assert!(at("--optimizer adamw-bf16") < at("--no-ema"), "{words:?}");
    assert!(at("--no-ema") < at("--precision bf16-pure"), "{words:?}");
    assert_eq!(changes[0].numerics, Numerics::Exact, "{words:?}");
}

#[test]
fn what_a_recipe_fixes_may_be_changed() {
    let fixed = |recipe: &mut Recipe| {
        recipe.checkpoint = "none".parse().ok();
        recipe.micro_batch = MicroBatch { frames: Some(600), ..MicroBatch::default() };
        recipe.offload = Some(Offload::default());
        recipe.precision = Some(Precision::Bf16Mixed);
    };
    let mut case = Case::of_frames();
    fixed(&mut case.recipe);
    let least = case.named(1 << 20).1;
    for word in ["--checkpoint", "--micro-batch", "--offload"] {
        assert!(least.options.contains(word), "{least:?}");
    }
    // Of a model as small as this one programs are most of what the least takes, and another precision's are not shorter.
    let fewer = case.named(case.least_budget() / 20 * 17).0;
    assert!(fewer.iter().any(|c| c.options.contains("--precision")), "{fewer:?}");
    let (changes, _) = case.named(least.peak_bytes + 1000);
    assert!(changes.iter().all(|c| c.peak_bytes <= least.peak_bytes + 1000) && !changes.is_empty());
}

#[test]
fn a_smallest_budget_is_accepted_and_less_is_not() {
    for mut case in [Case::of_frames(), Case::of_tokens()] {
        for level in [ambitus_recipe::recipe::Level::Reordered, ambitus_recipe::recipe::Level::Changed] {
            case.recipe.numerics = level;
            let asked = case.asked(&case.recipe, &case.data, 1 << 40).expect("it can be asked for");
            let least = case.least_budget();
            let fits = |budget: u64| {
                let found = asked.on(&case.device, budget).and_then(|a| a.search(&case.device, budget));
                found.expect("plans").fits()
            };
            assert!(fits(least) && !fits(least - least / 100), "{least}");
        }
    }
}
