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
        "rtx2060",
        "rtx4060",
        "rtx2080",
        "rtx3060ti",
        "rtx3080",
        "rtx5070",
        "rtx3060",
        "rtx4070",
        "t4",
        "rtx5060ti-16gb",
        "rtx5080",
        "rtx4060ti-16gb",
        "rtx4080",
        "a10g",
        "l4",
        "quadro-rtx6000",
        "rtx4090",
        "rtx3090",
        "rtx5090",
        "l40s",
        "rtx6000-ada",
        "a6000",
        "a100",
        "a800",
        "h100",
        "h200",
        "b200",
    ];
    assert_eq!(ids, want);
    for c in &own().0 {
        let ampere = c.capability.0 >= 8;
        assert_eq!((c.bf16, c.tf32_tflops.is_some()), (ampere, ampere), "{}", c.id);
        assert_eq!(
            (c.tensor_cores, c.half_tflops > c.fp32_tflops),
            (c.id != "gtx1650", c.tensor_cores),
            "{}",
            c.id
        );
    }
}

/// Returns the data sheet's figure and the share of it that the comment of a rate begins with.
fn sheet(id: &str, key: &str) -> Option<(f64, f64)> {
    let section = OWN.split_once(&format!("[{id}]\n"))?.1;
    let line = section.lines().take_while(|l| !l.starts_with('[')).find(|l| l.starts_with(key))?;
    let words: Vec<&str> = line.split_once("# ")?.1.split([' ', ',', ';', ':']).collect();
    let [figure, "x", share, ..] = words[..] else { return None };
    Some((figure.parse().ok()?, share.parse().ok()?))
}

#[test]
fn rates_are_the_shares_of_the_data_sheets_that_comments_say() {
    for c in &own().0 {
        let rates = [
            ("fp32_tflops", Some(c.fp32_tflops)),
            ("tf32_tflops", c.tf32_tflops),
            ("half_tflops", Some(c.half_tflops)),
            ("memory_gb_per_s", Some(c.memory_gb_per_s)),
        ];
        for (key, rate) in rates {
            let product = sheet(&c.id, key).map(|(figure, share)| figure * share);
            let near = rate.zip(product).is_none_or(|(rate, product)| (rate / product - 1.0).abs() < 0.01);
            assert!(near && rate.is_some() == product.is_some(), "{} {key}: {rate:?}, {product:?}", c.id);
        }
        // TF32 has half the rate of 16-bit operands.
        let figure = |key| sheet(&c.id, key).map(|s| s.0);
        if let (Some(tf32), Some(half)) = (figure("tf32_tflops"), figure("half_tflops")) {
            assert!((half / tf32 - 2.0).abs() < 0.05, "{}: {half}, {tf32}", c.id);
        }
        // Two operations a cycle and fp32 unit, at the clocks that cards of their time boost to.
        let lanes = if matches!(c.capability, (7, _) | (8, 0)) { 64.0 } else { 128.0 };
        let units = 2.0 * lanes * f64::from(c.multiprocessors.unwrap());
        let gigahertz = 1e3 * figure("fp32_tflops").unwrap() / units;
        let boost = match c.capability {
            (7, _) => 1.55..1.8,
            (8, 0) => 1.4..1.42,
            (8, 6) => 1.66..1.81,
            (8, 9) => 2.0..2.55,
            (9 | 10, _) => 1.95..2.0,
            _ => 2.4..2.65,
        };
        assert!(boost.contains(&gigahertz), "{}: {gigahertz} GHz", c.id);
    }
}

#[test]
fn what_is_left_out_follows_or_stays_unknown() {
    let read = |text: &str| parse(text, "").unwrap().remove(0);
    let mine = read(GOOD);
    assert_eq!((mine.multiprocessors, mine.tf32_tflops, mine.tensor_cores), (None, None, true));
    assert!(!read(&GOOD.replace("20.5", "10")).tensor_cores);
    let all = read(&format!("{GOOD}multiprocessors = 46\ntf32_tflops = 11\ntensor_cores = false\n"));
    assert_eq!((all.multiprocessors, all.tf32_tflops, all.tensor_cores), (Some(46), Some(11.0), false));
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
            "my.toml:10: unknown field `tf32`, expected one of `name`, `usable`, `sold_gb`, `capability`, `multiprocessors`, \
             `fp32_tflops`, `tf32_tflops`, `half_tflops`, `memory_gb_per_s`, `link_gb_per_s`, `peer_gb_per_s`, `bf16`, \
             `tensor_cores`",
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
        (
            wrong(&GOOD.replace("8.6", "7.5").replace("bf16 = true", "bf16 = false\ntf32_tflops = 10")),
            "my.toml:10: [mine] tf32_tflops: tensor cores have TF32 from capability 8.0 on",
        ),
        (
            changed("half_tflops", "tf32_tflops = 0\nhalf_tflops"),
            "my.toml:6: [mine] tf32_tflops: 0 is not a rate: 0.01 to 1000000",
        ),
        (
            changed("half_tflops", "multiprocessors = 5000\nhalf_tflops"),
            "my.toml:6: [mine] multiprocessors: no GPU has 5000: 1 to 4096",
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
        whole_updates: false,
        offload: Default::default(),
        sharding: None,
        placement: None,
        trained: ambitus_compile::pipeline::Trained::All,
        ema: true,
        evaluate: true,
        sample: Some(Capacity { rows: 800, clips: 2 }),
        speech: None,
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
