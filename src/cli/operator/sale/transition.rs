//! Opens, pauses, resumes or closes a sale. A refusal names what is possible instead.

use crate::cli::Failure;
use crate::cli::shared::answer::{Form, ShownSale, show};
use crate::cli::shared::client::{CallError, Client, sale_path};
use crate::cli::shared::output;
use crate::domain::sale::{SaleState, Step, Transition};
use uuid::Uuid;

pub(super) fn transition(client: &Client, id: &Uuid, to: Transition, form: Form) -> Result<(), Failure> {
    let turned = client.post(&sale_path(id, &format!("/{}", to.as_str())), "");
    let sale = turned.map_err(|error| not_possible(client, id, error))?.body;
    show(&sale, form, |sale: ShownSale| {
        let name = output::one_line(&sale.terms.name);
        format!("sale {id}, {name}, is {}\n", sale.state)
    })
}

/// A refused transition, with the transitions that are possible.
fn not_possible(client: &Client, id: &Uuid, error: CallError) -> Failure {
    let sale = (error.code() == "invalid_transition").then(|| client.get(&sale_path(id, "")));
    let state: Option<SaleState> = sale.and_then(|sale| sale.ok()?.body["state"].as_str()?.parse().ok());
    let is_possible = |to: &&Transition| state.is_some_and(|state| matches!(to.from(state), Step::To(_)));
    let possible = Transition::ALL.iter().filter(is_possible);
    let possible: Vec<&str> = possible.map(|to| to.as_str()).collect();
    if possible.is_empty() {
        return error.into();
    }
    let text = format!("{error}; possible now: {}", possible.join(", "));
    error.failure(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::operator::sale::tests::ID;
    use crate::cli::shared::mock_server::MockServer;
    use serde_json::json;

    #[test]
    fn a_refused_transition_names_those_that_are_possible() {
        for (state, possible) in [("open", "; possible now: pause, close"), ("closed", ""), ("draft", "")] {
            let refused = r#"{"code":"invalid_transition","detail":"d"}"#;
            let sale = json!({"state": state}).to_string();
            let server = MockServer::answering(&[(409, refused), (200, &sale)]);
            let failure = transition(&server.client(), &ID, Transition::Resume, Form::Text).unwrap_err();
            assert_eq!(failure.to_string(), format!("invalid_transition: d{possible}"));
        }
    }
}
