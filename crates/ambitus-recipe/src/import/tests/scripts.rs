//! Launch scripts: what stands around a command's flags is not theirs.

use super::*;

const FLAGS: &str = "--fsdp \"full_shard auto_wrap\" --bf16 True --max_steps 7";

#[test]
fn commands_in_scripts_say_what_their_flags_say() {
    let expected = recipe_of(&[("a.sh", FLAGS)]);
    assert_eq!((expected.updates, expected.precision), (Some(7), Some(Precision::Bf16Mixed)));
    let four = crate::recipe::Recipe {
        ranks: Some(4),
        batch: Some(crate::recipe::Batch::Clips(32)),
        ..expected.clone()
    };
    for (text, recipe) in [
        ("CUDA_VISIBLE_DEVICES=0,1 accelerate launch train.py F", &expected),
        ("export X=4\naccelerate launch train.py F", &expected),
        (
            "set -e\n\n# --fp16 True\nsource env/bin/activate\naccelerate launch \\\n  train.py \\\n  F\necho done",
            &expected,
        ),
        ("accelerate launch train.py F 2>&1 | tee log", &expected),
        ("accelerate launch train.py F >log 2>err", &expected),
        ("nohup accelerate launch train.py F &\nwait", &expected),
        ("cd x && accelerate launch train.py F || exit 1; echo --", &expected),
        ("accelerate launch train.py F -q 3", &expected),
        ("accelerate launch train.py F\r\necho done\r\n", &expected),
        ("accelerate launch --use_fsdp train F", &expected),
        ("accelerate launch --use_fsdp true train F", &expected),
        ("torchrun --nproc_per_node 4 -m train F", &four),
        ("torchrun --nproc-per-node=4 train.py \\\r\n  F", &four),
        ("accelerate launch --num_processes 4 train F", &four),
        ("OMP_NUM_THREADS=8 torchrun --standalone --nproc_per_node 4 train.py F", &four),
    ] {
        let text = text.replace('F', FLAGS);
        for name in ["run.sh", "run", "run.txt"] {
            assert_eq!(&recipe_of(&[(name, &text)]), recipe, "{name}: {text}");
        }
        let shebang = format!("#!/bin/bash\n{text}");
        assert_eq!(&recipe_of(&[("launch", &shebang)]), recipe, "{shebang}");
    }
    let mesh = "accelerate launch --use_fsdp --fsdp_version 2 --parallelism_config_dp_replicate_size 2 \
                --parallelism_config_dp_shard_size 4 train.py";
    assert_eq!(recipe_of(&[("run.sh", mesh)]).sharding.unwrap().group, Some(4));
    let batch = "@echo off\r\nREM --fp16 True\r\nset X=4\r\naccelerate launch C:\\x\\train.py ^\r\n  --output_dir C:\\out ^\r\n  F > log\r\n";
    let imported = good(&[("run.bat", &batch.replace('F', FLAGS))]);
    assert_eq!(imported.rows.iter().find(|r| r.key == "output_dir").unwrap().value, "C:\\out");
    let recipe = recipe_of(&[("run.bat", &batch.replace('F', FLAGS))]);
    assert_eq!(crate::recipe::Recipe { run_dir: None, ..recipe }, expected);
}

#[test]
fn what_a_shell_would_put_in_is_asked_for() {
    let text = "N=4\ntorchrun --nproc_per_node $(nvidia-smi -L | wc -l) train.py --learning_rate \"$LR\" --seed ${SEED:-1} \
                --max_steps `cat steps` --output_dir 'a$b' --bf16";
    let imported = good(&[("run.sh", text)]);
    for key in ["nproc_per_node", "learning_rate", "seed", "max_steps"] {
        assert!(said(&imported, key).starts_with("asks: it is code"), "{key}: {imported}");
    }
    assert_eq!(said(&imported, "output_dir"), "used: run_dir: \"a$b\"");
    refused(&[("run.sh", "--seed $(a")], "run.sh:1:8: no `)` closes what begins here");
}

#[test]
fn flags_inside_other_forms_are_none() {
    let yaml = "# accelerate launch --fp16\nbf16: true\nrun_name: a --fp16\n";
    let python =
        "# launch with --fp16\nTrainingArguments(bf16=True, run_name=\"--fp16\", report_to='a --fp16')";
    for text in [yaml, python, "{\"bf16\": true, \"run_name\": \"--fp16\"}"] {
        assert_eq!(recipe_of(&[("a.txt", text)]).precision, Some(Precision::Bf16Mixed), "{text}");
    }
    // Values on lines of their own, where a file is flags alone.
    assert_eq!(recipe_of(&[("a.txt", "--seed\n5\n--bf16\n")]).seed, 5);
}

#[test]
fn named_files_are_asked_for_unless_they_are_read() {
    let launch = ("run.sh", "accelerate launch --config_file conf/acc.yaml train.py --bf16 True");
    let alone = good(&[launch]);
    assert_eq!(said(&alone, "config_file"), "asks: it names a file: give conf/acc.yaml to import as well");
    assert!(alone.notes.iter().any(|n| n.contains("give conf/acc.yaml")), "{:?}", alone.notes);
    let both = good(&[launch, ("conf/acc.yaml", REPORT)]);
    assert_eq!(said(&both, "config_file"), "used: conf/acc.yaml is read beside it");
    assert_eq!(both.notes, Vec::<String>::new());
    let json = ("args.json", "{\"fsdp\": \"full_shard\", \"fsdp_config\": \"fsdp.json\"}");
    assert!(said(&good(&[json]), "fsdp_config").starts_with("asks: it names a file: give fsdp.json"));
    let both = good(&[json, ("x/fsdp.json", "{\"backward_prefetch\": \"backward_post\"}")]);
    assert_eq!(said(&both, "fsdp_config"), "used: fsdp.json is read beside it");
    assert!(both.recipe.contains("backward_prefetch: post"), "{}", both.recipe);
    assert!(
        said(&good(&[("a.json", "{\"accelerator_config\": \"acc.json\"}")]), "accelerator_config")
            .contains("give acc.json")
    );
    refused(
        &[("a.yaml", "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: [1, 2]\n")],
        "a.yaml:3:14: fsdp_config: [1, 2] is neither keys with values nor a file's name",
    );
    refused(&[("a.sh", "--fsdp full_shard --fsdp_config '{\"a\"'")], "is neither keys with values");
}
