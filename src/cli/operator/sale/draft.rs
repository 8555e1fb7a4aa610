//! Drafts of sales: created from a sale file, replaced by one, deleted. A repeated key creates no second draft, and a
//! draft is replaced only as the version that was seen.

use super::describe::{bare, show_sale};
use super::file::{self, SaleFile};
use crate::cli::Failure;
use crate::cli::shared::answer::{self, Form, ShownSale, show};
use crate::cli::shared::client::{Answer, CallError, Client, retry_with, sale_path};
use crate::cli::shared::{human, output};
use crate::stderr;
use anyhow::Context as _;
use chrono::{DateTime, Utc};
use serde_json::Value;
use std::path::Path;
use uuid::Uuid;

pub(super) fn create(client: &Client, file: &Path, key: &str, form: Form) -> Result<(), Failure> {
    let file = file::read(file, time_of(key).unwrap_or_else(Utc::now))?;
    let created = client.send("POST", "/v1/admin/sales", &[("idempotency-key", key)], &file.body);
    let created = match created {
        Err(error) if error.code() == "idempotency_key_reused" && file.is_relative && time_of(key).is_none() => {
            let text = format!("{error}; the file has relative times: use a printed key or absolute times");
            return Err(error.failure(text));
        }
        created => accepted(created, &file, &retry_with(key))?,
    };
    warn_of_passed_end(&created)?;
    show_sale(&created, form, "preload")
}

/// Warns of a draft whose end has passed. The API accepts it.
fn warn_of_passed_end(answer: &Answer) -> Result<(), Failure> {
    if let Some(end) = answer::read::<ShownSale>(&answer.body)?.passed_end() {
        stderr::line(format_args!(
            "flashsale: warning: the end of this draft, {}, has passed: change it before the preload",
            human::instant(end)
        ));
    }
    Ok(())
}

/// The answer to a sale file. A refusal of the file names its line.
fn accepted(answer: Result<Answer, CallError>, file: &SaleFile, advice: &str) -> Result<Answer, Failure> {
    answer.map_err(|error| match &error {
        CallError::Refused(refusal) if refusal.code == "invalid_request" => {
            let text = file.refused(&refusal.detail);
            error.failure(text)
        }
        _ => error.with_advice(advice),
    })
}

/// The time in a key, if the key is a UUID with a time. Relative times count from it: with other times, the server
/// would refuse the repeated key as one for another sale.
fn time_of(key: &str) -> Option<DateTime<Utc>> {
    let key = Uuid::try_parse(key).ok().filter(|key| key.get_version_num() == 7)?;
    let (seconds, nanos) = key.get_timestamp()?.to_unix();
    DateTime::from_timestamp(i64::try_from(seconds).ok()?, nanos)
}

pub(super) fn change(
    client: &Client,
    id: &Uuid,
    file: &Path,
    version: Option<&str>,
    form: Form,
) -> Result<(), Failure> {
    let file = file::read(file, Utc::now())?;
    let etag = match version {
        Some(version) => format!("\"{}\"", bare(version)),
        None => {
            let etag = client.get(&sale_path(id, ""))?.etag;
            etag.context("the server's answer has no version of the draft: is it of the same version?")?
        }
    };
    let changed = client.send("PUT", &sale_path(id, ""), &[("if-match", &etag)], &file.body);
    let advice = format!("`flashsale sale show {id}` shows whether it changed");
    let stale = format!(
        "the draft has changed since version {}: show it again with `flashsale sale show {id}`",
        output::one_line(bare(&etag))
    );
    let changed = changed.map_err(|error| error.in_words("If-Match", &stale));
    let changed = accepted(changed, &file, &advice)?;
    warn_of_passed_end(&changed)?;
    show_sale(&changed, form, "")
}

pub(super) fn delete(client: &Client, id: &Uuid, form: Form) -> Result<(), Failure> {
    let sale: ShownSale = answer::read(&client.get(&sale_path(id, ""))?.body)?;
    let deleted = client.send("DELETE", &sale_path(id, ""), &[], "");
    let advice = "repeat it; \"no such sale\" then says that it is deleted";
    let deleted = deleted.map_err(|error| error.with_advice(advice))?.body;
    show(&deleted, form, |_: Value| {
        let name = output::one_line(&sale.terms.name);
        format!("the draft {id}, {name}, is deleted\n")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::operator::sale::tests::{ID, draft};
    use crate::cli::shared::mock_server::MockServer;
    use std::path::PathBuf;
    use std::time::Duration;

    fn example() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("sale.example.toml")
    }

    fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
        request
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    #[test]
    fn a_sale_whose_answer_is_lost_is_asked_for_again_as_the_same_one() {
        let sale = draft().to_string();
        let made = (201, sale.as_str());
        let server = MockServer::answering(&[(503, ""), (502, "<html>"), made]);
        let patient = server.client().patient(Duration::ZERO);
        create(&patient, &example(), "key-1", Form::Text).unwrap();
        let requests = server.requests();
        assert_eq!(requests.len(), 3);
        assert!(requests.iter().all(|request| *request == requests[0]), "{requests:#?}");
        assert_eq!(header(&requests[0], "idempotency-key"), Some("key-1"));
        // A repeated command with the printed key sends the same body: its times count from the time in the key.
        let printed = Uuid::now_v7().to_string();
        let server = MockServer::answering(&[made]);
        create(&server.client(), &example(), &printed, Form::Text).unwrap();
        let first = server.requests();
        std::thread::sleep(Duration::from_millis(2));
        let server = MockServer::answering(&[made]);
        create(&server.client(), &example(), &printed, Form::Text).unwrap();
        assert_eq!(server.requests()[0].lines().last(), first[0].lines().last());
        // The attempts end, and the error says how to retry.
        let server = MockServer::answering(&[(503, "")]);
        let failure = create(&server.client(), &example(), "key-1", Form::Text).unwrap_err();
        assert!(failure.to_string().contains("with --key 'key-1'"), "{failure}");
        let server =
            MockServer::answering(&[(400, r#"{"code":"invalid_request","detail":"shards must be 1 to 256"}"#)]);
        let failure = create(&server.client(), &example(), "key-1", Form::Text).unwrap_err();
        assert!(failure.to_string().contains("sale.example.toml:"), "{failure}");
        assert_eq!(failure.exit_code(), 2);
    }

    #[test]
    fn a_draft_is_changed_only_as_the_version_that_was_seen() {
        let server = MockServer::answering(&[(200, &draft().to_string())]);
        change(&server.client(), &ID, &example(), None, Form::Text).unwrap();
        change(&server.client(), &ID, &example(), Some("older"), Form::Text).unwrap();
        let requests = server.requests();
        assert!(
            requests[0].starts_with(&format!("GET /v1/admin/sales/{ID} ")),
            "{requests:?}"
        );
        for (request, etag) in [(&requests[1], "\"v1\""), (&requests[2], "\"older\"")] {
            assert!(request.starts_with(&format!("PUT /v1/admin/sales/{ID} ")), "{request}");
            assert_eq!(header(request, "if-match"), Some(etag));
        }
        assert_eq!([bare("W/\"a1\""), bare("\"a1\""), bare("a1")], ["a1"; 3]);
    }
}
