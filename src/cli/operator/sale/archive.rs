//! `flashsale sale archive` and `flashsale sale restore`: move a sale that is over to a file and back.
//!
//! A crash leaves the sale in Postgres, in the file, or in both, never in neither.

use crate::cli::Failure;
use crate::cli::shared::answer::Form;
use crate::cli::shared::progress::Progress;
use crate::cli::shared::{output, setting};
use crate::config::DATABASE_URL;
use crate::domain::ids::SaleId;
use crate::ledger::operate::archive::{ArchiveOutcome, RestoreOutcome};
use crate::server;
use anyhow::{Context as _, anyhow};
use serde_json::json;
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The URL of Postgres: of the `flashsale up` with this data folder, else of the settings.
fn database_url(data: Option<&Path>) -> Result<String, Failure> {
    match data {
        Some(dir) => setting::url_of_up(dir, "database_url"),
        None => setting::url_of_server(DATABASE_URL),
    }
}

/// Writes a sale into a new file, and deletes it from Postgres.
pub fn archive(id: SaleId, path: &Path, data: Option<&Path>, form: Form) -> Result<(), Failure> {
    let url = database_url(data)?;
    // An earlier archive is not overwritten: it may be the only copy. It names shoppers, so it is for its owner alone.
    let mut options = File::options();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| Failure::Usage(format!("cannot create {}: {error}; name a new file", path.display())))?;
    // The folder's entry must survive a power failure, too, and before Postgres deletes the rows.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    if let Err(error) = synced {
        let _left_over = fs::remove_file(path);
        return Err(anyhow!("cannot make sure that the disk has {}: {error}", path.display()).into());
    }
    let progress = Progress::of("writing the sale's rows");
    let archived = server::archive(&url, id, file);
    drop(progress);
    let no = |why: String| {
        // The ledger still has every row of it.
        let _left_over = fs::remove_file(path);
        Err(Failure::No(why))
    };
    match archived.with_context(|| {
        format!(
            "keep {} until `flashsale sale show {id}` finds the sale",
            path.display()
        )
    })? {
        ArchiveOutcome::Archived(rows) => match form {
            Form::Json => output::print_json(&json!({"sale_id": id, "file": path, "rows": rows})),
            _ => output::print(&format!("sale {id} is in {}, with {rows} rows\n", path.display())),
        },
        ArchiveOutcome::NotOver => no(format!(
            "sale {id} is not over: it can be archived about 26 hours after its end"
        )),
        ArchiveOutcome::InRedis => no(format!(
            "sale {id} is over, but Redis still has it: it can be archived about 26 hours after its end"
        )),
        ArchiveOutcome::Unsettled => no(format!(
            "sale {id} has refunds, dead letters or messages to settle: `flashsale refunds` and `flashsale \
             dead-letters` list them"
        )),
        ArchiveOutcome::Unwritable(error) => no(format!("cannot write {}: {error}", path.display())),
        ArchiveOutcome::NotFound => no(format!("there is no sale {id}")),
    }
}

/// Restores a sale from a file.
pub fn restore(path: &Path, data: Option<&Path>, form: Form) -> Result<(), Failure> {
    let url = database_url(data)?;
    let file = File::open(path).map_err(|error| Failure::Usage(format!("cannot read {}: {error}", path.display())))?;
    let progress = Progress::of("restoring the sale's rows");
    let restored = server::restore(&url, file);
    drop(progress);
    match restored? {
        RestoreOutcome::Restored(id, rows) => match form {
            Form::Json => output::print_json(&json!({"sale_id": id, "rows": rows})),
            _ => output::print(&format!("sale {id} is restored, with {rows} rows\n")),
        },
        RestoreOutcome::Exists(id) => Err(Failure::No(format!("sale {id} is not archived: Postgres has it"))),
        RestoreOutcome::Unreadable(why) => Err(Failure::Usage(format!("{}: {why}", path.display()))),
    }
}
