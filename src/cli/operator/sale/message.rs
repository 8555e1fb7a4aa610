//! The message to a sale's shoppers: sets, removes or prints it.

use crate::cli::Failure;
use crate::cli::shared::answer::{self, Form, ShownSale, show};
use crate::cli::shared::client::{Client, sale_path};
use crate::cli::shared::output;
use crate::domain::shop::language::Language;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use uuid::Uuid;

/// The new texts of a message: an option for each language.
pub(super) struct MessageTexts(BTreeMap<String, String>);

impl clap::FromArgMatches for MessageTexts {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let text = |language: Language| {
            let text = matches.get_one::<String>(language.code())?;
            Some((language.code().to_owned(), text.clone()))
        };
        Ok(Self(Language::all().filter_map(text).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for MessageTexts {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.args(Language::all().map(|language| {
            clap::Arg::new(language.code())
                .long(language.code())
                .value_name("TEXT")
                .conflicts_with("clear")
                .help(format!("The text in {}", language.english()))
        }))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

/// Prints the message, after the change if there is one. The API replaces the whole message, so the texts that stay are
/// sent again.
pub(super) fn message(
    client: &Client,
    id: &Uuid,
    new: &MessageTexts,
    is_cleared: bool,
    form: Form,
) -> Result<(), Failure> {
    let put = |said: &Value| client.send("PUT", &sale_path(id, "/message"), &[], &said.to_string());
    let mut sale = if is_cleared {
        put(&json!({}))?.body
    } else {
        client.get(&sale_path(id, ""))?.body
    };
    if !new.0.is_empty() {
        let mut said = answer::read::<ShownSale>(&sale)?.message;
        said.extend(new.0.clone());
        sale = put(&json!(said))?.body;
    }
    show(&sale, form, |sale: ShownSale| match sale.message_texts() {
        None => format!("sale {id} has no message to its shoppers\n"),
        Some(texts) => {
            let texts = output::one_line(&texts);
            format!("the message of sale {id} to its shoppers: {texts}\n")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::operator::sale::tests::{ID, Line, draft};
    use crate::cli::operator::sale::{Action, Verb};
    use crate::cli::shared::mock_server::MockServer;

    #[test]
    fn a_message_keeps_the_texts_that_are_left_out() {
        use clap::Parser as _;
        let id = ID.to_string();
        let mut sale = draft();
        sale["message"] = json!({"en": "Soon.", "zh": "很快。"});
        let sent = |options: &[&str]| {
            let line = ["sale", "message", &id].into_iter().chain(options.iter().copied());
            let Verb::Act(Action::Message { texts, clear, .. }) = Line::try_parse_from(line).unwrap().args.verb else {
                panic!("not message")
            };
            let server = MockServer::answering(&[(200, &sale.to_string())]);
            message(&server.client(), &ID, &texts, clear, Form::Text).unwrap();
            let requests = server.requests();
            let put = requests.iter().find(|request| request.starts_with("PUT "));
            put.map(|put| serde_json::from_str::<Value>(put.lines().last().unwrap()).unwrap())
        };
        assert_eq!(sent(&[]), None, "it is only printed");
        assert_eq!(
            sent(&["--en", "Now."]),
            Some(json!({"en": "Now.", "zh": "很快。"})),
            "the other text stays"
        );
        assert_eq!(sent(&["--zh", ""]), Some(json!({"en": "Soon.", "zh": ""})));
        assert_eq!(sent(&["--clear"]), Some(json!({})));
        let both = ["sale", "message", &id, "--clear", "--en", "Now."];
        assert!(Line::try_parse_from(both).is_err());
    }
}
