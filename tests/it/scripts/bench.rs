use std::path::Path;
use std::process::Command;

/// A mistyped number of rounds is bad usage, and not an empty measurement.
#[test]
fn a_number_of_rounds_that_is_none_is_bad_usage() {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (script, rounds) in [
        ("loadtest/bench.sh", "celing"),
        ("loadtest/bench.sh", "0"),
        ("loadtest/limits.sh", "-1"),
    ] {
        let run = Command::new(scripts.join(script)).arg(rounds).output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{said}");
        assert!(said.starts_with(&format!("usage: {script} [ROUNDS]")), "{said}");
        assert!(said.contains(rounds), "{said}");
    }
}

/// It prepares a shard by hand, so it has to follow the arguments of the scripts.
#[test]
fn the_benchmark_of_the_purchase_script_still_sells() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("loadtest/bench.sh");
    let run = Command::new(script)
        .arg("1")
        .env("BENCH_CALLS", "3000")
        .output()
        .unwrap();
    let (said, complained) = (
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr),
    );
    assert!(run.status.success(), "{said}{complained}");
    assert!(said.starts_with("round 1: SET "), "{said}{complained}");
    assert!(said.contains(" bytes a purchase ("), "{said}");
}
