//! The `flashsale` binary: parses the command line and hands over to `cli`.

fn main() -> std::process::ExitCode {
    flashsale::cli::main()
}
