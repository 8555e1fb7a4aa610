//! The house rules that no compiler checks.

use crate::support::root;
use flashsale::domain::order::purchase::Refusal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Which module may import which: imports point one way, down the list in `src/lib.rs`.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("domain", &["domain"]),
    // Their calls are timed and counted where they happen: counters are below everything, as crash points are.
    ("stock", &["stock", "domain", "crash", "bugs", "metrics"]),
    ("ledger", &["ledger", "domain", "crash", "bugs"]),
    // A purchase carries its trace to the drain, which has it from the event.
    (
        "flow",
        &[
            "flow",
            "stock",
            "ledger",
            "domain",
            "cache",
            "crash",
            "bugs",
            "metrics",
            "telemetry",
        ],
    ),
    ("guard", &["guard", "flow", "stock", "domain", "cache", "metrics"]),
    // A request belongs to its client's trace.
    (
        "http",
        &[
            "http",
            "guard",
            "flow",
            "domain",
            "cache",
            "config",
            "metrics",
            "telemetry",
        ],
    ),
    ("listener", &["listener", "guard", "config", "metrics"]),
    ("scheduler", &["scheduler", "flow", "domain", "metrics"]),
    (
        "server",
        &[
            "server",
            "http",
            "listener",
            "guard",
            "scheduler",
            "flow",
            "stock",
            "ledger",
            "domain",
            "config",
            "metrics",
            "crash",
            "embedded",
            "telemetry",
        ],
    ),
    ("config", &["config", "domain"]),
    ("bugs", &["bugs"]),
    ("cache", &["cache"]),
    ("crash", &["crash"]),
    ("embedded", &["embedded", "stderr"]),
    ("stderr", &["stderr"]),
    ("metrics", &["metrics", "domain"]),
    // The names of this machine.
    ("telemetry", &["telemetry", "domain"]),
];

/// Crates that only these modules may name, so that everything about them is in one place.
const HAS_ALONE: &[(&str, &[&str])] = &[
    ("redis", &["stock"]),
    // `embedded` makes the database of a private server.
    ("sqlx", &["ledger", "embedded"]),
    ("actix_web", &["http", "listener", "server"]),
    // Its log is filtered by its name.
    ("actix_http", &["listener", "telemetry"]),
    ("tokio_rustls", &["listener"]),
    ("tokio_cron_scheduler", &["scheduler"]),
    ("opentelemetry", &["telemetry"]),
    ("opentelemetry_sdk", &["telemetry"]),
    ("opentelemetry_otlp", &["telemetry"]),
    ("tracing_opentelemetry", &["telemetry"]),
];

/// A source file without its comments and tests.
struct Source {
    path: PathBuf,
    /// Its module at the top of the crate; `main` and `lib` are none.
    module: String,
    /// Numbered from 1.
    lines: Vec<(usize, String)>,
}

fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == extension) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has no {extension} files");
    found.sort();
    found
}

fn short(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

fn sources() -> Vec<Source> {
    let paths = files("src", "rs");
    let mut only_tests = BTreeSet::new();
    let mut sources = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let mut lines = Vec::new();
        let mut all = text.lines().zip(1..).peekable();
        while let Some((line, number)) = all.next() {
            if line.trim() == "#[cfg(test)]" {
                let (next, _) = all.peek().unwrap();
                if next.ends_with('{') && next.contains("mod ") {
                    break; // Tests stand at the end of their file.
                }
                if let Some(name) = next.trim().strip_suffix(';').and_then(|it| it.rsplit_once("mod ")) {
                    only_tests.insert(path.with_extension("").join(name.1).with_extension("rs"));
                    all.next();
                    continue;
                }
            }
            if !line.trim_start().starts_with("//") {
                lines.push((number, line.to_owned()));
            }
        }
        let inside = path.strip_prefix(root().join("src")).unwrap().with_extension("");
        let module = inside.iter().next().unwrap().to_string_lossy().into_owned();
        sources.push(Source { path, module, lines });
    }
    sources.retain(|source| !only_tests.contains(&source.path));
    sources
}

