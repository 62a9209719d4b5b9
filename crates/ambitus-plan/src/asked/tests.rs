use super::*;
use crate::budget::{RunPlan, phase};
use crate::data::Data;
use crate::testing::bytes;
use ambitus_families::console::Silent;
use ambitus_families::small;
use ambitus_recipe::recipe::{
    Batch, Checkpoint, DeviceChoice, Level, Lora, MicroBatch as Size, OptimizerChoice, Placement, Precision,
    Settled, Sharding, UpdateAt, Validation,
};
use ambitus_recipe::size::ByteSize;
use arbtest::arbitrary::{Result as Drawn, Unstructured};

fn models() -> [ModelDir; 2] {
    [small::of_frames(32), small::of_tokens(32, 64)]
}

/// Any options that are legal by themselves; together they may not be.
fn draw(u: &mut Unstructured<'_>) -> Drawn<Recipe> {
    let mut r = Recipe::new("a", "b");
    let some = |u: &mut Unstructured<'_>| u.ratio(1, 3);
    let text = |u: &mut Unstructured<'_>, all: &[&str]| Ok((*u.choose(all)?).to_owned());
    if some(u)? {
        let words = [
            "all",
            "none",
            "ema",
            "optimizer=0.5",
            "parameters,gradients",
            "activations=blocks",
            "ema,disk=x",
        ];
        r.offload = text(u, &words)?.parse().ok();
    }
    if some(u)? {
        r.host_memory = Some(ByteSize(1 << 30));
    }
    if some(u)? {
        r.checkpoint = text(u, &["none", "all", "1", "values:2+1"])?.parse::<Checkpoint>().ok();
    }
    if some(u)? {
        r.precision = Some(*u.choose(&Precision::ALL)?);
    }
    if some(u)? {
        r.optimizer = text(u, &["adamw", "adamw-bf16", "adamw-8bit"])?.parse::<OptimizerChoice>().ok();
    }
    if some(u)? {
        r.micro_batch = match u.int_in_range(0..=3)? {
            0 => Size { max: true, ..Size::default() },
            1 => Size { seconds: Some(3.0), ..Size::default() },
            2 => Size { frames: Some(500), clips: Some(3), ..Size::default() },
            _ => Size { frames: Some(9999), ..Size::default() },
        };
    }
    if some(u)? {
        r.batch = Some(*u.choose(&[Batch::Clips(2), Batch::Frames(700), Batch::Seconds(4.5)])?);
    }
    if some(u)? {
        r.lora = Some(Lora { rank: 4, also_train: vec!["*norm*".to_owned()], ..Lora::default() });
    }
    if some(u)? {
        (r.update, r.clip_per_tensor) = (UpdateAt::Backward, true);
    }
    if some(u)? {
        r.ranks = Some(2);
        match u.int_in_range(0..=2)? {
            0 => r.placement = Some(Placement::Model),
            1 => r.sharding = Some(Sharding::default()),
            _ => {}
        }
    }
    r.numerics = *u.choose(&[Level::Same, Level::Reordered, Level::Changed])?;
    r.ema = u.choose(&[None, Some(true), Some(false)])?.map(Into::into);
    r.learning_rate = *u.choose(&[None, Some(1e-3)])?;
    r.epochs = if some(u)? { Some(1.5) } else { None };
    r.data.validation = Validation::Share(*u.choose(&[0.0, 0.2])?);
    r.seed = u.arbitrary()?;
    Ok(r)
}

/// What a run keeps of its recipe can be read again, and is the same plan.
#[test]
fn settled_recipes_read_back_and_plan_the_same() {
    let settled = (0..160).filter(|seed| reads_back(&mut Unstructured::new(&bytes(*seed)))).count();
    assert!(settled > 40, "{settled}");
}

/// False where the options that are drawn cannot stand together.
fn reads_back(u: &mut Unstructured<'_>) -> bool {
    let recipe = draw(u).expect("bytes enough");
    let models = models();
    let model = u.choose(&models).expect("bytes enough");
    let recipe = recipe.settled(&model.defaults());
    if recipe.validate().is_err() {
        return false;
    }
    let device = Device::find(DeviceChoice::Cpu, 1).map(|d| d.with_ranks(recipe.ranks() as usize));
    let device = device.expect("every machine has a processor");
    let clips = "6x0.6s,2x1.7s".parse().expect("clips");
    let data = Data::plan(&recipe, model, &device, (Some(&clips), false), &mut Silent).expect("clips");
    let budget = 64 << 20;
    let asked = |recipe: &Settled| {
        Asked::new(recipe, model, &Sizes::of(recipe, &*model.model, &data)?, &device, budget)
    };
    let Ok(first) = asked(&recipe) else { return false };
    let Ok(found) = first.search(&device, budget) else { return false };
    let kept = first.settled(&found);
    let text = kept.to_yaml().expect("YAML");
    let again = Recipe::parse(&text, "recipe.yaml").unwrap_or_else(|e| panic!("{e}\n{text}")).0;
    assert_eq!(again, kept, "{text}");
    let again = again.settled(&model.defaults());
    assert_eq!(*again.recipe(), kept, "nothing is left to settle");
    let again = asked(&again).expect("it was asked for before");
    let left = again.open(&device);
    assert!(left.variants.is_empty() && left.offloads.is_empty() && !left.checkpoint, "{text}");
    let plan = again.search(&device, budget).expect("it was planned before").plan;
    // With nothing left to choose fewer plans are in memory at once.
    let phases = |plan: &RunPlan| -> Vec<_> {
        let phases = plan.phases.iter().filter(|p| p.name != phase::PLAN);
        phases.map(|p| (p.name, p.peak_bytes, p.in_use_bytes)).collect()
    };
    assert_eq!(phases(&plan), phases(&found.plan), "{text}");
    assert!(plan.peak_bytes <= found.plan.peak_bytes, "{text}");
    // Where a model is cut follows from the rest.
    let options = |session: &crate::session::SessionOptions| crate::session::SessionOptions {
        placement: None,
        ..session.clone()
    };
    assert_eq!(options(&plan.shape.session), options(&found.plan.shape.session));
    true
}
