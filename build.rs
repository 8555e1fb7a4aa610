//! Lists files of `web`, so that no line elsewhere has to: the languages for `src/domain/shop/language.rs`, and what pages load
//! for `src/http/pages/assets.rs`.

use std::error::Error;
use std::ffi::OsStr;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    list("languages", &["json"], Path::file_stem)?;
    for folder in ["shared", "shop", "console"] {
        list(folder, &["css", "js", "svg"], Path::file_name)?;
    }
    Ok(())
}

/// Writes the list of a folder's files of these kinds: their names and texts.
fn list(folder: &str, kinds: &[&str], name: fn(&Path) -> Option<&OsStr>) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=web/{folder}");
    let path = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("web").join(folder);
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        let name = name(&path).and_then(OsStr::to_str).map(str::to_owned);
        let kind = path.extension().and_then(OsStr::to_str);
        if let (Some(name), Some(kind)) = (name, kind)
            && kinds.contains(&kind)
        {
            // English comes first.
            files.push((name != "en", name, path));
        }
    }
    files.sort();
    let rows = files.iter();
    let rows: String = rows
        .map(|(_, name, path)| format!("({name:?}, include_str!({path:?})),\n"))
        .collect();
    let list = Path::new(&env::var("OUT_DIR")?).join(format!("{folder}.rs"));
    fs::write(list, format!("&[\n{rows}]\n"))?;
    Ok(())
}
