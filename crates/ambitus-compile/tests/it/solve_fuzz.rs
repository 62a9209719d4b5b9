//! The offset solver against its verifier, its bound, brute force and training steps.

use crate::tape::{Keep, Step};
use ambitus_compile::plan::check::{Violation, check};
use ambitus_compile::plan::problem::{Buffer, Problem, Solution, live_bound};
use ambitus_compile::plan::solve::solve;
use arbtest::arbitrary::{Result, Unstructured};

/// The most a training step's arena may exceed its live bound: the planner's promise (1.02).
const STEP_SLACK: f64 = 1.02;

fn problem(u: &mut Unstructured, most: usize) -> Result<Problem> {
    let align = 1u64 << u.int_in_range(0..=8)?;
    let mixed = u.ratio(1, 4)?;
    let instants = u.int_in_range(1..=200)?;
    let longest = u.int_in_range(1..=instants)?;
    let largest = u.int_in_range(1..=1 << 20)?;
    let count = u.int_in_range(0..=most)?;
    let mut buffer = || {
        let first = u.int_in_range(0..=instants - 1)?;
        Ok(Buffer {
            first,
            last: first + u.int_in_range(0..=longest)?,
            size: if u.ratio(1, 20)? { 0 } else { u.int_in_range(1..=largest)? },
            align: if mixed { 1 << u.int_in_range(0..=8)? } else { align },
        })
    };
    let buffers = (0..count).map(|_| buffer()).collect::<Result<Vec<_>>>()?;
    Ok(Problem::new(buffers).expect("lifetimes are ordered and sizes small"))
}

fn solved(problem: &Problem) -> Solution {
    let solution = solve(problem);
    check(problem, &solution).unwrap_or_else(|violation| panic!("{violation}\n{problem}"));
    let (bound, _) = live_bound(problem);
    assert!(solution.height >= bound, "{} < {bound}\n{problem}", solution.height);
    solution
}

fn buffer(first: u32, last: u32, size: u64, align: u64) -> Buffer {
    Buffer { first, last, size, align }
}

#[test]
fn random_problems_are_solved_within_their_bounds() {
    arbtest::arbtest(|u| {
        let most = if u.ratio(1, 8)? { 150 } else { 40 };
        let problem = problem(u, most)?;
        let solution = solved(&problem);
        let buffers = problem.buffers();
        let mixed = buffers.iter().any(|b| b.align != buffers[0].align);
        // Where alignments differ, each buffer may also leave a gap below itself.
        let whole = |b: &Buffer| b.footprint() + if mixed { b.align } else { 0 };
        assert!(solution.height <= buffers.iter().map(whole).sum(), "above the sum\n{problem}");
        // The text form replays the same problem, and the solver depends on nothing else.
        let replayed: Problem = problem.to_string().parse().expect("what was printed parses");
        assert_eq!(solve(&replayed), solution);
        Ok(())
    })
    .budget_ms(1000);
}

/// The least height over all orders of lowest-fit placement, one of which is optimal: the order of
/// the offsets of an optimal placement in which no buffer can move down.
fn least_height(buffers: &[Buffer], placed: &mut Vec<(usize, u64)>, height: u64, best: &mut u64) {
    if height >= *best {
        return;
    }
    if placed.len() == buffers.len() {
        *best = height;
        return;
    }
    for i in 0..buffers.len() {
        if placed.iter().any(|&(j, _)| j == i) {
            continue;
        }
        let b = &buffers[i];
        let mut offset = 0;
        while let Some(&(j, at)) = placed.iter().find(|&&(j, at)| {
            let other = &buffers[j];
            other.first <= b.last
                && b.first <= other.last
                && at < offset + b.footprint()
                && offset < at + other.footprint()
        }) {
            offset = (at + buffers[j].footprint()).next_multiple_of(b.align);
        }
        placed.push((i, offset));
        least_height(buffers, placed, height.max(offset + b.footprint()), best);
        placed.pop();
    }
}

#[test]
fn small_problems_are_solved_to_the_optimum() {
    arbtest::arbtest(|u| {
        let problem = problem(u, 7)?;
        let mut best = u64::MAX;
        least_height(problem.buffers(), &mut Vec::new(), 0, &mut best);
        assert_eq!(solved(&problem).height, best, "\n{problem}");
        Ok(())
    })
    .budget_ms(500);
}

