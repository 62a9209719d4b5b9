use super::lattice::choices;
use super::point::WORTH;
use super::*;
use crate::budget::Draft;
use crate::cards::Cards;
use crate::device::Device;
use crate::refusal::require_plan;
use crate::session::{SessionOptions, Stem, build};
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::pipeline::Trained;
use ambitus_compile::plan::Heights;
use ambitus_families::small;
use ambitus_ir::ops::optim::AdamW;
use ambitus_models::Capacity;
use ambitus_recipe::recipe::{DeviceChoice, Offload, OptimizerChoice, Precision, Recipe};

const UPDATE: usize = 240;

fn device() -> Device {
    Device::find(DeviceChoice::Cpu, 1).expect("every machine has a processor")
}

/// Returns a small model with an update of 240 frames.
fn shape(device: &Device) -> Shape {
    Shape {
        model: small::of_frames(32).model,
        session: SessionOptions {
            capacity: micro_batch(120).capacity,
            checkpoint: Blocks::None,
            precision: Default::default(),
            trained: Trained::All,
            optimizer: Some(AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }.into()),
            clip_per_tensor: false,
            update_in_backward: false,
            whole_updates: false,
            offload: Default::default(),
            sharding: None,
            placement: None,
            ema: true,
            evaluate: false,
            sample: None,
            speech: None,
        },
        beside: device.beside(),
        update_rows: UPDATE,
        clip_rows: 40.0,
        micro_batches: 2,
        prepare_bytes: 0,
        planned_at_once: 1,
        looked_at_bytes: 0,
        data_bytes: 0,
        spoken: Default::default(),
    }
}

fn micro_batch(frames: usize) -> MicroBatch {
    MicroBatch {
        capacity: Capacity { rows: frames, clips: 6 },
        count: UPDATE / frames,
        whole_updates: UPDATE == frames,
    }
}

fn free(frames: &[usize]) -> Free {
    let micro_batches = frames.iter().map(|n| micro_batch(*n)).collect();
    let (variants, offloads) = (Vec::new(), Vec::new());
    Free { checkpoint: true, micro_batches, variants, offloads, host_room: HostRoom::ALL }
}

/// Returns options of other numbers, with their micro-batches.
fn variants() -> Vec<Variant> {
    let mut out = Vec::new();
    for in_backward in [false, true] {
        for precision in [None, Some(Precision::Bf16Pure)] {
            for optimizer in [None, Some(OptimizerChoice::AdamWBf16), Some(OptimizerChoice::AdamW8bit)] {
                let change = Change { precision, optimizer, in_backward, ..Change::default() };
                let options = change.options(&Recipe::new("m", "d"));
                let micro_batch = in_backward.then(|| micro_batch(UPDATE));
                out.push(Variant { options, change, micro_batch });
            }
        }
    }
    out.split_off(1)
}

/// Returns the peak and seconds of every plan that a search may choose; with other options, of whole values alone.
fn every_plan(shape: &Shape, free: &Free, target: &dyn Target) -> Vec<(u64, f64)> {
    let (mut plans, stems) = (Vec::new(), Stems::of(target));
    for choice in choices(free) {
        let point = Point::new(shape, choice, free, &stems).expect("plans");
        let by = if free.variants.is_empty() { 1 } else { point.blocks };
        for steps in (0..=point.steps()).step_by(by) {
            let mut shape = point.shape.clone();
            shape.session.checkpoint = point.checkpoint(steps);
            let draft = stems.draft(shape).expect("plans");
            let peak = draft.peak_within(u64::MAX, &stems.heights);
            plans.push((peak, draft.step_seconds(target)));
        }
    }
    plans
}

/// What a recipe with `numerics: changed` leaves open, on small and large memories of a GPU.
#[test]
fn no_combination_that_fits_is_much_faster() {
    let cards = Cards::load(None).expect("a table");
    let device = Device::for_card(cards.find("rtx3060").expect("a card"), 1);
    let shape = shape(&device);
    let all =
        Free { variants: variants(), offloads: crate::variants::offloads(true), ..free(&[120, 240, 40]) };
    let plans = every_plan(&shape, &all, device.target());
    let least = plans.iter().map(|p| p.0).min().expect("some");
    let most = plans.iter().map(|p| p.0).max().expect("some");
    for share in 0..=8 {
        let budget = least + (most - least) * share / 8;
        let found = search(&shape, &all, budget, device.target()).expect("plans");
        assert!(found.plan.peak_bytes <= budget, "share {share}: {} of {budget}", found.plan.peak_bytes);
        let best = plans.iter().filter(|p| p.0 <= budget).map(|p| p.1).fold(f64::INFINITY, f64::min);
        let (chosen, took) = (&found.candidates[0].options, found.plan.step_seconds);
        assert!(took <= 1.03 * best, "share {share}: {chosen} takes {took} s, another {best} s");
    }
}

