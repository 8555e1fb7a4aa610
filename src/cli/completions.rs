//! `flashsale completions`: prints a shell's completion script.

use super::{Failure, output};
use clap_complete::Shell;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  source <(flashsale completions bash)                # in ~/.bashrc, to have them in each shell
  mkdir -p ~/.zfunc && flashsale completions zsh > ~/.zfunc/_flashsale     # with fpath+=(~/.zfunc) before compinit in ~/.zshrc
  flashsale completions fish | source                 # in ~/.config/fish/config.fish, to have them in each shell")]
pub struct Args {
    /// The shell to print the script for.
    #[arg(value_enum)]
    shell: Shell,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "flashsale", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
