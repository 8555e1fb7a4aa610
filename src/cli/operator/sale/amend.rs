//! Amendments of a published sale. The API changes all that a request names, or nothing.

use super::describe::show_sale;
use super::file;
use crate::cli::Failure;
use crate::cli::shared::answer::Form;
use crate::cli::shared::client::{Client, sale_path};
use crate::cli::shared::number;
use crate::cli::shared::sale_ref::SaleRef;
use crate::domain::sale::guards::ADMISSIONS_MAX;
use crate::domain::stage::Stage;
use crate::stderr;
use chrono::{DateTime, Utc};
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// The new values of a published sale, as the body of the request has them: what is absent stays.
#[derive(Debug, clap::Args, serde::Serialize)]
pub(super) struct Amended {
    /// The new name.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// What the sale is about; an empty text removes it.
    #[arg(long, value_name = "TEXT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// The address of the sale's picture; an empty one removes it.
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    image_url: Option<String>,
    /// A later start, as 2026-11-28T09:00:00Z or +2h.
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    starts_at: Option<DateTime<Utc>>,
    /// A later end, as 2026-11-28T20:00:00Z or +48h.
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_at: Option<DateTime<Utc>>,
    /// How many shoppers the waiting room admits a second.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::whole(1, ADMISSIONS_MAX))]
    #[serde(skip_serializing_if = "Option::is_none")]
    admissions_per_second: Option<u32>,
    /// Try another value of a guard on a part of the shoppers; repeat it for several guards.
    #[arg(long, value_name = "NAME=VALUE", value_parser = guard, requires = "percent")]
    #[serde(skip)]
    guard: Vec<(String, Value)>,
    /// Try these values on so many of a hundred shoppers; the others keep theirs.
    #[arg(
        long,
        value_name = "PERCENT",
        allow_negative_numbers = true,
        requires = "guard",
        value_parser = number::whole(0_u32, 100)
    )]
    #[serde(skip)]
    percent: Option<u32>,
    /// Refuse nobody by these values: only count what they would refuse.
    #[arg(long, requires = "guard")]
    #[serde(skip)]
    shadow: bool,
    /// End the trial of a guard; repeat it for several guards.
    #[arg(long, value_name = "NAME")]
    #[serde(skip)]
    end_trial: Vec<String>,
}

impl Amended {
    /// A guard that has two values, or a value and an end.
    fn named_twice(&self) -> Option<&String> {
        let mut seen = HashSet::new();
        let tried = self.guard.iter().map(|(name, _)| name);
        tried.chain(&self.end_trial).find(|name| !seen.insert(*name))
    }

    /// The body of the request.
    fn body(&self) -> Value {
        let (percent, shadow) = (self.percent.unwrap_or_default(), self.shadow);
        let staged = self.guard.iter().map(|(name, value)| {
            let stage = Stage { value, percent, shadow };
            (name.clone(), json!(stage))
        });
        let ended = self.end_trial.iter().map(|name| (name.clone(), Value::Null));
        let guards: Map<String, Value> = staged.chain(ended).collect();
        let mut body = json!(self);
        if !guards.is_empty() {
            body["guards"] = guards.into();
        }
        body
    }
}

/// Reads NAME=VALUE; a value is a number, true, false or a word.
fn guard(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("write a guard as NAME=VALUE")?;
    let value: Value = serde_json::from_str(value).unwrap_or_else(|_a_word| value.into());
    Ok((name.to_owned(), value))
}

fn time(text: &str) -> Result<DateTime<Utc>, String> {
    file::time_of(text, Utc::now())
}

