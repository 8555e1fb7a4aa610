//! The scripts as they stand in `lua`, or in the files of an earlier version.

use super::root;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// The file of each script under a folder of the repository, by the script's name.
pub fn files(folder: &str) -> BTreeMap<String, PathBuf> {
    let mut folders = vec![root().join(folder)];
    let mut files = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.insert(path.file_stem().unwrap().to_str().unwrap().to_owned(), path);
            }
        }
    }
    files
}
