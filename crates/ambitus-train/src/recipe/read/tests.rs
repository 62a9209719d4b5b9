use super::*;

#[test]
fn probe() {
    for text in [
        "model: {dir: a}\ndata: {dir: b}\n",
        "model: {dir: a}\ndata: {dir: b}\nlearning_rat: 1\n",
        "model: {dir: a, foo: 1}\ndata: {dir: b}\n",
        "model: {dir: a}\ndata: {}\n",
        "model: {dir: a}\n",
        "",
        "model: {dir: a}\ndata: {dir: b}\nlearning_rate: .nan\n",
        "model: {dir: a}\ndata: {dir: b}\nlearning_rate: -.inf\n",
        "model: {dir: a}\ndata: {dir: b}\nlearning_rate: 1e999\n",
        "model: {dir: a}\ndata: {dir: b}\nlearning_rate: -1e-5\n",
        "model: {dir: a}\ndata: {dir: b}\nupdates: -5\n",
        "model: {dir: a}\ndata: {dir: b}\nupdates: 5.5\n",
        "model: {dir: a}\ndata: {dir: b}\nupdates: five\n",
        "model: {dir: a}\ndata: {dir: b}\nmemory: 20\n",
        "model: {dir: a}\ndata: {dir: b}\nmemory: .nan\n",
        "model: {dir: a}\ndata: {dir: b}\nmemory: [1]\n",
        "model: {dir: a}\ndata: {dir: b}\ncheckpoint: some\n",
        "model: {dir: a}\ndata: {dir: b}\ncheckpoint: -1\n",
        "model: {dir: a}\ndata: {dir: b}\nmicro_batch: {frame: 1}\n",
        "model: {dir: a}\ndata: {dir: b}\nmicro_batch: 0\n",
        "model: {dir: a}\ndata: {dir: b}\nbatch: {clips: 4, frames: 3}\n",
        "model: {dir: a}\ndata: {dir: b}\nbatch: {clip: 4}\n",
        "model: {dir: a}\ndata: {dir: b}\nbatch: 4\n",
        "model: {dir: a}\ndata: {dir: b}\nema: yes\n",
        "model: {dir: a}\ndata: {dir: b}\nseed: 1\nseed: 2\n",
        "model: {dir: a}\ndata: {dir: b, validation: [a, b, 3]}\nsample: false\nbetas: [0.5]\n",
        "model: {dir: a}\ndata: {dir: b, validation: {share: 2}}\n",
        "model: &x {dir: a}\ndata: *x\n",
        "model: {dir: a\ndata: {dir: b}\n",
        "model:\n\tdir: a\n",
        "--- \nmodel: {dir: a}\ndata: {dir: b}\n---\nmodel: {dir: a}\n",
        "model: {dir: a}\ndata: {dir: b}\n<<: {seed: 3}\n",
        "model: !!python/object:x {dir: a}\ndata: {dir: b}\n",
        "[1,2]", "a: {b: {c: {d: {e: {f: {g: {h: {i: {j: 1}}}}}}}}}",
        "model: {dir: a}\ndata: {dir: b}\nupdates: 5\nepochs: 2\n",
        "? [a, b]\n: c\n",
        "model: {dir: ~}\ndata: {dir: b}\n",
        "model: {dir: 5}\ndata: {dir: b}\n",
    ] {
        match Recipe::parse(text, "r.yaml") {
            Ok((r, o)) => println!("ok {}\n{o:?}", r.to_yaml().unwrap()),
            Err(e) => println!("{:?}\n     {e}", text.strip_prefix("model: {dir: a}\ndata: {dir: b}\n").unwrap_or(text)),
        }
    }
}
