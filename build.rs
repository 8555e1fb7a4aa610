//! Lists the files of `web/languages` for `src/domain/language.rs`, so that no line elsewhere names a language.

use std::error::Error;
use std::ffi::OsStr;
use std::path::Path;
use std::{env, fs};

const FOLDER: &str = "web/languages";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={FOLDER}");
    let mut languages = Vec::new();
    for entry in fs::read_dir(Path::new(&env::var("CARGO_MANIFEST_DIR")?).join(FOLDER))? {
        let path = entry?.path();
        let code = path.file_stem().and_then(OsStr::to_str).map(str::to_owned);
        if let (Some(code), Some("json")) = (code, path.extension().and_then(OsStr::to_str)) {
            // English comes first.
            languages.push((code != "en", code, path));
        }
    }
    languages.sort();
    let rows = languages.iter();
    let rows: String = rows
        .map(|(_, code, path)| format!("({code:?}, include_str!({path:?})),\n"))
        .collect();
    fs::write(
        Path::new(&env::var("OUT_DIR")?).join("languages.rs"),
        format!("&[\n{rows}]\n"),
    )?;
    Ok(())
}
