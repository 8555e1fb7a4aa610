//! The files that pages load, under names that change with their content.
//!
//! A shoppers' page loads one style sheet and one script, so that its first visit costs three requests. The console loads
//! its modules one by one.

use crate::domain::shop::language::{console_json, shop_json};
use crate::http::file::{File, version};
use crate::http::pages::bundle::bundle;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The content security policy. A page may load its own files, its own API, and captchas (`data:`). It submits forms
/// only by script, and turns no text into markup or code. The policy `proof` lets it start its one worker.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types proof";

/// The names and texts of the files in each folder of `web`, which `build.rs` lists.
const SHARED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/shared.rs"));
const SHOP: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/shop.rs"));
const CONSOLE: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/console.rs"));

/// The worker of the shoppers' pages, which has a file of its own.
const WORKER: &str = "proof-worker.js";
/// The scripts of the shoppers' pages.
const SCRIPTS: [&str; 2] = ["sale-page.js", "sales-page.js"];
/// The style sheets that they load as one, under the name of the last.
const SHEETS: [&str; 2] = ["base.css", "shop.css"];

/// The files as pages load them.
static TEXTS: LazyLock<BTreeMap<&str, String>> = LazyLock::new(|| {
    let worker = SHOP.iter().filter(|(name, _)| *name == WORKER);
    let single = [SHARED, CONSOLE].into_iter().flatten().chain(worker);
    let mut texts: BTreeMap<&str, String> = single.map(|(name, text)| (*name, with_words(name, text))).collect();
    let modules: Vec<(&str, String)> = [SHARED, SHOP]
        .into_iter()
        .flatten()
        .map(|(name, text)| (*name, with_words(name, text)))
        .collect();
    let parts: BTreeMap<&str, &str> = modules.iter().map(|(name, text)| (*name, text.as_str())).collect();
    texts.extend(SCRIPTS.map(|name| (name, bundle(name, &parts))));
    let sheets = SHEETS.iter().filter_map(|name| parts.get(name));
    texts.insert("shop.css", sheets.map(|sheet| bare(sheet)).collect());
    texts
});

/// A style sheet without its comments and its lines: a fifth less to load.
fn bare(mut sheet: &str) -> String {
    let mut text = String::new();
    while let Some((before, comment)) = sheet.split_once("/*") {
        text += before;
        sheet = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    text += sheet;
    let lines = text.lines().map(str::trim_start).filter(|line| !line.is_empty());
    // A value may have several lines.
    let space = |line: &str| if line.ends_with(['{', '}', ';', ',']) { "" } else { " " };
    lines.flat_map(|line| [line, space(line)]).collect()
}

/// A module with the languages, or with the console's texts, in the place of its empty object. Others stay as they are.
fn with_words(name: &str, text: &str) -> String {
    let words = match name {
        "words.js" => shop_json(),
        "console-words.js" => console_json(),
        _ => return text.to_owned(),
    };
    text.replacen("{};", &format!("{words};"), 1)
}

/// The version of all files together, because they work only together.
pub static VERSION: LazyLock<String> = LazyLock::new(|| {
    let texts = TEXTS.values().map(String::as_bytes);
    // A worker has the policy of its own file.
    version(texts.chain([POLICY.as_bytes()]))
});

/// A file, which is compressed for its first reader.
type Asset = LazyLock<File, Box<dyn FnOnce() -> File + Send>>;

pub static FILES: LazyLock<BTreeMap<&str, Asset>> = LazyLock::new(|| {
    let file = |(name, text): (&&'static str, &'static String)| {
        let kind = match name.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "application/octet-stream",
        };
        (
            *name,
            Asset::new(Box::new(move || File::new(text.as_str(), kind, POLICY))),
        )
    };
    TEXTS.iter().map(file).collect()
});

/// A page that names its files by their present version. Scripts name each other without the folder.
pub fn versioned(page: &str) -> String {
    page.replace("\"/assets/", &format!("\"/assets/{}/", *VERSION))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bundled_module_has_a_text_over_several_lines() {
        let modules = [SHARED, SHOP].into_iter().flatten();
        for (name, text) in modules.filter(|(name, _)| name.ends_with(".js")) {
            for line in text.lines() {
                assert_eq!(line.matches('`').count() % 2, 0, "{name}: {line}");
            }
        }
    }
}