/// The text after each occurrence of `start` in `line` that is no part of a longer path or name.
fn after<'a>(line: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    line.match_indices(start).filter_map(move |(at, _)| {
        let before = line[..at].chars().next_back();
        let is_whole = before.is_none_or(|it| !it.is_alphanumeric() && !"_:\"".contains(it));
        is_whole.then(|| &line[at + start.len()..])
    })
}

fn name(text: &str) -> &str {
    text.split(|it: char| !it.is_alphanumeric() && it != '_')
        .next()
        .unwrap_or_default()
}

/// The modules that a path through the crate names: one, or several in braces.
fn names(path: &str) -> Vec<&str> {
    match path.strip_prefix('{') {
        Some(group) => {
            let group = group.split('}').next().unwrap_or_default();
            group.split(',').map(|it| name(it.trim())).collect()
        }
        None => vec![name(path)],
    }
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn imports_point_one_way() {
    let may_import: BTreeMap<_, _> = MAY_IMPORT.iter().copied().collect();
    let mut wrong = Vec::new();
    for source in sources() {
        let at = |number: &usize| format!("{}:{number}", short(&source.path));
        let is_top = source.path.parent().unwrap() == root().join("src");
        for (number, line) in &source.lines {
            // A path that goes up from the top of the crate is one through the crate by another name.
            let goes_up = if is_top { "super::" } else { "super::super::" };
            if after(line, goes_up).next().is_some() {
                wrong.push(format!("{}: write crate:: for {goes_up}", at(number)));
            }
            if ["cli", "lib", "main"].contains(&source.module.as_str()) {
                continue;
            }
            let Some(allowed) = may_import.get(source.module.as_str()) else {
                wrong.push(format!(
                    "{}: say in this test what {} may import",
                    at(number),
                    source.module
                ));
                break;
            };
            for target in after(line, "crate::").flat_map(names) {
                if !allowed.contains(&target) {
                    wrong.push(format!("{}: {} may not import {target}", at(number), source.module));
                }
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn each_server_and_framework_is_named_in_one_place() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (number, line) in &source.lines {
            for (krate, modules) in HAS_ALONE {
                // `embedded` has a module of its own that is called redis.
                let is_own = source.path.ends_with("src/embedded.rs") && *krate == "redis";
                let names = after(line, &format!("{krate}::")).next().is_some();
                if names && !is_own && !modules.contains(&source.module.as_str()) {
                    let at = short(&source.path);
                    wrong.push(format!(
                        "{at}:{number}: only {} may name {krate}",
                        modules.join(" and ")
                    ));
                }
            }
        }
    }
    assert_none(&wrong);
}

/// An index that is built in a transaction blocks every write meanwhile.
#[test]
fn migrations_build_indexes_outside_of_transactions() {
    let mut wrong = Vec::new();
    for path in files("migrations", "sql") {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).unwrap().to_lowercase();
        let code: Vec<&str> = text.lines().filter(|line| !line.starts_with("--")).collect();
        let code = code.join(" ");
        let builds = code.contains("create index") || code.contains("create unique index");
        let alone = text.starts_with("-- no-transaction") && code.matches(';').count() == 1;
        if name.as_str() >= "20261124" && builds && !(alone && code.contains("index concurrently")) {
            wrong.push(format!(
                "{name}: write -- no-transaction, and one `create index concurrently` alone"
            ));
        }
    }
    assert_none(&wrong);
}

/// A check that is valid at once scans the table under a lock, and `orders` is long.
#[test]
fn migrations_add_checks_of_orders_without_a_scan() {
    let mut wrong = Vec::new();
    for path in files("migrations", "sql") {
        let name = short(&path);
        let text = fs::read_to_string(&path).unwrap().to_lowercase();
        let statements = text.split(';').filter(|it| it.contains("alter table orders"));
        for statement in statements.filter(|it| it.contains("check (") && !it.contains("not valid")) {
            if name.as_str() >= "migrations/20261125" {
                wrong.push(format!("{name}: write `not valid`: {}", statement.trim()));
            }
        }
    }
    assert_none(&wrong);
}

/// The parts of a path through the crate, one for each name in braces.
fn paths(tree: &str) -> Vec<Vec<String>> {
    let (head, rest) = tree.split_at(
        tree.find(|it: char| !it.is_alphanumeric() && !"_:".contains(it))
            .unwrap_or(tree.len()),
    );
    let parts: Vec<String> = head
        .split("::")
        .filter(|it| !it.is_empty())
        .map(str::to_owned)
        .collect();
    let Some(group) = rest.strip_prefix('{') else {
        return vec![parts];
    };
    let (mut depth, mut begin, mut found) = (0, 0, Vec::new());
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                found.extend(paths(group[begin..at].trim()));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.extend(paths(group[begin..at].trim()));
                begin = at + 1;
            }
            _ => {}
        }
    }
    found.iter().map(|end| [parts.as_slice(), end].concat()).collect()
}

