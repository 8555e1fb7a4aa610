//! The tutorial and the README, pasted into a shell from top to bottom. Only the build is left out: `./dev up` runs the
//! program that was built with the tests.

use crate::support::app::program_path;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

/// A block that is pasted at once, and the answer that the page shows for it.
#[derive(Debug)]
struct Block {
    /// Where it stands in its page.
    line: usize,
    code: String,
    answer: Vec<String>,
}

/// The commands of a page, or of one of its sections.
fn blocks(page: &str, section: Option<&str>) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut inside: Option<(usize, &str, Vec<&str>)> = None;
    let mut is_read = section.is_none();
    for (line, number) in page.lines().zip(1..) {
        match (&mut inside, line.strip_prefix("```")) {
            (None, Some(kind)) => inside = Some((number, kind, Vec::new())),
            (None, None) => {
                if let (Some(section), true) = (section, line.starts_with("## ")) {
                    is_read = line == section;
                }
            }
            (Some((_, _, lines)), None) => lines.push(line),
            (Some(_), Some(_)) => match inside.take() {
                Some((line, "sh", lines)) if is_read => blocks.push(Block {
                    line,
                    code: lines.join("\n"),
                    answer: Vec::new(),
                }),
                Some((_, "text", lines)) if is_read => {
                    let block = blocks.last_mut().expect("an answer follows its commands");
                    block.answer = lines.iter().map(|line| (*line).to_owned()).collect();
                }
                _ => {}
            },
        }
    }
    blocks
}

/// Whether a line is as the page shows it, where `…` stands for anything.
fn is_like(line: &str, shown: &str) -> bool {
    let mut parts = shown.trim_end().split('…');
    let Some(mut rest) = line.trim_end().strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let mut last = None;
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
        last = Some(part);
    }
    rest.is_empty() || last == Some("")
}

/// A folder like that of the repository, whose `./dev` builds nothing.
fn checkout() -> tempfile::TempDir {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    // Postgres runs as another user if we are root, and must be able to pass.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(folder.path().join("bin")).unwrap();
    symlink(program_path(), folder.path().join("bin/flashsale")).unwrap();
    for name in ["sale.example.toml", "docs"] {
        symlink(root.join(name), folder.path().join(name)).unwrap();
    }
    let dev = folder.path().join("dev");
    fs::write(&dev, "#!/bin/sh\nexec flashsale \"$@\"\n").unwrap();
    fs::set_permissions(&dev, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Starts an instance as in the other terminal of the README.
const START: &str = "./dev up --listen 127.0.0.1:0 > up.log 2>&1 &
SERVER=$!
until grep -q '^# watch' up.log; do kill -0 $SERVER || { cat up.log; exit 1; }; sleep 0.1; done";

const BEGINS: &str = "@@ the block of line";

/// Pastes `prepare` and then the blocks into one shell, and compares the output with the page.
fn paste(page: &str, prepare: &str, blocks: &[Block]) {
    let folder = checkout();
    let mut script = format!(
        "exec 2>&1\nset -eu\nSERVER=\ntrap '[ -z \"$SERVER\" ] || kill \"$SERVER\" 2>/dev/null || :; wait' EXIT\n{prepare}\n"
    );
    for block in blocks {
        script += &format!("echo '{BEGINS} {}'\n{}\n", block.line, block.code);
    }
    fs::write(folder.path().join("pasted.sh"), script).unwrap();
    let path = std::env::var("PATH").unwrap();
    let output = Command::new("timeout")
        .args(["--kill-after=20", "150", "sh", "pasted.sh"])
        .current_dir(folder.path())
        .env_clear()
        .env("PATH", format!("{}:{path}", folder.path().join("bin").display()))
        .env("no_proxy", "127.0.0.1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{page}: {}\n{said}", output.status);
    for (block, said) in blocks.iter().zip(said.split(BEGINS).skip(1)) {
        let mut lines = said.lines().skip(1);
        for shown in &block.answer {
            assert!(
                lines.any(|line| is_like(line, shown)),
                "{page}:{}: no line like {shown:?} is next in\n{said}",
                block.line
            );
        }
    }
}

fn read(page: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap()
}

#[test]
fn the_tutorial_does_what_it_says_from_top_to_bottom() {
    let blocks = blocks(&read("docs/tutorial.md"), None);
    assert!(blocks.len() > 10 && blocks.iter().filter(|block| !block.answer.is_empty()).count() > 8);
    paste("docs/tutorial.md", "", &blocks);
}

#[test]
fn the_sale_of_the_readme_goes_from_beginning_to_end() {
    let mut blocks = blocks(&read("README.md"), Some("## A sale from beginning to end"));
    assert!(!blocks.is_empty());
    // This test uses no server at the usual port.
    for block in &mut blocks {
        let usual = "http://127.0.0.1:8080";
        block.code = block
            .code
            .replace(usual, "$(sed 's/.*\"http\":\"\\([^\"]*\\).*/\\1/' data/run.json)");
    }
    paste("README.md", START, &blocks);
}

#[test]
fn the_commands_that_up_prints_can_be_pasted_also_with_your_own_certificate() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = format!(
        "cat > cert.pem <<'PEM'\n{}PEM\ncat > key.pem <<'PEM'\n{}PEM\n\
         export FLASHSALE_TLS_CERT=cert.pem FLASHSALE_TLS_KEY=key.pem\n",
        made.cert.pem(),
        made.signing_key.serialize_pem()
    );
    let without = "unset FLASHSALE_TLS_CERT FLASHSALE_TLS_KEY";
    for (files, at) in [("", "http://127.0.0.1:…"), (&files, "https://localhost:…")] {
        let prepare = format!("{files}{START}\n{without}\n");
        // The last of the lines follows the sale until it is interrupted.
        let code = "grep 'is ready at' up.log\nsed -n '/^# prepare$/,/^# watch$/p' up.log > printed.sh\n. ./printed.sh";
        let ready = format!("Flashsale is ready at {at}");
        let answer = [ready.as_str(), "order …", "applied  payment pay_…"];
        let block = Block {
            line: 0,
            code: code.to_owned(),
            answer: answer.map(str::to_owned).into(),
        };
        paste("what `up` prints", &prepare, &[block]);
    }
}

#[test]
fn answers_are_compared_line_by_line() {
    assert!(is_like("sale 1-2 is open", "sale … is open"));
    assert!(!is_like("sale 1-2 is open or so", "sale … is open"));
    assert!(is_like("a b c", "a …"));
    assert!(is_like("", ""));
    assert!(!is_like("x", ""));
    let page = "# p\n```sh\none\n```\n\n```text\n1\n…\n```\n## s\n```sh\ntwo\n```\n```toml\nthree\n```\n";
    let all = blocks(page, None);
    assert_eq!((all.len(), all[0].line, all[0].code.as_str()), (2, 2, "one"));
    assert_eq!(all[0].answer, ["1", "…"]);
    let section = blocks(page, Some("## s"));
    assert_eq!((section.len(), section[0].code.as_str()), (1, "two"));
}
