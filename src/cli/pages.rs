//! Reads a whole list from the server, one result page at a time.

use super::client::Client;
use super::{Failure, answer, output};
use serde_json::Value;

/// How many result pages of one list are read at most, each with up to a hundred entries.
const PAGES_MAX: usize = 100_000;

/// All entries of the list at this path, which may have a query. Each result page starts after the last entry of the
/// page before, by the member that `id` names.
///
/// # Errors
/// `No` when the server refuses, `Fault` when it does not answer or its answer is no list.
pub fn all(client: &Client, path: &str, id: &str) -> Result<Vec<Value>, Failure> {
    let mut entries: Vec<Value> = Vec::new();
    let mut asked = path.to_owned();
    for _ in 0..PAGES_MAX {
        let mut page = client.get(&asked)?.body;
        let data = page.get_mut("data").map(Value::take).unwrap_or_default();
        entries.extend(answer::read::<Vec<Value>>(&data)?);
        if page.get("has_more") != Some(&Value::Bool(true)) {
            return Ok(entries);
        }
        let last = match entries.last().and_then(|last| last.get(id)) {
            Some(Value::String(last)) => output::encoded(last),
            Some(Value::Number(last)) => last.to_string(),
            _ => break,
        };
        let joint = if path.contains('?') { '&' } else { '?' };
        asked = format!("{path}{joint}starting_after={last}");
    }
    Err(Failure::Fault(anyhow::anyhow!(
        "the server's list at {path} does not end: is it of the same version?"
    )))
}

#[cfg(test)]
mod tests {
    use super::super::mock_server::MockServer;
    use super::*;
    use std::time::Duration;

    fn read(answers: &[(u16, &str)], path: &str) -> (Result<Vec<Value>, Failure>, Vec<String>) {
        let server = MockServer::answering(answers);
        let client = Client::new(server.url(), Some("key".to_owned()), Duration::from_secs(2)).unwrap();
        (all(&client, path, "id"), server.requests())
    }

    #[test]
    fn a_list_of_several_pages_is_read_to_its_end() {
        for (path, id, second) in [
            ("/list", r#""a b""#, "GET /list?starting_after=%61%20%62 "),
            ("/list?of=x", "8", "GET /list?of=x&starting_after=8 "),
        ] {
            let first = format!(r#"{{"data":[{{"id":{id}}}],"has_more":true}}"#);
            let (entries, requests) = read(
                &[(200, &first), (200, r#"{"data":[{"id":"b"}],"has_more":false}"#)],
                path,
            );
            assert_eq!(entries.unwrap().len(), 2);
            assert!(requests[1].starts_with(second), "{requests:?}");
        }
    }

    #[test]
    fn a_list_that_goes_on_after_nothing_is_none() {
        for body in [
            r#"{"data":[],"has_more":true}"#,
            r#"{"data":[{}],"has_more":true}"#,
            r#"{"has_more":false}"#,
        ] {
            let (entries, requests) = read(&[(200, body)], "/list");
            assert!(matches!(entries, Err(Failure::Fault(_))), "{body}");
            assert_eq!(requests.len(), 1);
        }
    }
}
