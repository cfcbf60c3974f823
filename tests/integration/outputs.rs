//! Where outputs may go, and what is left of those that cannot (K3).

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use formats::safetensors::Dtype;
use serde_json::{Value, json};

use crate::harness::{Case, Model, Run, mini_config, program, run};

fn mini() -> Model {
    Model::noise(mini_config(), Dtype::BF16, 1)
}

fn zeros(edit: impl FnOnce(&mut Value)) -> Model {
    let mut config = mini_config();
    edit(&mut config);
    Model::new(config, Dtype::BF16, |spec| vec![0.0; spec.parameters() as usize])
}

#[test]
fn up_302_inputs_of_no_whole_rotation_blocks_are_refused_before_the_first_byte() {
    for (width, fits) in [(896, "every matrix is 128"), (6912, "every matrix is 256")] {
        // Every other input is one block of 1024 wide.
        let case = Case::new(&zeros(|c| {
            c["intermediate_size"] = json!(width);
            c["hidden_size"] = json!(1024);
            c["num_attention_heads"] = json!(16);
        }));
        let shape = format!("[out, in] = [1024, {width}]");
        run(&[&case.weights(), &"-o", &case.out("m.q4nx"), &"-o", &case.out("m.gguf")]).refused(
            3,
            &["`layers.0.mlp.down_proj.weight`", "1024 (rotation block)", &shape, fits],
        );
        assert!(case.made().is_empty());
    }
}

#[test]
fn up_302_rows_of_6912_inputs_are_written_in_blocks_of_256() {
    let case = Case::new(&zeros(|c| c["intermediate_size"] = json!(6912)));
    case.ternarize(&["m.q4nx", "m.gguf"], &[]).ok();
}

#[test]
fn up_302_rows_that_are_no_whole_tiles_are_refused_by_q4nx_alone() {
    let case = Case::new(&zeros(|c| c["intermediate_size"] = json!(896)));
    let args = |name| -> Run { run(&[&case.weights(), &"--block=128", &"-o", &case.out(name)]) };
    args("m.q4nx").refused(
        3,
        &[
            "m.q4nx",
            "`layers.0.mlp.down_proj.weight`",
            "columns (inputs) in multiples of 256",
            "[256, 896]",
            "GGUF",
        ],
    );
    assert!(case.made().is_empty());
    args("m.gguf").ok();
}

#[test]
fn up_302_outputs_that_are_no_whole_tiles_are_refused_by_q4nx_alone() {
    let case = Case::new(&zeros(|c| c["dflash_config"]["selector_rank"] = json!(40)));
    case.is_refused(
        3,
        &[
            "candidate_selector.hidden_projection.weight",
            "rows (outputs) in multiples of 32",
            "[40, 256]",
        ],
    );
    case.ternarize(&["m.gguf"], &[]).ok();
}

#[test]
fn up_304_an_existing_output_needs_force() {
    let case = Case::new(&mini());
    for name in ["m.gguf", "m.q4nx"] {
        fs::write(case.out(name), "mine").unwrap();
        case.ternarize(&[name], &[]).refused(4, &[name, "exists", "--force"]);
        assert_eq!(fs::read(case.out(name)).unwrap(), b"mine");
        case.ternarize(&[name], &["--force"]).ok();
        assert!(fs::read(case.out(name)).unwrap().len() > 4);
    }
    assert_eq!(case.made(), ["config.json", "m.gguf", "m.q4nx"]);
}

#[test]
fn up_304_a_second_output_that_exists_stops_the_first() {
    let case = Case::new(&mini());
    fs::write(case.out("b.gguf"), "mine").unwrap();
    case.ternarize(&["a.q4nx", "b.gguf"], &[]).refused(4, &["b.gguf", "exists"]);
    assert_eq!(case.made(), ["b.gguf"]);
}

#[test]
fn up_304_an_existing_config_needs_force() {
    let case = Case::new(&mini());
    fs::write(case.out("config.json"), "mine").unwrap();
    case.ternarize(&["m.q4nx"], &[]).refused(4, &["config.json", "exists", "--force"]);
    assert_eq!(fs::read(case.out("config.json")).unwrap(), b"mine");
    assert_eq!(case.made(), ["config.json"]);
    case.ternarize(&["m.q4nx"], &["--force"]).ok();
    assert_ne!(fs::read(case.out("config.json")).unwrap(), b"mine");
}

