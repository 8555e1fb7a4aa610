//! The HTTP API, the environment and the operator's commands, against the contract and through the real binary.

mod admin;
mod alerts;
mod bans;
mod challenges;
mod cli;
mod config;
mod console;
mod cost;
mod errors;
mod gateway;
mod health;
mod holds;
mod hostile;
mod letters;
mod nothing;
mod openapi;
mod orders;
mod pages;
mod payments;
mod purchase;
mod sales;
mod terminal;
mod tls;
mod tokens;
mod waiting_room;
