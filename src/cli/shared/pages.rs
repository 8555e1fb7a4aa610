//! Reads a whole list from the server, one result page at a time.

use super::answer;
use super::client::Client;
use crate::cli::Failure;
use serde_json::Value;

/// How many result pages of one list are read at most, each with up to a hundred entries.
const PAGES_MAX: usize = 100_000;

/// All entries of the list at this path, which may have a query. Each result page starts after the last entry of the
/// page before, by the member that `id` names.
pub fn all(client: &Client, path: &str, id: &str) -> Result<Vec<Value>, Failure> {
    newest(client, path, id, usize::MAX)
}

/// The first entries of a list, at most `limit`.
pub fn newest(client: &Client, path: &str, id: &str, limit: usize) -> Result<Vec<Value>, Failure> {
    let (_, mut entries) = list(client, path, "data", limit, &format!("/{id}"))?;
    entries.truncate(limit);
    Ok(entries)
}

/// The first answer, and the entries of its list `name` on all result pages, until there are `limit`. The next result
/// page starts after the last entry, by the value at the JSON pointer `id`.
pub fn list(client: &Client, path: &str, name: &str, limit: usize, id: &str) -> Result<(Value, Vec<Value>), Failure> {
    let mut first = client.get(path)?.body;
    let mut entries: Vec<Value> = taken(&mut first, name)?;
    let mut has_more = first.get("has_more") == Some(&Value::Bool(true));
    for _ in 1..PAGES_MAX {
        if !has_more || entries.len() >= limit {
            return Ok((first, entries));
        }
        let last = match entries.last().and_then(|last| last.pointer(id)) {
            Some(Value::String(last)) => form_urlencoded::byte_serialize(last.as_bytes()).collect(),
            Some(Value::Number(last)) => last.to_string(),
            _ => break,
        };
        let joint = if path.contains('?') { '&' } else { '?' };
        let mut page = client.get(&format!("{path}{joint}starting_after={last}"))?.body;
        entries.extend(taken(&mut page, name)?);
        has_more = page.get("has_more") == Some(&Value::Bool(true));
    }
    Err(Failure::Fault(anyhow::anyhow!(
        "the server's list at {path} does not end: is it of the same version?"
    )))
}

fn taken(page: &mut Value, name: &str) -> Result<Vec<Value>, Failure> {
    answer::read(&page.get_mut(name).map(Value::take).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::mock_server::MockServer;
    use super::*;

    #[test]
    fn a_list_of_several_pages_is_read_to_its_end_or_limit() {
        for (path, id, second) in [
            ("/list", r#""a &b""#, "GET /list?starting_after=a+%26b "),
            ("/list?of=x", "8", "GET /list?of=x&starting_after=8 "),
        ] {
            let first = format!(r#"{{"data":[{{"id":{id}}}],"has_more":true}}"#);
            let rest = r#"{"data":[{"id":"b"},{"id":"c"}],"has_more":false}"#;
            for (limit, entries, requests) in [(usize::MAX, 3, 2), (2, 2, 2), (1, 1, 1)] {
                let server = MockServer::answering(&[(200, &first), (200, rest)]);
                assert_eq!(newest(&server.client(), path, "id", limit).unwrap().len(), entries);
                let asked = server.requests();
                assert_eq!(asked.len(), requests);
                assert!(asked.iter().skip(1).all(|it| it.starts_with(second)), "{asked:?}");
            }
        }
    }

    #[test]
    fn a_list_that_goes_on_after_nothing_is_none() {
        for body in [
            r#"{"data":[],"has_more":true}"#,
            r#"{"data":[{}],"has_more":true}"#,
            r#"{"has_more":false}"#,
        ] {
            let server = MockServer::answering(&[(200, body)]);
            assert!(
                matches!(all(&server.client(), "/list", "id"), Err(Failure::Fault(_))),
                "{body}"
            );
            assert_eq!(server.requests().len(), 1);
        }
    }
}
