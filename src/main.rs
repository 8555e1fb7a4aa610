//! The `flashsale` binary: parses the command line and hands over to `cli`.

/// A purchase makes some hundred small allocations on several threads. The system's allocator took a quarter of the
/// application's time for them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    flashsale::cli::main()
}
