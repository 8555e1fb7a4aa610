//! The `flashsale-bench` binary: parses the command line and hands over to `cli`.

/// The allocator of the delivered program, so that the other ways to sell are measured with the same one.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    flashsale_bench::cli::main()
}