pub(super) fn amend(client: &Client, sale: &SaleRef, terms: &Amended, form: Form) -> Result<(), Failure> {
    if let Some(name) = terms.named_twice() {
        let wrong = format!("{name} is named twice: give it one value, or end its trial");
        return Err(Failure::Usage(wrong));
    }
    let body = terms.body();
    if body == json!({}) {
        let advice =
            "write what changes, such as --name \"Winter sale\": `flashsale sale amend --help` lists all options";
        return Err(Failure::Usage(advice.to_owned()));
    }
    let id = &sale.whole(client)?;
    let amended = client.send("PATCH", &sale_path(id, ""), &[], &body.to_string());
    let draft = format!("the sale is a draft: change it with `flashsale sale change {id} FILE`");
    let amended = amended.map_err(|error| error.in_words("PUT", &draft))?;
    // A stage may give a part of the shoppers a waiting room.
    let has_room = ["guards", "staged_guards"].into_iter().any(|set| {
        let room = &amended.body[set]["waiting_room"];
        !room.is_null() && *room != false
    });
    if terms.admissions_per_second.is_some() && !has_room {
        stderr::line("flashsale: warning: the sale has no waiting room, so nobody is admitted at this rate");
    }
    show_sale(&amended, form, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::operator::sale::tests::{ID, Line};
    use crate::cli::operator::sale::{Action, Verb};
    use crate::cli::shared::mock_server::MockServer;

    #[test]
    fn an_amendment_has_the_times_of_a_sale_file_and_a_wrong_one_is_bad_usage() {
        use clap::Parser as _;
        let id = ID.to_string();
        let terms = |options: &[&str]| {
            let line = ["sale", "amend", &id].into_iter().chain(options.iter().copied());
            Line::try_parse_from(line).map(|line| match line.args.verb {
                Verb::Act(Action::Amend { terms, .. }) => terms,
                _ => panic!("not amend"),
            })
        };
        let later = terms(&["--ends-at", "+48h", "--description", ""]).unwrap();
        let hours = (later.ends_at.unwrap() - Utc::now()).num_hours();
        assert!((47..=48).contains(&hours), "{hours}");
        assert_eq!(
            json!(terms(&["--starts-at", "2026-11-28T10:00:00+01:00"]).unwrap()),
            json!({"starts_at": "2026-11-28T09:00:00Z"})
        );
        assert_eq!(terms(&["--image-url", ""]).unwrap().body(), json!({"image_url": ""}));
        let tried = ["--guard", "challenge=captcha", "--guard", "purchase_token=true"];
        let tried = [&tried[..], &["--percent", "10", "--shadow", "--end-trial", "holds_max"]].concat();
        let of = |value: Value| json!({"value": value, "percent": 10, "shadow": true});
        let guards = json!({"challenge": of(json!("captcha")), "purchase_token": of(json!(true)), "holds_max": null});
        let tried = terms(&tried).unwrap();
        assert_eq!((tried.body(), tried.named_twice()), (json!({ "guards": guards }), None));
        let both = ["--guard", "holds_max=2", "--percent", "10", "--end-trial", "holds_max"];
        let sale = SaleRef::Latest;
        for (options, said) in [(&both[..], "holds_max is named twice"), (&[], "write what changes")] {
            let nobody = MockServer::answering(&[]);
            let failure = amend(&nobody.client(), &sale, &terms(options).unwrap(), Form::Text).unwrap_err();
            assert_eq!(failure.exit_code(), 2, "{failure}");
            assert!(failure.to_string().contains(said), "{failure}");
        }
        let sale = SaleRef::Id(ID);
        for wrong in [
            &["--ends-at", "tomorrow"][..],
            &["--ends-at", "2026-11-28"],
            &["--ends-at", "-1h"],
            &["--guard", "holds_max=2"],
            &["--guard", "holds_max", "--percent", "10"],
            &["--guard", "holds_max=2", "--percent", "101"],
            &["--percent", "10"],
            &["--name", "Spring", "--shadow"],
        ] {
            assert!(terms(wrong).is_err(), "{wrong:?}");
        }
        let a_draft = r#"{"code":"invalid_transition","detail":"the sale is a draft: replace it with PUT"}"#;
        let server = MockServer::answering(&[(409, a_draft)]);
        let failure = amend(&server.client(), &sale, &later, Form::Text).unwrap_err();
        assert!(failure.to_string().contains("flashsale sale change"), "{failure}");
        let negative = terms(&["--admissions-per-second", "-5"]).unwrap_err().to_string();
        assert!(negative.contains("whole number from 1 to"), "{negative}");
        let refused = r#"{"code":"invalid_request","detail":"name must have 1 to 200 characters"}"#;
        let server = MockServer::answering(&[(400, refused)]);
        let failure = amend(&server.client(), &sale, &later, Form::Text).unwrap_err();
        assert_eq!(failure.exit_code(), 2, "{failure}");
    }
}
