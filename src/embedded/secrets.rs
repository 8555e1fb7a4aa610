//! The secrets of a private instance. Each is made once and kept in the instance's folder. The file is replaced in
//! one step, so a crash leaves the old file or the new one.

use super::folder::open_file;
use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Makes a new value for a secret.
pub type Make = fn() -> String;

/// The file of an instance's secrets, in a form that a shell can read.
pub fn path(dir: &Path) -> PathBuf {
    dir.join("secrets.env")
}

/// The values of the `wanted` secrets from the folder's file. Missing secrets are made and added to it. Fails when the
/// file cannot be read or written, or is not in this form.
pub fn load_or_make(dir: &Path, wanted: &[(&'static str, Make)]) -> anyhow::Result<BTreeMap<&'static str, String>> {
    let path = path(dir);
    let shown = path.display();
    let (mut file, mut text) = (None, String::new());
    match open_file(&path, OpenOptions::new().read(true).clone()) {
        Ok(mut found) => {
            found
                .read_to_string(&mut text)
                .with_context(|| format!("cannot read {shown}"))?;
            file = Some(found);
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
    }
    let mut kept = parse(&text, &path)?;
    let before = kept.len();
    let values = wanted
        .iter()
        .map(|(name, make)| (*name, kept.entry((*name).to_owned()).or_insert_with(make).clone()))
        .collect();
    if kept.len() > before {
        let mut text =
            "# Secrets of this instance. Read them into a shell with: set -a; . ./secrets.env; set +a\n".to_owned();
        for (name, value) in &kept {
            writeln!(text, "{name}={value}")?;
        }
        write_private(&path, &text)?;
    } else if let Some(file) = file {
        // A copy of the folder may have lost the file's permissions.
        file.set_permissions(fs::Permissions::from_mode(0o600))
            .with_context(|| format!("cannot set the rights of {shown}"))?;
    }
    Ok(values)
}

/// A random key of 32 bytes, in hexadecimal.
pub fn random_key() -> String {
    rand::random::<[u8; 32]>().iter().fold(String::new(), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _infallible = write!(hex, "{byte:02x}");
        hex
    })
}

/// A random secret in the form of Standard Webhooks.
pub fn random_webhook_secret() -> String {
    format!("whsec_{}", STANDARD.encode(rand::random::<[u8; 32]>()))
}

/// Replaces a file that only its owner can read, in one step: after a crash, the old file or the new one is there.
pub fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let fresh = path.with_extension("new");
    let write = || {
        // A file that a crash left may have other permissions.
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

fn parse(text: &str, path: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let mut values = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, value)) = line
            .split_once('=')
            .filter(|(name, _)| !name.contains(char::is_whitespace))
        else {
            bail!("{}:{}: write each secret as NAME=value", path.display(), index + 1);
        };
        values.insert(name.to_owned(), value.trim_matches(['"', '\'']).to_owned());
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: [(&str, Make); 2] = [("A_KEY", random_key), ("A_HOOK", random_webhook_secret)];

    #[test]
    fn a_secret_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let one = load_or_make(dir.path(), &WANTED[..1]).unwrap();
        let both = load_or_make(dir.path(), &WANTED).unwrap();
        assert_eq!(one["A_KEY"], both["A_KEY"]);
        assert_eq!(both, load_or_make(dir.path(), &WANTED).unwrap());
        assert_eq!((both["A_KEY"].len(), both["A_HOOK"].len()), (64, 6 + 44));
        assert_eq!(
            fs::metadata(path(dir.path())).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }

    #[test]
    fn nothing_is_written_when_nothing_is_wanted() {
        let dir = tempfile::tempdir().unwrap();
        assert!(load_or_make(dir.path(), &[]).unwrap().is_empty());
        assert!(!path(dir.path()).exists());
    }

    #[test]
    fn a_damaged_file_is_named_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(path(dir.path()), "A=b\nnonsense\n").unwrap();
        let text = load_or_make(dir.path(), &WANTED).unwrap_err().to_string();
        assert!(text.contains("secrets.env:2:"), "{text}");
    }
}
