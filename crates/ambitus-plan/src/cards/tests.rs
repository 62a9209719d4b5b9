use super::*;
use crate::device::Device;
use crate::session::{self, SessionOptions};
use ambitus_compile::passes::policy::Blocks;
use ambitus_cuda::CudaTarget;
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::target::{Links, Rates};
use ambitus_models::Capacity;
use std::path::PathBuf;

const GOOD: &str = "[mine]\nname = \"Mine\"\nusable = \"8GiB\"\ncapability = \"8.6\"\nfp32_tflops = 10\nhalf_tflops = 20.5\n\
                    memory_gb_per_s = 300\nlink_gb_per_s = 12\nbf16 = true\n";

fn own() -> Cards {
    Cards(parse(OWN, "own").unwrap())
}

fn wrong(text: &str) -> String {
    parse(text, "my.toml").unwrap_err().to_string()
}

#[test]
fn the_programs_own_table_reads() {
    let ids: Vec<String> = own().by_memory().iter().map(|c| c.id.clone()).collect();
    let want = [
        "gtx1650",
        "rtx3080",
        "rtx4070",
        "quadro-rtx6000",
        "rtx4090",
        "rtx3090",
        "rtx6000-ada",
        "a100",
        "a800",
        "h100",
        "h200",
    ];
    assert_eq!(ids, want);
    let has_bf16 = |c: &Card| c.capability.0 >= 8;
    assert!(own().0.iter().all(|c| c.bf16 == has_bf16(c)));
}

#[test]
fn errors_say_where_and_what() {
    assert_eq!(parse(GOOD, "").unwrap().len(), 1);
    let changed = |from: &str, to: &str| {
        assert!(GOOD.contains(from), "{from}");
        wrong(&GOOD.replace(from, to))
    };
    for (got, want) in [
        (
            changed("bf16 = true", "bf16 = true\ntf32 = 1"),
            "my.toml:10: unknown field `tf32`, expected one of `name`, `usable`, `sold_gb`, `capability`, `fp32_tflops`, \
             `half_tflops`, `memory_gb_per_s`, `link_gb_per_s`, `peer_gb_per_s`, `bf16`",
        ),
        (changed("bf16 = true\n", ""), "my.toml:1: missing field `bf16`"),
        (
            changed("fp32_tflops = 10", "fp32_tflops = 0"),
            "my.toml:5: [mine] fp32_tflops: 0 is not a rate: 0.01 to 1000000",
        ),
        (changed("20.5", "nan"), "my.toml:6: [mine] half_tflops: NaN is not a rate: 0.01 to 1000000"),
        (changed("300", "-300"), "my.toml:7: [mine] memory_gb_per_s: -300 is not a rate: 0.01 to 1000000"),
        (changed("12", "inf"), "my.toml:8: [mine] link_gb_per_s: inf is not a rate: 0.01 to 1000000"),
        (
            changed("usable = \"8GiB\"", "usable = \"8GiB\"\nsold_gb = 9223372036854775807"),
            "my.toml:4: [mine] sold_gb: no GPU has 9223372036854775807 GB: 1 to 16384",
        ),
        (changed("8GiB", "0B"), "my.toml:3: [mine] usable: no GPU has 0 B: 1GiB to 16TiB"),
        (changed("\"8.6\"", "\"ada\""), "my.toml:4: [mine] capability: `ada` is not one: write \"8.6\""),
        (
            changed("\"8.6\"", "\"6.1\""),
            "my.toml:4: [mine] capability: there are kernels from 7.5 (Turing) on",
        ),
        (
            changed("\"8.6\"", "\"7.5\""),
            "my.toml:9: [mine] bf16: tensor cores take it from capability 8.0 on",
        ),
        (changed("\"Mine\"", "\" \""), "my.toml:2: [mine] name is empty"),
        (
            wrong(&(GOOD.to_owned() + &GOOD.replace("[mine]", "[MI-NE]"))),
            "my.toml:11: [MI-NE]: every card needs a name of its own",
        ),
    ] {
        assert_eq!(got, want);
    }
    for (text, line) in [
        ("x = 1".to_owned(), "my.toml:1: "),
        ("[a\n".to_owned(), "my.toml:1: "),
        (GOOD.to_owned() + GOOD, "my.toml:10: "),
        (GOOD.replace("8GiB", "8"), "my.toml:3: "),
        (GOOD.replace("8GiB", "-8GiB"), "my.toml:3: "),
    ] {
        assert!(wrong(&text).starts_with(line), "{}", wrong(&text));
    }
}