fn module_of(source: &Source) -> Vec<String> {
    let inside = source.path.strip_prefix(root().join("src")).unwrap().with_extension("");
    inside.iter().map(|part| part.to_string_lossy().into_owned()).collect()
}

/// The modules of the files that a file imports, without those that declare it.
fn imports(source: &Source, modules: &BTreeSet<Vec<String>>) -> BTreeSet<Vec<String>> {
    let own = module_of(source);
    let lines: Vec<&str> = source.lines.iter().map(|(_, line)| line.trim()).collect();
    let text = lines.join(" ");
    let mut found = BTreeSet::new();
    for start in ["crate::", "super::"] {
        for tree in after(&text, start) {
            for mut path in paths(tree) {
                if start == "super::" {
                    let more = path.iter().take_while(|part| *part == "super").count();
                    let above = own.len().saturating_sub(1 + more);
                    path = [&own[..above], &path[more..]].concat();
                }
                let named = (1..=path.len()).rev().map(|length| path[..length].to_vec());
                found.extend(named.into_iter().find(|it| modules.contains(it)));
            }
        }
    }
    found.retain(|it| !own.starts_with(it));
    found
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let sources = sources();
    let modules: BTreeSet<Vec<String>> = sources.iter().map(module_of).collect();
    let mut left: BTreeMap<_, _> = sources
        .iter()
        .map(|it| (module_of(it), imports(it, &modules)))
        .collect();
    let found: usize = left.values().map(BTreeSet::len).sum();
    assert!(found > 1000, "{found} imports");
    // A file whose imports are in no circle is in none.
    while let Some(free) = left.iter().find_map(|(it, named)| named.is_empty().then(|| it.clone())) {
        left.remove(&free);
        left.values_mut().for_each(|named| _ = named.remove(&free));
    }
    let shown = |it: &Vec<String>| it.join("::");
    let wrong: Vec<String> = left
        .iter()
        .map(|(it, named)| {
            format!(
                "{} -> {}",
                shown(it),
                named.iter().map(shown).collect::<Vec<_>>().join(", ")
            )
        })
        .collect();
    assert_none(&wrong);
}

/// The API document tells clients this order. Proofs are checked between the key and what the script checks.
#[test]
fn refusals_are_listed_in_the_order_of_the_checks() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let (script, orders) = (read("lua/sell/purchase.lua"), read("src/http/shop/orders.rs"));
    let (_, proofs) = orders.split_once("fn refused_by(").unwrap();
    let (proofs, _) = proofs.split_once("\n    }\n").unwrap();
    let names: Vec<String> = Refusal::each()
        .iter()
        .map(|refusal| name(&format!("{refusal:?}")).to_owned())
        .collect();
    let by_proofs = |name: &String| proofs.find(&format!("Refusal::{name}"));
    let by_script = |name: &String| {
        let mut code = String::new();
        for letter in name.chars() {
            if letter.is_uppercase() && !code.is_empty() {
                code.push('_');
            }
            code.push(letter.to_ascii_uppercase());
        }
        // The script's answer about units that it lacks is one of several outcomes.
        script.find(&format!("{{ '{}'", code.replace("SOLD_OUT", "SHORT")))
    };
    let item = names.iter().position(|name| name == "ItemNotFound").unwrap();
    assert_eq!(names[..2], ["SaleNotFound", "KeyReused"]);
    let of_script = [&names[1..2], &names[item + 1..]].concat();
    let places: [Vec<_>; 2] = [
        names[2..item].iter().map(by_proofs).collect(),
        of_script.iter().map(by_script).collect(),
    ];
    for places in places {
        assert!(
            places.iter().all(Option::is_some) && places.is_sorted(),
            "{names:?} {places:?}"
        );
    }
}

