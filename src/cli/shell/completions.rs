//! `flashsale completions`: prints a shell's completion script. The scripts call `flashsale complete-words` for the ids
//! of sales and orders, and for SKUs.

use crate::cli::Failure;
use crate::cli::shared::output;
use clap_complete::Shell;

/// The head of the generated function, which completes commands and options.
const GENERATED: &str = "_flashsale() {";
/// Stands in place of that head: asks the program first.
const BASH: &str = r#"_flashsale() {
    local word words last=0 line=("")
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        # bash cuts a word behind an @, and replaces all of it.
        if [[ ${line[last]} == @ ]]; then
            line[last]+=$word
        else
            last=$((last + 1))
            line[last]=$word
        fi
    done
    words=$("$1" complete-words -- "${line[@]:1}" 2>/dev/null | cut -f 1)
    if [[ -n $words ]]; then
        COMPREPLY=( $words )
    else
        _flashsale_words "$@"
    fi
}

_flashsale_words() {"#;
/// As [`BASH`], with descriptions.
const ZSH: &str = r#"_flashsale() {
    local -a found
    found=( ${(f)"$("${words[1]}" complete-words -- "${(@)words[2,CURRENT]}" 2>/dev/null)"} )
    if (( $#found )); then
        found=( ${found/$'\t'/:} )
        _describe 'sale, order or SKU' found
    else
        _flashsale_words "$@"
    fi
}

_flashsale_words() {"#;
/// Stands behind the generated lines. Where the program has words, fish offers no files beside them.
const FISH: &str = r#"complete -c flashsale -f -k -n 'set -g __flashsale_words (flashsale complete-words -- (commandline -opc)[2..-1] "$(commandline -ct)" 2>/dev/null); test -n "$__flashsale_words"' -a '$__flashsale_words'
"#;

#[derive(clap::Args)]
#[command(after_help = "\
bash, zsh and fish also complete the ids of sales and orders, and SKUs: with FLASHSALE_ADMIN_KEY of all sales, else of
those that shoppers see, without orders. They ask the server at FLASHSALE_URL.

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
    // Without the hidden commands, which other programs call.
    let all = crate::cli::command();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set());
    let mut shown = clap::Command::new("flashsale")
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .subcommands(shown.cloned());
    clap_complete::generate(args.shell, &mut shown, "flashsale", &mut script);
    let script = String::from_utf8_lossy(&script);
    output::print(&match args.shell {
        Shell::Bash => script.replacen(GENERATED, BASH, 1),
        Shell::Zsh => script.replacen(GENERATED, ZSH, 1),
        Shell::Fish => format!("{script}{FISH}"),
        _ => script.into_owned(),
    })
}
