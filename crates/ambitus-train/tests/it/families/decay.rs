//! What weight decay leaves out, in runs.

use super::cases::{self, Case};
use super::{export, resumes};
use ambitus_train::run::Shared;
use std::path::{Path, PathBuf};

fn decays(case: &Case, name: &str, lines: &str) -> PathBuf {
    case.trained(name, &format!("save_every: 2\nweight_decay: 0.5\n{lines}"))
}

/// A run keeps what it began with. One whose recipe does not say what decays is of a time when all did, not of its family's default.
#[test]
fn a_run_goes_on_with_the_decay_that_it_had() {
    let case = cases::orpheus();
    let since = decays(&case, "since", "");
    let named = decays(&case, "named", "no_decay: ['*norm']");
    let before = decays(&case, "before", "no_decay: []");
    assert!(export(&since) == export(&named) && export(&since) != export(&before));
    let without = |run: &Path, line: &str| {
        let path = run.join("recipe.yaml");
        let text = std::fs::read_to_string(&path).expect("the recipe");
        assert!(text.contains(line), "{text}");
        std::fs::write(&path, text.replacen(line, "", 1)).expect("a file");
    };
    without(&before, "no_decay: []\n");
    [&since, &before].into_iter().for_each(|run| resumes(&case, run));
}

/// On ranks that share what decays and what does not, another number of them goes on.
#[test]
fn ranks_go_on_with_what_one_began() {
    let case = cases::xtts();
    let one = decays(&case, "one", "");
    let two = decays(&case, "two", "ranks: 2\nsharding: {strategy: full}");
    let all = decays(&case, "all", "no_decay: []");
    let far = |a: &Path, b: &Path| {
        let [a, b] = [a, b].map(super::losses);
        a.iter().zip(&b).map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, f64::max)
    };
    assert!(far(&two, &one) < 1e-4, "{:?}", far(&two, &one));
    assert!(far(&all, &one) > 1e-3, "{:?}", far(&all, &one));
    for (run, ranks) in [(&one, 2), (&two, 1)] {
        super::goes_on(&case, run, Shared { ranks: Some(ranks), ..Shared::default() });
    }
    assert!(far(&two, &one) < 1e-4, "{:?}", far(&two, &one));
    assert!(far(&all, &one) > 1e-3, "{:?}", far(&all, &one));
}