/// A bug that no test seeds is dead code.
#[test]
fn every_bug_that_production_code_can_have_is_seeded_by_a_test() {
    let seeded = fs::read_to_string(root().join("tests/it/torture/seeded.rs")).unwrap();
    let mut wrong = Vec::new();
    for source in sources() {
        for (number, line) in &source.lines {
            for rest in line.split("bugs::has(\"").skip(1) {
                let name = rest.split('"').next().unwrap();
                if !seeded.contains(&format!("\"{name}\"")) {
                    wrong.push(format!("{}:{number}: {name}", short(&source.path)));
                }
            }
        }
    }
    assert_none(&wrong);
}

/// The rights of a request, and the state after its crash, are written in the flows alone.
#[test]
fn http_reaches_redis_and_postgres_by_flows_alone() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| source.module == "http") {
        for (number, line) in &source.lines {
            for word in ["app.stock", "app.ledger", ".ledger.", ".stock."] {
                if line.contains(word) && !line.contains("item.stock.") {
                    wrong.push(format!("{}:{number}: {word}", short(&source.path)));
                }
            }
        }
    }
    assert_none(&wrong);
}

/// Postgres and Redis decide which sales are over: a host's clock may be wrong by days.
#[test]
fn keys_are_removed_by_no_hosts_clock() {
    for path in ["src/flow/operate/retire.rs", "src/stock/operate/retire.rs"] {
        assert!(
            !fs::read_to_string(root().join(path)).unwrap().contains("Utc::now"),
            "{path}"
        );
    }
}