#[test]
fn no_plan_that_fits_is_much_faster() {
    let device = device();
    let (shape, free) = (shape(&device), free(&[120, 240, 60, 40]));
    let plans = every_plan(&shape, &free, device.target());
    let least = plans.iter().map(|p| p.0).min().expect("some");
    let most = plans.iter().map(|p| p.0).max().expect("some");
    assert!(plans.len() > 40 && most > least, "{} plans from {least} to {most} bytes", plans.len());
    for share in 0..=10 {
        let budget = least + (most - least) * share / 10;
        let found = search(&shape, &free, budget, device.target()).expect("plans");
        assert!(found.plan.peak_bytes <= budget, "share {share}: {} of {budget}", found.plan.peak_bytes);
        let best = plans.iter().filter(|p| p.0 <= budget).map(|p| p.1).fold(f64::INFINITY, f64::min);
        // The usual micro-batch is kept for WORTH, and a step more than necessary may be recomputed.
        let allowed = best * (1.0 + WORTH) * 1.01;
        assert!(
            found.plan.step_seconds <= allowed,
            "share {share}: {} and {best} s",
            found.plan.step_seconds
        );
        assert_eq!(found.candidates[0].verdict, Verdict::Chosen);
        assert_eq!(found.candidates[0].peak_bytes, found.plan.peak_bytes);
    }
}

/// Where something is recomputed to fit, what more memory would buy is there, and it is what a plan with that memory is.
#[test]
fn what_was_recomputed_is_also_there_with_everything_kept() {
    let device = device();
    let (shape, free) = (shape(&device), free(&[120]));
    let room = RunPlan::new(shape.clone(), device.target()).expect("plans");
    let kept = |budget| {
        let found = search(&shape, &free, budget, device.target()).expect("plans");
        let kept: Vec<Candidate> = found.candidates[1..].to_vec();
        (found.candidates[0].clone(), kept)
    };
    let (chosen, others) = kept(room.peak_bytes);
    assert!(chosen.options.is_empty() && others.is_empty(), "{chosen:?}, {others:?}");
    let budget = room.peak_bytes * 9 / 10;
    let (chosen, others) = kept(budget);
    let [all] = &*others else { panic!("{others:?}") };
    assert!(chosen.options.starts_with("--checkpoint") && chosen.seconds > all.seconds, "{chosen:?}");
    assert_eq!((&*all.options, all.verdict, all.planned), ("", Verdict::TooLarge, false));
    assert!(all.peak_bytes > budget && all.peak_bytes <= room.peak_bytes, "{all:?}");
    assert!((all.seconds - room.step_seconds).abs() < 1e-9 * room.step_seconds);

    // Of several micro-batches, from the smallest that is faster to the fastest.
    let free = self::free(&[120, 240, 60, 40]);
    let least = every_plan(&shape, &free, device.target()).iter().map(|p| p.0).min().expect("some");
    let found = search(&shape, &free, least, device.target()).expect("plans");
    let (chosen, others) = found.candidates.split_first().expect("some");
    let kept = others.iter().filter(|c| !c.verdict.fits() && !c.options.contains("--checkpoint"));
    let mut kept: Vec<&Candidate> = kept.collect();
    kept.sort_by_key(|c| c.peak_bytes);
    assert!(kept.len() > 1 && kept[0].seconds < chosen.seconds, "{chosen:?}, {kept:?}");
    assert!(kept.windows(2).all(|two| two[1].seconds < two[0].seconds), "{kept:?}");
}

/// What plans share is what each would make for itself.
#[test]
fn a_session_from_shared_parts_is_the_session() {
    let device = device();
    let target = device.target();
    let (base, small) = (shape(&device), shape(&device).with_capacity(micro_batch(40).capacity));
    for ema in [true, false] {
        for in_backward in [false, true] {
            let mut options = SessionOptions { ema, ..small.session.clone() };
            (options.update_in_backward, options.clip_per_tensor) = (in_backward, in_backward);
            let sizes = [base.session.capacity, small.session.capacity];
            let [other, alone] = sizes.map(|capacity| {
                let options = SessionOptions { capacity, ..options.clone() };
                Stem::new(&*base.model, &options, target, None).expect("compiles")
            });
            let shared = Stem::new(&*base.model, &options, target, Some(&other)).expect("compiles");
            for checkpoint in [Blocks::None, Blocks::All] {
                options.checkpoint = checkpoint;
                let finished = |stem: &Stem| stem.clone().finish(&options, target).expect("compiles");
                assert!(finished(&shared) == finished(&alone), "ema {ema}, in backward {in_backward}");
                assert!(finished(&shared) == build(&*base.model, &options, target).expect("compiles"));
            }
        }
    }
}