#[test]
fn up_304_a_report_is_an_output_like_the_others() {
    let case = Case::new(&mini());
    let report = |path: &Path| format!("--report={}", path.display());
    fs::write(case.out("report.json"), "older").unwrap();
    let older = report(&case.out("report.json"));
    case.ternarize(&["m.gguf"], &[&older]).refused(4, &["report.json", "exists", "--force"]);
    assert_eq!(fs::read(case.out("report.json")).unwrap(), b"older");
    case.ternarize(&["m.gguf"], &[&older, "--force"]).ok();
    assert_ne!(fs::read(case.out("report.json")).unwrap(), b"older");

    let left = case.made();
    input_is_left_alone(&case, || {
        for (path, problem) in [
            (case.weights(), "this is the input"),
            (case.input("config.json"), "this is the input"),
            (case.out("n.gguf"), "two outputs"),
            (case.out("../out/n.gguf"), "two outputs"),
            (case.out("n.gguf.partial"), "names in .partial"),
            (case.out("missing/report.json"), "No such file"),
            (case.out(""), "this is a folder"),
        ] {
            case.ternarize(&["n.gguf"], &[&report(&path), "--force"]).refused(4, &[problem]);
        }
        let config = report(&case.out("config.json"));
        case.ternarize(&["n.q4nx"], &[&config]).refused(4, &["config.json", "two outputs"]);
    });
    assert_eq!(case.made(), left);
}

#[test]
fn up_304_an_input_is_not_taken_for_a_left_over() {
    let case = Case::new(&mini());
    case.ternarize(&["m.gguf"], &[]).ok();
    let whole = fs::read(case.out("m.gguf")).unwrap();
    // As a download is called until it is through.
    fs::rename(case.out("m.gguf"), case.out("n.gguf.partial")).unwrap();
    case.convert("n.gguf.partial", "n.gguf", &["--force", "--format=ptq1_0"])
        .refused(4, &["n.gguf", "pass through the input"]);
    assert!(fs::read(case.out("n.gguf.partial")).unwrap() == whole);
}

#[test]
fn up_304_an_output_does_not_pass_through_another() {
    let case = Case::new(&mini());
    for names in [["m", "m.partial"], ["m.partial", "m"]] {
        case.ternarize(&names, &["--format=pq2_0", "--format=ptq1_0", "--force"])
            .refused(4, &["m.partial", "names in .partial are kept"]);
    }
    assert!(case.made().is_empty());
}

/// Both files of the input, before and after `check`.
fn input_is_left_alone(case: &Case, check: impl FnOnce()) {
    let read = || [case.weights(), case.input("config.json")].map(|p| fs::read(p).unwrap());
    let before = read();
    check();
    assert!(read() == before);
}

#[test]
fn up_304_an_output_is_never_the_input() {
    let case = Case::new(&mini());
    fs::create_dir(case.input("sub")).unwrap();
    symlink(case.weights(), case.out("link.gguf")).unwrap();
    fs::hard_link(case.weights(), case.out("hard.gguf")).unwrap();
    symlink(case.input(""), case.root().join("folder")).unwrap();
    let left = case.made();
    input_is_left_alone(&case, || {
        for path in [
            case.weights(),
            case.input("./sub/../model.safetensors"),
            case.root().join("folder/model.safetensors"),
            case.out("link.gguf"),
            case.out("hard.gguf"),
            case.input("config.json"),
        ] {
            for force in ["--force", "--quiet"] {
                run(&[&case.weights(), &"--block=256", &"-o", &path, &"--format=pq2_0", &force])
                    .refused(4, &["this is the input", path.to_str().unwrap()]);
            }
        }
    });
    assert_eq!(case.made(), left);
    assert_eq!(fs::read_dir(case.input("")).unwrap().count(), 3);
}

#[test]
fn up_304_an_output_is_never_a_shard() {
    let case = Case::empty();
    let shards = mini().write_shards(&case.input(""));
    let before = fs::read(case.input(shards[1])).unwrap();
    run(&[
        &case.input(""),
        &"--block=256",
        &"-o",
        &case.input(shards[1]),
        &"--format=pq2_0",
        &"--force",
    ])
    .refused(4, &["this is the input", shards[1]]);
    assert!(fs::read(case.input(shards[1])).unwrap() == before);
}