#[test]
fn the_domain_reads_no_clock_and_does_no_input_or_output() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| source.module == "domain") {
        for (number, line) in &source.lines {
            for word in [
                "::now()",
                "std::fs",
                "std::net",
                "std::env",
                "tokio::",
                "reqwest::",
                "async fn",
            ] {
                if line.contains(word) {
                    wrong.push(format!("{}:{number}: {word}", short(&source.path)));
                }
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn production_code_neither_panics_on_purpose_nor_is_unfinished() {
    let words = [
        ".unwrap()",
        ".expect(",
        "todo!(",
        "unimplemented!(",
        "dbg!(",
        "panic!(",
        "unreachable!(",
    ];
    let mut wrong = Vec::new();
    for source in sources() {
        for (number, line) in &source.lines {
            for word in words.iter().filter(|word| line.contains(**word)) {
                wrong.push(format!("{}:{number}: {word}", short(&source.path)));
            }
        }
    }
    assert_none(&wrong);
}

/// Where tests let time pass, and why no condition serves there.
const TIME_PASSES: &[(&str, &str)] = &[
    ("tests/it/torture/", "faults last, and shoppers think"),
    ("tests/it/promises/trouble.rs", "shoppers think"),
    ("tests/it/browser/console.rs", "shoppers think"),
    (
        "tests/it/http/report.rs",
        "a shopper has the page open for longer than a second",
    ),
    (
        "tests/it/promises/outage.rs",
        "a process stands still for longer than a purchase may take",
    ),
    (
        "tests/it/promises/suspension.rs",
        "a process is awake for a moment, or asleep for longer than a permit lasts",
    ),
];

#[test]
fn tests_wait_for_conditions_and_are_called_by_sentences() {
    // Assembled here, so that these lines do not match themselves.
    let [sleep, pass, wait_out] = ["sl/eep(", "pas/s(", "wait/_out("].map(|it| it.replace('/', ""));
    let passes = |line: &str| {
        [" ", ":"]
            .iter()
            .any(|before| line.contains(&format!("{before}{pass}")))
    };
    let mut wrong = Vec::new();
    for path in files("tests/it", "rs") {
        let text = fs::read_to_string(&path).unwrap();
        let may_pass = TIME_PASSES.iter().any(|(place, _)| short(&path).contains(place));
        let mut is_test = false;
        for (line, number) in text.lines().zip(1..) {
            let at = format!("{}:{number}", short(&path));
            // Only an answer that says how long to wait is waited out.
            let waits_out = line.contains(&wait_out) && !line.contains("retry_after()") && !line.contains("(seconds)");
            let is_pause = line.contains(&sleep) || waits_out || passes(line) && !may_pass;
            if is_pause && !path.ends_with("support/poll.rs") {
                wrong.push(format!("{at}: wait for the condition, with support::poll"));
            }
            let is_ignored = line.trim() == "#[ignore]" || line.trim().starts_with("#[ignore ");
            // It has a command of its own, and may take any time.
            let is_long = path.ends_with("torture/mod.rs") && line.contains("./dev torture");
            if is_ignored && !is_long {
                wrong.push(format!("{at}: a test that is never run proves nothing"));
            }
            if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test) {
                if name(rest).split('_').count() < 3 {
                    wrong.push(format!("{at}: {} is no sentence", name(rest)));
                }
                is_test = false;
            }
            let attribute = line.trim().split(['(', ']']).next();
            is_test |= attribute.is_some_and(|it| ["#[test", "#[tokio::test", "#[actix_web::test"].contains(&it));
        }
    }
    assert_none(&wrong);
}

#[test]
fn migrations_are_called_by_their_time_and_what_they_do() {
    for path in files("migrations", "sql") {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let (time, what) = stem.split_once('_').unwrap_or_default();
        let is_time = time.len() == 14 && time.bytes().all(|it| it.is_ascii_digit());
        let words: Vec<&str> = what.split('_').collect();
        let is_lower = words
            .iter()
            .all(|word| !word.is_empty() && word.bytes().all(|it| it.is_ascii_lowercase()));
        assert!(
            is_time && words.len() >= 2 && is_lower,
            "{} is not NNNNNNNNNNNNNN_verb_noun.sql",
            short(&path)
        );
    }
}

/// A Lua script: its header's lines, without the dashes, and its code.
struct Lua {
    name: String,
    header: Vec<String>,
    code: Vec<String>,
}

fn scripts() -> Vec<Lua> {
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let mut lines = text.lines();
        let first = lines.next().unwrap();
        assert!(
            first == "#!lua" || first.starts_with("#!lua flags="),
            "{}: {first}",
            short(&path)
        );
        let (header, code): (Vec<_>, Vec<_>) = {
            let all: Vec<&str> = lines.collect();
            let end = all.iter().position(|line| !line.starts_with("--")).unwrap();
            (all[..end].to_vec(), all[end..].to_vec())
        };
        let is_code = |line: &&&str| !line.trim_start().starts_with("--");
        Lua {
            name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
            header: header.iter().map(|line| line[2..].trim().to_owned()).collect(),
            code: code.iter().filter(is_code).map(|line| (*line).to_owned()).collect(),
        }
    };
    files("lua", "lua").into_iter().map(read).collect()
}

impl Lua {
    fn heading(&self, word: &str) -> Option<&str> {
        self.header
            .iter()
            .find_map(|line| line.strip_prefix(word))
            .map(str::trim)
    }

    /// The indices of `KEYS` or `ARGV` in some lines: a number, or nothing where it is computed.
    fn indices(lines: &[String], table: &str) -> BTreeSet<Option<usize>> {
        let start = format!("{table}[");
        let all = lines.iter().flat_map(|line| after(line, &start));
        all.map(|rest| {
            let index = rest.split(']').next().unwrap();
            // The header writes `ARGV[6..]` for all from the sixth.
            index.parse().ok()
        })
        .collect()
    }

    /// The names of the keys, from lines like `KEYS[1] {sale:shard}:shard  string  …`, and the number of the first of
    /// those that are counted, from a line like `KEYS[3..] {sale:shard}:item:<sku>  string  …`.
    fn keys(&self) -> (Vec<String>, Option<usize>) {
        let (mut names, mut counted) = (Vec::new(), None);
        for line in self.header.iter().filter(|line| line.starts_with("KEYS[")) {
            let (index, key) = line["KEYS[".len()..].split_once(']').unwrap();
            let key = key.split_whitespace().next().unwrap();
            let rest = ["{sale:shard}:", "{limit:id}:", "{challenge:name}:"]
                .iter()
                .find_map(|tag| key.strip_prefix(tag))
                .unwrap_or_else(|| panic!("{}: {line}", self.name));
            assert_eq!(counted, None, "{}: {line} after the counted keys", self.name);
            let number = index.trim_end_matches("..").parse::<usize>().unwrap();
            assert_eq!(number, names.len() + 1, "{}: {line}", self.name);
            if index.ends_with("..") {
                counted = Some(number);
            } else {
                names.push(rest.split(':').next().unwrap().to_owned());
            }
        }
        (names, counted)
    }

    /// The commands that the code calls, with their arguments as written.
    fn calls(code: &str) -> Vec<Vec<&str>> {
        let calls = code.match_indices("call(").map(|(at, start)| {
            let rest = &code[at + start.len()..];
            let (mut arguments, mut begin, mut depth, mut is_text) = (Vec::new(), 0, 0, false);
            for (at, it) in rest.char_indices() {
                match it {
                    '\'' => is_text = !is_text,
                    _ if is_text => {}
                    '(' | '[' | '{' => depth += 1,
                    ',' | ')' if depth == 0 => {
                        arguments.push(rest[begin..at].trim());
                        begin = at + 1;
                        if it == ')' {
                            return arguments;
                        }
                    }
                    ')' | ']' | '}' => depth -= 1,
                    _ => {}
                }
            }
            panic!("a call has no end: {rest}")
        });
        calls.collect()
    }
}

#[test]
fn every_script_says_what_it_takes_answers_and_who_calls_it() {
    for lua in scripts() {
        let name = &lua.name;
        for word in ["KEYS[1", "ARGV[1", "Returns", "Retry:", "Caller:"] {
            assert!(
                lua.heading(word).is_some_and(|it| !it.is_empty()),
                "{name}.lua does not say {word}"
            );
        }
        let title = name.replace('_', " ");
        let first = lua.header[0].to_lowercase();
        assert!(
            first.starts_with(&format!("{title}: ")),
            "{name}.lua begins with {first:?}"
        );

        let caller = lua.heading("Caller:").unwrap().split_whitespace().next().unwrap();
        let caller = fs::read_to_string(root().join(caller)).unwrap_or_else(|_| panic!("{name}.lua: no {caller}"));
        assert!(
            [".prepare_invoke()", ""]
                .iter()
                .zip(["", "admitted(&"])
                .any(|(after, before)| caller.contains(&format!("{before}{}{after}", name.to_uppercase()))),
            "{name}.lua has no such caller"
        );
        let answers = |lines: &[String], start: &str| -> BTreeSet<String> {
            let all = lines
                .iter()
                .flat_map(|line| line.match_indices(start).map(|(at, _)| &line[at + start.len()..]));
            let words = all.map(|rest| rest.split('\'').next().unwrap().to_owned());
            words.collect()
        };
        let said = answers(&lua.header, "{'");
        assert_eq!(
            answers(&lua.code, "{ '"),
            said,
            "{name}.lua: its results differ from its header"
        );
        for answer in said {
            assert!(
                caller.contains(&format!("\"{answer}\"")),
                "{name}.lua: its caller does not know {answer}"
            );
        }
    }
}

#[test]
fn every_key_and_argument_of_a_script_is_documented_and_used() {
    for lua in scripts() {
        for table in ["KEYS", "ARGV"] {
            let said: Vec<String> = lua
                .header
                .iter()
                .filter(|line| line.starts_with(table))
                .cloned()
                .collect();
            let (said, used) = (Lua::indices(&said, table), Lua::indices(&lua.code, table));
            // Further arguments may be read by number or not.
            let numbered = |all: &BTreeSet<Option<usize>>| all.iter().copied().flatten().collect::<BTreeSet<_>>();
            assert_eq!(numbered(&used), numbered(&said), "{}.lua: {table}", lua.name);
            assert_eq!(
                used.contains(&None),
                said.contains(&None),
                "{}.lua: the other {table}",
                lua.name
            );
        }
    }
}

/// Scripts and the records in which they need no version.
const NO_VERSION_NEEDED: &[(&str, &str)] = &[
    // It writes only where no key exists.
    ("preload", "shard"),
    ("preload", "item"),
    // It asks only for the keys' types.
    ("permit", "item"),
    // Its caller decodes them.
    ("read_shard", "shard"),
    ("read_shard", "item"),
];

/// The strings that `src/stock/record.rs` lists: by key, the record's name, or nothing for a string without a version.
fn listed_strings() -> BTreeMap<String, Option<String>> {
    let text = fs::read_to_string(root().join("src/stock/record.rs")).unwrap();
    let rows = text
        .lines()
        .filter_map(|line| line.strip_prefix("//! | ")?.strip_suffix(" |"));
    let listed = rows.filter_map(|row| {
        let cells: Vec<&str> = row.split(" | ").collect();
        let (record, key) = match cells[..] {
            [record, key, _, _] => (record.split(' ').next_back(), key),
            [key, _] => (None, key),
            _ => return None,
        };
        let key = key.strip_prefix('`')?.strip_suffix('`')?.split(':').next()?;
        Some((key.to_owned(), record.map(str::to_owned)))
    });
    listed.collect()
}

#[test]
fn every_string_that_scripts_share_is_listed_and_no_script_misreads_its_newer_version() {
    let listed = listed_strings();
    let mut used = BTreeSet::new();
    for lua in scripts() {
        let name = &lua.name;
        let code = lua.code.join("\n");
        let mut has_record = false;
        for line in lua.header.iter().filter(|line| line.starts_with("KEYS[")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words[2] != "string" {
                continue;
            }
            let key = words[1].split("}:").last().unwrap().split(':').next().unwrap();
            let record = listed.get(key);
            let record = record.unwrap_or_else(|| panic!("{name}.lua: src/stock/record.rs does not list {key}"));
            used.insert(key.to_owned());
            let Some(record) = record else {
                continue;
            };
            has_record = true;
            assert_ne!(
                code.contains(&format!("'NEWER {record}'")),
                NO_VERSION_NEEDED.contains(&(name, key)),
                "{name}.lua: the version of {key}"
            );
        }
        assert!(
            has_record || !code.contains("pack("),
            "{name}.lua packs no listed record"
        );
    }
    assert_eq!(used, listed.into_keys().collect());
}

#[test]
fn a_script_touches_only_the_keys_that_it_was_given() {
    for lua in scripts() {
        let name = &lua.name;
        let code = lua.code.join("\n");
        let (names, counted) = lua.keys();
        // Each key is bound once, to the name that the header gives it.
        let mut bound = BTreeMap::new();
        let mut other_lines = Vec::new();
        for line in &lua.code {
            let binding = line.strip_prefix("local ").and_then(|it| it.split_once(" = "));
            let binding = binding.filter(|(_, values)| values.starts_with("KEYS["));
            let Some((locals, values)) = binding else {
                other_lines.push(line);
                continue;
            };
            for (local, value) in locals.split(", ").zip(values.split(", ")) {
                if value.starts_with("KEYS[") {
                    assert_eq!(bound.insert(value, local), None, "{name}.lua binds {value} twice");
                }
            }
        }
        let expected: Vec<_> = names
            .iter()
            .zip(1..)
            .map(|(key, at)| (format!("KEYS[{at}]"), format!("{key}_key")))
            .collect();
        let found: Vec<_> = bound
            .iter()
            .map(|(value, local)| ((*value).to_owned(), (*local).to_owned()))
            .collect();
        assert_eq!(found, expected, "{name}.lua: what its keys are called");

        // Counted keys are given to a command at once, and none of them lies outside of `KEYS`.
        let is_counted = |key: &str| {
            let index = key.strip_prefix("KEYS[").and_then(|it| it.strip_suffix(']'));
            let (Some(index), Some(first)) = (index, counted) else {
                return false;
            };
            let from_first = code.contains(&format!("for {index} = {first}, #KEYS do"));
            let from_one = code.contains(&format!("for {index} = 1, #KEYS do"));
            let item = index.strip_prefix(&format!("{first} + "));
            let by_item = item.is_some_and(|it| code.contains(&format!("for {it} = 0, {it}s - 1 do")))
                && code.contains(&format!("local items = #KEYS - {}", first - 1));
            from_first || from_one || by_item
        };
        let mut uses_of_counted = 0;
        for call in Lua::calls(&code) {
            let (command, rest) = call.split_first().unwrap();
            assert!(
                command.len() > 2 && command.starts_with('\'') && command.ends_with('\''),
                "{name}.lua calls {command}"
            );
            let keys: Vec<&str> = match *command {
                "'TIME'" => {
                    assert!(rest.is_empty(), "{name}.lua: TIME of {rest:?}");
                    continue;
                }
                // About the server, and about no key.
                "'INFO'" => {
                    let known: [&[&str]; 3] = [&["'server'", "'replication'"], &["'replication'"], &["'memory'"]];
                    assert!(known.contains(&rest), "{name}.lua: INFO of {rest:?}");
                    continue;
                }
                "'XINFO'" => {
                    assert_eq!((rest.len(), rest[0]), (2, "'STREAM'"), "{name}.lua: XINFO of {rest:?}");
                    rest[1..].to_vec()
                }
                "'MGET'" | "'EXISTS'" | "'DEL'" | "'UNLINK'" => rest.to_vec(),
                "'MSET'" => {
                    assert!(rest.len() % 2 == 0, "{name}.lua: MSET of {rest:?}");
                    rest.iter().step_by(2).copied().collect()
                }
                // A command that this test does not know may have more keys than the first.
                "'TYPE'" | "'GET'" | "'GETRANGE'" | "'SET'" | "'HGET'" | "'HGETALL'" | "'HEXISTS'" | "'HSET'"
                | "'HDEL'" | "'SADD'" | "'SISMEMBER'" | "'ZADD'" | "'ZCARD'" | "'ZPOPMIN'" | "'ZRANGE'"
                | "'ZRANGEBYSCORE'" | "'ZRANK'" | "'ZREM'" | "'ZREMRANGEBYSCORE'" | "'ZSCORE'" | "'PEXPIRE'"
                | "'PEXPIRETIME'" | "'XADD'" | "'XLEN'" | "'XRANGE'" | "'XREVRANGE'" | "'XTRIM'" => rest[..1].to_vec(),
                other => panic!("{name}.lua: say in this test which arguments of {other} are keys"),
            };
            assert!(!keys.is_empty(), "{name}.lua: {command} on nothing");
            for key in keys {
                let is_bound = bound.values().any(|local| *local == key);
                assert!(
                    is_bound || is_counted(key),
                    "{name}.lua: {command} on {key}, which is none of its keys"
                );
                uses_of_counted += usize::from(!is_bound);
            }
        }
        for line in other_lines {
            let left = line.split_once(" = ").map_or("", |(left, _)| left).trim();
            let mut changed = left.trim_start_matches("local ").split(", ");
            let changes_key = changed.any(|left| bound.values().any(|local| *local == left));
            assert!(!changes_key, "{name}.lua changes a key: {line}");
        }
        assert_eq!(
            code.matches("KEYS[").count(),
            names.len() + uses_of_counted,
            "{name}.lua names a key twice"
        );
    }
}