#[test]
fn every_corruption_of_a_plan_is_caught() {
    arbtest::arbtest(|u| {
        let problem = problem(u, 30)?;
        let good = solved(&problem);
        let buffers = problem.buffers();
        let solid: Vec<usize> = (0..buffers.len()).filter(|&i| buffers[i].size > 0).collect();
        if solid.is_empty() {
            return Ok(());
        }
        let caught = |bad: &Solution| check(&problem, bad).expect_err("a corrupt plan was accepted");

        let mut bad = good.clone();
        bad.offsets.pop();
        assert!(matches!(caught(&bad), Violation::CountMismatch { .. }));

        let low = Solution { height: good.height - 1, ..good.clone() };
        assert!(matches!(caught(&low), Violation::BeyondHeight { .. }));

        let &i = u.choose(&solid)?;
        let far = (u64::MAX / 2).next_multiple_of(buffers[i].align);
        for offset in [good.height.next_multiple_of(buffers[i].align), far] {
            let mut bad = good.clone();
            bad.offsets[i] = offset;
            assert!(matches!(caught(&bad), Violation::BeyondHeight { buffer, .. } if buffer == i));
        }
        if buffers[i].align > 1 {
            let mut bad = good.clone();
            bad.offsets[i] += u.int_in_range(1..=buffers[i].align - 1)?;
            assert!(matches!(caught(&bad), Violation::Misaligned { buffer, .. } if buffer == i));
        }

        // Onto the bytes of each buffer that it meets in time: always caught, if not always as this pair.
        for &j in solid.iter().filter(|&&j| j != i) {
            if buffers[i].first <= buffers[j].last && buffers[j].first <= buffers[i].last {
                let offset = good.offsets[j] & !(buffers[i].align - 1);
                if offset + buffers[i].footprint() > good.offsets[j] {
                    let mut bad = good.clone();
                    bad.offsets[i] = offset;
                    bad.height = u64::MAX;
                    assert!(matches!(caught(&bad), Violation::Overlap { .. }));
                }
            }
        }
        Ok(())
    })
    .budget_ms(500);
}

#[test]
fn hand_cases() {
    let height = |buffers: Vec<Buffer>| solved(&Problem::new(buffers).unwrap()).height;
    assert_eq!(height(vec![]), 0);
    assert_eq!(height(vec![buffer(0, 9, 0, 256)]), 0);
    assert_eq!(height(vec![buffer(7, 7, 1, 256)]), 256);
    // One after another: the same bytes. Meeting at one inclusive instant: not.
    assert_eq!(height(vec![buffer(0, 4, 100, 4), buffer(5, 9, 100, 4)]), 100);
    assert_eq!(height(vec![buffer(0, 5, 100, 4), buffer(5, 9, 100, 4)]), 200);
    // Nested, as forward and backward are.
    let nested = (0..50).map(|i| buffer(i, 99 - i, 1000 + u64::from(i), 8)).collect();
    assert_eq!(height(nested), (0..50).map(|i: u64| (1000 + i).next_multiple_of(8)).sum::<u64>());
    // A chain in which the 5s and 4s must alternate between floor and top to meet the bound of 9.
    let chain = vec![
        buffer(0, 1, 4, 1),
        buffer(1, 2, 5, 1),
        buffer(2, 4, 4, 1),
        buffer(3, 3, 5, 1),
        buffer(4, 6, 5, 1),
        buffer(0, 0, 5, 1),
    ];
    assert_eq!(height(chain), 9);
    // Sizes at the edge of what is accepted neither overflow nor panic.
    assert_eq!(height(vec![buffer(0, u32::MAX, 1 << 62, 1 << 40), buffer(0, 0, 1, 1 << 60)]), 5 << 60);
}

/// Steps of several shapes: activations or gradients prevail, sizes are odd, tokens few or many.
fn steps() -> impl Iterator<Item = Step> {
    let shapes = [
        (12, 2078, 630, 1129, 559),
        (22, 3312, 927, 4048, 6232),
        (26, 952, 1210, 1503, 3993),
        (18, 2766, 1409, 2521, 699),
        (60, 1237, 1024, 4096, 2000),
        (60, 517, 1280, 3413, 2000),
    ];
    shapes.into_iter().flat_map(|(blocks, tokens, width, hidden, classes)| {
        [Keep::All, Keep::Products, Keep::Inputs].into_iter().flat_map(move |keep| {
            [false, true].map(|hold_gradients| Step {
                blocks,
                tokens,
                width,
                hidden,
                heads: 16,
                classes,
                keep,
                hold_gradients,
            })
        })
    })
}

#[test]
fn training_steps_are_near_their_bound() {
    for step in steps() {
        let problem = step.problem();
        let ratio = solved(&problem).height as f64 / live_bound(&problem).0 as f64;
        assert!(ratio <= STEP_SLACK, "{ratio:.4} for {step:?}, {} buffers", problem.buffers().len());
    }
}
