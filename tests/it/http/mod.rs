//! The HTTP API, the environment and the operator's commands, against the contract and through the real binary.

mod admin;
mod alerts;
mod archive;
mod bans;
mod challenges;
mod cli;
mod config;
mod connections;
mod console;
mod cost;
mod dead_letters;
mod errors;
mod gateway;
mod health;
mod holds;
mod hostile;
mod key_has_order;
mod lists;
mod openapi;
mod orders;
mod pages;
mod payments;
mod purchase;
mod report;
mod sales;
mod stages;
mod terminal;
mod tls;
mod tokens;
mod unknown_paths;
mod waiting_room;

use crate::support::app::{Answer, Client, Who, payment_body};
use crate::support::poll::{PATIENCE, Patience};
use reqwest::header::ACCEPT;
use reqwest::{Method, Response};
use serde_json::Value;

/// Asks again while the answer is 503: on a busy machine, it says only that the outcome is not known yet.
async fn decided<F: Future<Output = Answer>>(mut ask: impl FnMut() -> F) -> Answer {
    let patience = Patience::of(PATIENCE);
    loop {
        let answer = ask().await;
        if answer.status != 503 {
            return answer;
        }
        patience.pause("an answer other than 503").await;
    }
}

/// The answer to an operator who asks for a list as a table.
async fn export(client: &Client, path: &str) -> Response {
    let request = client.request(Method::GET, Who::Operator, path);
    request.header(ACCEPT, "text/csv").send().await.unwrap()
}

/// Pays an order in full, and again while the answer is 503. Returns the outcome.
async fn pay(client: &Client, payment: &str, order: &Value) -> String {
    let (id, amount) = (order["id"].as_str().unwrap(), order["amount_minor"].as_i64().unwrap());
    let (message, body) = (format!("msg_{payment}"), payment_body(payment, id, amount, "EUR"));
    let answer = decided(|| client.webhook(&message, &body)).await;
    answer.ok(200).text("outcome").to_owned()
}