#[test]
fn any_text_is_read_or_refused() {
    arbtest::arbtest(|u| {
        let _ = parse(&u.arbitrary::<String>()?, "");
        let at = u.int_in_range(0..=GOOD.len())?;
        let _ = parse(&(GOOD[..at].to_owned() + &u.arbitrary::<String>()? + &GOOD[at..]), "");
        Ok(())
    });
}

#[test]
fn names_are_found_as_people_write_them() {
    let cards = own();
    for name in ["rtx3090", "RTX 3090", "rtx-3090", "GeForce RTX 3090"] {
        assert_eq!(cards.find(name).unwrap().id, "rtx3090");
    }
    let miss = |name: &str| cards.find(name).unwrap_err().to_string();
    assert!(miss("rtx6000").contains("did you mean quadro-rtx6000 or rtx6000-ada?"), "{}", miss("rtx6000"));
    assert!(miss("h20").contains("did you mean"), "{}", miss("h20"));
    assert!(miss("radeon").starts_with("no card `radeon`\n  known: gtx1650, "), "{}", miss("radeon"));
    assert!(!miss("").contains("did you mean"));
    for (a, b, n) in [("", "abc", 3), ("kitten", "sitting", 3), ("h100", "h100", 0), ("a100", "a800", 1)] {
        assert_eq!(distance(a, b), n, "{a} {b}");
    }
}

#[test]
fn a_users_file_adds_and_replaces() {
    let mut cards = own();
    let before = cards.0.len();
    cards.add(parse(GOOD, "").unwrap());
    cards.add(parse(&GOOD.replace("[mine]", "[RTX-3090]"), "").unwrap());
    assert_eq!(cards.0.len(), before + 1);
    assert_eq!(
        (cards.find("mine").unwrap().usable, cards.find("rtx3090").unwrap().name.as_str()),
        (ByteSize(8 << 30), "Mine")
    );
}

/// Returns the quickstart's session on a target.
fn quickstart(target: &dyn ambitus_ir::target::Target) -> ambitus_ir::plan::PlannedSession {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../recipes/quickstart/model");
    let options = ambitus_families::family::OpenOptions { from_scratch: true, ..Default::default() };
    let model = ambitus_families::family::ModelDir::open(ambitus_families::ALL, &dir, options).unwrap();
    let options = SessionOptions {
        precision: Default::default(),
        capacity: Capacity { rows: 1200, clips: 5 },
        checkpoint: Blocks::All,
        optimizer: Some(AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }.into()),
        clip_per_tensor: false,
        update_in_backward: false,
        offload: Default::default(),
        sharding: None,
        placement: None,
        trained: ambitus_compile::pipeline::Trained::All,
        ema: true,
        evaluate: true,
        sample: Some(Capacity { rows: 800, clips: 2 }),
    };
    session::compile(&*model.model, &options, target).unwrap()
}

#[test]
fn a_cards_plan_is_that_of_the_card_itself_whatever_its_rates() {
    for card in &own().0 {
        let planned = quickstart(Device::for_card(card, 1).target());
        // As `train --device cuda` makes it, from what a driver says.
        let other = CudaTarget::new(
            card.capability,
            Rates { gemm: 1e9, half: 1e9, bytes: 1e15, link: 1e9, links: Links::of_host(1, 1e9) },
        );
        let there = quickstart(&other);
        assert_eq!(planned.arena_bytes(), there.arena_bytes(), "{}", card.id);
        assert_eq!(format!("{:?}", planned.programs), format!("{:?}", there.programs), "{}", card.id);
    }
}