/// Without offsets, or with just enough work on them, the same is said as by a plan.
#[test]
fn a_draft_says_what_its_plan_says() {
    let device = device();
    let draft = Draft::new(shape(&device), device.target()).expect("compiles");
    let plan = draft.plan(device.target());
    assert!(draft.least_bytes <= plan.peak_bytes && draft.least_bytes == plan.least_bytes());
    assert_eq!(draft.step_seconds(device.target()), plan.step_seconds);
    let heights = Heights::default();
    for budget in [draft.least_bytes - 1, draft.least_bytes, plan.peak_bytes - 1, plan.peak_bytes, u64::MAX] {
        let fits = plan.peak_bytes <= budget;
        // What is known of one budget is not taken for another's.
        for heights in [&heights, &Heights::default()] {
            assert_eq!(draft.peak_within(budget, heights) <= budget, fits, "{budget} bytes");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_with_what_would() {
    let device = device();
    let (shape, every) = (shape(&device), free(&[120, 240, 60, 40]));
    let plans = every_plan(&shape, &every, device.target());
    let least = plans.iter().map(|p| p.0).min().expect("some");
    let found = search(&shape, &every, least - 1, device.target()).expect("plans");
    assert!(found.candidates.iter().all(|c| !c.verdict.fits()));
    // As it is given it does not fit; the smallest that would is named.
    let given = RunPlan::new(shape.clone(), device.target()).expect("plans");
    let refusal = |budget| {
        require_plan(&given, &shape, &every, budget, device.target()).expect_err("does not fit").to_string()
    };
    let told = refusal(least);
    assert!(told.contains("changes that fit") && told.contains("--micro-batch 40"), "{told}");
    let told = refusal(least - 1);
    assert!(told.contains("no change of options fits: the least"), "{told}");
}

#[test]
fn what_the_hosts_memory_cannot_hold_is_not_chosen() {
    let device = device();
    let shape = shape(&device);
    let form = |optimizer: f64| Offload { optimizer, ..Offload::default() };
    let mut free = Free { checkpoint: false, offloads: vec![form(1.0), form(0.5)], ..free(&[120]) };
    let kept = RunPlan::new(shape.clone(), device.target()).expect("plans").peak_bytes;
    // Either form would do for the device.
    let found = search(&shape, &free, kept - 4096, device.target()).expect("plans");
    let whole = found.candidates.iter().filter(|c| c.verdict.fits()).count();
    assert_eq!(whole, 2, "{:?}", found.candidates);
    let mut moments = shape.session.clone();
    moments.offload = form(1.0).pass();
    let all = RunPlan::new(Shape { session: moments, ..shape.clone() }, device.target()).expect("plans");
    free.host_room = HostRoom { bytes: all.planned.host_bytes - 1, with_peak: false };
    let found = search(&shape, &free, kept - 4096, device.target()).expect("plans");
    assert_eq!(found.taken.offload, Some(form(0.5)));
    assert!(free.host_room.holds(found.plan.planned.host_bytes, 0));
    let refused: Vec<&str> = found
        .candidates
        .iter()
        .filter(|c| c.verdict == Verdict::HostTooSmall)
        .map(|c| c.options.as_str())
        .collect();
    assert_eq!(refused, ["--offload optimizer"]);
}

#[test]
fn the_most_frames_fit_and_one_more_does_not() {
    let device = device();
    let shape = shape(&device);
    let kept = RunPlan::new(shape.clone(), device.target()).expect("plans").peak_bytes;
    let peak = |frames| {
        let longer = shape.with_capacity(micro_batch(frames).capacity);
        RunPlan::new(longer, device.target()).expect("plans").peak_bytes
    };
    for budget in [kept + 100_000, kept + 1_000_000, kept + 7_654_321] {
        let most = most_rows(&shape, usize::MAX, budget, device.target()).expect("plans");
        let most = most.expect("it fits as it is");
        assert!(peak(most) <= budget && peak(most + 1) > budget, "{most} frames in {budget}");
        let no_more = most_rows(&shape, most - 7, budget, device.target()).expect("plans");
        assert_eq!(no_more, Some(most - 7));
    }
    assert_eq!(most_rows(&shape, usize::MAX, kept - 1, device.target()).expect("plans"), None);
}