#[test]
fn up_304_a_config_beside_the_input_is_never_replaced() {
    let case = Case::new(&mini());
    let output = case.input("ternary.q4nx");
    input_is_left_alone(&case, || {
        run(&[&case.weights(), &"--block=256", &"-o", &output]).ok();
        // Under this name the input itself would be read with it.
        run(&[&case.weights(), &"--block=256", &"-o", &case.input("model.q4nx")])
            .refused(4, &["model.config.json", "model.safetensors", "would be read with too"]);
    });
    // Read back by the other name, without being told.
    assert!(case.input("ternary.config.json").exists());
    run(&[&"convert", &output, &"-o", &case.out("m.gguf")]).ok();
}

#[test]
fn up_304_two_outputs_of_one_stem_are_not_read_with_one_config() {
    let case = Case::new(&mini());
    case.ternarize(&["m.q4nx"], &[]).ok();
    for names in [["a.q4nx", "a.safetensors"], ["a.safetensors", "a.q4nx"]] {
        let outputs = names.map(|name| case.out(name));
        run(&[&"convert", &case.out("m.q4nx"), &"-o", &outputs[0], &"-o", &outputs[1], &"--force"])
            .refused(4, &["a.config.json", "would be read with too"]);
    }
}

#[test]
fn up_304_a_tokenizer_is_an_input_too() {
    let case = Case::new(&mini());
    case.ternarize(&["t.gguf"], &[]).ok();
    let tokenizer = case.out("tokenizer_config.json");
    fs::write(&tokenizer, "{}").unwrap();
    // Refused for what it is not, or because it would be replaced: never replaced.
    for output in ["t.gguf", "tokenizer_config.json"] {
        let before = fs::read(case.out(output)).unwrap();
        let argument = format!("--tokenizer={}", case.out("t.gguf").display());
        run(&[
            &case.weights(),
            &"--block=256",
            &"-o",
            &case.out(output),
            &"--format=pq2_0",
            &argument,
            &"--force",
        ]);
        assert!(fs::read(case.out(output)).unwrap() == before);
    }
}

