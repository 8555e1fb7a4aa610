//! `flashsale man`: the manual pages, made from the same text as `--help`.

use crate::cli::Failure;
use crate::cli::shared::output;
use anyhow::Context as _;
use clap_mangen::Man;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  flashsale man | man -l -
  flashsale man sale restock | man -l -
  flashsale man --out ~/.local/share/man/man1     # one page a command; then: man flashsale-sale")]
pub struct Args {
    /// The command of the page; without it, the page of flashsale itself.
    #[arg(value_name = "COMMAND")]
    path: Vec<String>,
    /// Write all pages into this folder; it is created if it is missing.
    #[arg(long, value_name = "DIR", conflicts_with = "path")]
    out: Option<PathBuf>,
}

/// Prints one page, or writes them all.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut command = crate::cli::command();
    if let Some(dir) = &args.out {
        let written = std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(command, dir));
        written.with_context(|| format!("the pages cannot be written into {}", dir.display()))?;
        return Ok(());
    }
    // Gives each subcommand its full name and the options of the commands above it.
    command.build();
    for name in &args.path {
        let found = command.find_subcommand(name).filter(|it| !it.is_hide_set()).cloned();
        command = found.ok_or_else(|| {
            let path = args.path.join(" ");
            Failure::Usage(format!(
                "there is no command {}: see flashsale --help",
                output::one_line(&path)
            ))
        })?;
    }
    let mut page = Vec::new();
    Man::new(command).render(&mut page).context("the page cannot be made")?;
    output::print(&String::from_utf8_lossy(&page))
}
