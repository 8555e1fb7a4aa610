use std::path::Path;
use std::process::Command;

/// It prepares a shard by hand, so it has to follow what the scripts take.
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