#[test]
fn up_304_links_and_devices_are_not_replaced() {
    let case = Case::new(&mini());
    symlink("elsewhere", case.out("m.gguf")).unwrap();
    case.ternarize(&["m.gguf"], &["--force"]).refused(4, &["m.gguf", "link, pipe or device"]);
    fs::remove_file(case.out("m.gguf")).unwrap();
    let victim = case.input("victim");
    fs::write(&victim, "precious").unwrap();
    symlink(&victim, case.out("m.gguf.partial")).unwrap();
    case.ternarize(&["m.gguf"], &[]).refused(4, &["m.gguf", "symbolic link"]);
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn up_304_a_config_beside_the_input_is_found_through_links_too() {
    let case = Case::new(&mini());
    symlink(case.input("config.json"), case.out("config.json")).unwrap();
    input_is_left_alone(&case, || {
        case.ternarize(&["m.q4nx"], &["--force"]).ok();
    });
    assert_eq!(case.made(), ["config.json", "m.config.json", "m.q4nx"]);
}

#[test]
fn up_304_folders_that_are_missing_or_no_folders_are_named() {
    let case = Case::new(&mini());
    fs::write(case.out("file"), "").unwrap();
    for (path, problem) in
        [("missing/m.gguf", "No such file or directory"), ("file/m.gguf", "is no folder")]
    {
        for more in ["--force", "--dry-run"] {
            case.ternarize(&[path], &[more]).refused(4, &[path, problem]);
        }
    }
    assert_eq!(case.made(), ["file"]);
}

#[test]
fn up_304_a_folder_is_no_output() {
    let case = Case::new(&mini());
    fs::create_dir(case.out("m.gguf")).unwrap();
    case.ternarize(&["m.gguf"], &["--force"]).refused(4, &["m.gguf", "this is a folder"]);
    run(&[&case.weights(), &"--block=256", &"--format=q4nx", &"-o", &case.out("..")])
        .refused(4, &["no file name"]);
    assert_eq!(case.made(), ["m.gguf"]);
}

#[test]
fn up_304_a_folder_that_may_not_be_written_is_refused() {
    let case = Case::new(&mini());
    // Nobody makes files here, root included.
    let path = Path::new("/proc/m.gguf");
    let refused = |path: &Path| {
        run(&[&case.weights(), &"--block=256", &"-o", &path]).refused(4, &[path.to_str().unwrap()])
    };
    let stderr = refused(path).stderr().to_owned();
    assert!(stderr.contains("takes no files") && !stderr.contains("space"), "{stderr}");
    if rustix::process::geteuid().is_root() {
        // Modes do not bind root.
        return;
    }
    fs::set_permissions(case.out(""), fs::Permissions::from_mode(0o555)).unwrap();
    refused(&case.out("m.gguf"));
    fs::set_permissions(case.out(""), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(case.made().is_empty());
}

#[test]
fn up_304_standard_output_is_no_output() {
    let case = Case::new(&mini());
    run(&[&case.weights(), &"--block=256", &"--format=pq2_0", &"-o", &"-"])
        .refused(4, &["`-`", "cannot be a pipe"]);
}

#[test]
fn up_304_two_outputs_are_two_files() {
    let case = Case::new(&mini());
    case.ternarize(&["m.gguf", "m.gguf"], &[]).refused(4, &["m.gguf", "two outputs"]);
    case.ternarize(&["m.gguf", "./m.gguf"], &[]).refused(4, &["m.gguf", "two outputs"]);
    fs::create_dir(case.out("sub")).unwrap();
    case.ternarize(&["m.gguf", "sub/../m.gguf"], &[]).refused(4, &["m.gguf", "two outputs"]);
    run(&[
        &case.weights(),
        &"--block=256",
        &"-o",
        &case.out("m.q4nx"),
        &"-o",
        &case.out("config.json"),
        &"--format=q4nx",
        &"--format=pq2_0",
    ])
    .refused(4, &["config.json", "two outputs"]);
    assert_eq!(case.made(), ["sub"]);
}

#[test]
fn two_q4nx_files_of_one_run_share_their_config() {
    let case = Case::new(&mini());
    case.ternarize(&["a.q4nx", "b.q4nx"], &[]).ok();
    assert_eq!(case.made(), ["a.q4nx", "b.q4nx", "config.json"]);
    case.ternarize(&["a.q4nx", "../out/b.q4nx"], &["--force"]).ok();
    assert!(fs::read(case.out("a.q4nx")).unwrap() == fs::read(case.out("b.q4nx")).unwrap());
}

/// A run in a shell, as `"$@"` of `script`.
fn in_shell(wrapper: &[&str], script: &str, case: &Case, outputs: &[&str]) -> Run {
    let run = case.command(outputs, &[]);
    let mut command = Command::new(wrapper[0]);
    command.args(&wrapper[1..]).args(["sh", "-c", script, "sh"]);
    command.arg(program()).args(run.get_args());
    Run::of(command)
}

/// Runs with `bytes` of room in the outputs' folder, on a file system of its own.
/// None where this machine does not let a test mount one.
fn with_room(case: &Case, bytes: u64, outputs: &[&str]) -> Option<(Run, String)> {
    let mount = format!(
        "mount -t tmpfs -o size={bytes} ternarize-test {0} || exit 77; \"$@\"; code=$?; ls {0}; exit $code",
        case.out("").display()
    );
    for unshare in
        [["unshare", "--mount", "--"].as_slice(), &["unshare", "--mount", "--map-root-user", "--"]]
    {
        let Ok(found) = Command::new("unshare").arg("--version").output() else { return None };
        assert!(found.status.success());
        let mut run = in_shell(unshare, &mount, case, outputs);
        if matches!(run.output.status.code(), Some(1 | 77)) {
            continue;
        }
        // What `ls` listed is no output of the program.
        let left = run.stdout().to_owned();
        run.output.stdout.clear();
        return Some((run, left));
    }
    None
}

#[test]
fn up_304_a_disk_that_is_too_small_is_refused_before_the_work() {
    let case = Case::new(&mini());
    let Some((run, left)) = with_room(&case, 64 << 10, &["m.gguf"]) else { return };
    run.refused(4, &["m.gguf", "not enough space", "65536 are available"]);
    assert_eq!(left, "");
}

#[test]
fn up_304_a_disk_that_fills_up_at_the_last_file_leaves_nothing() {
    let case = Case::new(&mini());
    let len = case.q4nx(&[]).len() as u64;
    // Room for the weights to the page, none for the config.json.
    let Some((run, left)) = with_room(&case, len.next_multiple_of(4096), &["m.q4nx"]) else {
        return;
    };
    run.refused(4, &["config.json", "No space left on device"]);
    assert_eq!(left, "");
}

#[test]
fn up_304_a_file_size_limit_is_an_error_and_no_signal() {
    let case = Case::new(&mini());
    // In units of 512 bytes or of 1 KiB, either way less than the output.
    let run = in_shell(&["env"], "ulimit -f 64; exec \"$@\"", &case, &["m.gguf"]);
    run.refused(4, &["m.gguf", "File too large"]);
    assert!(case.made().is_empty());
}
