//! The people. Each arrives once, clicks once or twice, follows the replies, and leaves when the sale is sold out.

use super::crowd::EARLY;
use super::plan::ROUND_MAX;
use super::scene::{Scene, lock, path, purchase};
use crate::wire::{Answer, Request, Said};
use altcha::{SolveChallengeOptions, solve_challenge};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// The most attempts of one step.
const TRIES_MAX: usize = 10;
/// The most polls of a person in a waiting room.
const POLLS_MAX: usize = 100;

/// Runs all people, until each has finished or the round is over.
pub async fn come(scene: Arc<Scene>) {
    let mut people = JoinSet::new();
    for person in 0..scene.crowd.people.len() {
        let scene = Arc::clone(&scene);
        people.spawn(async move {
            let comes = scene.crowd.people[person].comes(&scene.round);
            sleep_until(scene.start - EARLY + comes).await;
            if timeout_at(scene.start + ROUND_MAX, Visit { scene: &scene, person }.pay_a_visit())
                .await
                .is_ok()
            {
                scene.answered.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while people.join_next().await.is_some() {}
}

/// The widget's answer to a challenge: its id and the solution.
pub fn solve(posed: Said) -> Option<serde_json::Value> {
    let challenge = posed.altcha?;
    let solution = solve_challenge(SolveChallengeOptions::new(&challenge)).ok()??;
    let answer = STANDARD.encode(json!({"challenge": challenge, "solution": solution}).to_string());
    Some(json!({"id": posed.id?, "answer": answer}))
}

struct Visit<'a> {
    scene: &'a Scene,
    person: usize,
}

impl Visit<'_> {
    fn request(&self, path: String, body: String) -> Request<'_> {
        let person = &self.scene.crowd.people[self.person];
        Request {
            is_post: true,
            path,
            bearer: &person.jwt,
            address: &person.address,
            body,
            ..Request::default()
        }
    }

    /// Sends a request, and repeats it after `Retry-After` or after no reply.
    async fn ask(&self, request: &Request<'_>, is_purchase: bool) -> Answer {
        let mut last = Answer::default();
        for _ in 0..TRIES_MAX {
            let (answer, _) = self.scene.ask_for(self.person, request, is_purchase).await;
            last = answer;
            match last.status {
                429 | 503 => sleep(Duration::from_secs(last.retry_after.unwrap_or(1))).await,
                0 => sleep(Duration::from_millis(500)).await,
                _ => break,
            }
        }
        last
    }

    async fn pay_a_visit(&self) -> Option<()> {
        let round = &self.scene.round;
        let admission = if round.waiting_room {
            Some(self.wait().await?)
        } else {
            None
        };
        let key = format!("click-{}", self.person);
        let token = if round.purchase_token {
            Some(self.token(&key).await?)
        } else {
            None
        };
        let mut order = self.request(path(&self.scene.sale, "orders"), purchase("thing"));
        order.key = Some(&key);
        order.token = token.as_deref();
        order.admission = admission.as_deref();
        match self.scene.crowd.people[self.person].again {
            None => self.buy(&order).await,
            Some(after) => {
                let second = async {
                    sleep(after).await;
                    self.buy(&order).await;
                };
                tokio::join!(self.buy(&order), second);
            }
        }
        Some(())
    }

    async fn buy(&self, order: &Request<'_>) {
        let answer = self.ask(order, true).await;
        if matches!(answer.status, 200 | 201) && lock(&self.scene.bought).insert(self.person) {
            lock(&self.scene.people).sold.push(Instant::now());
        }
    }

    /// Polls the waiting room until the person is admitted; `None` if the room gives no place, or after [`POLLS_MAX`]
    /// polls.
    async fn wait(&self) -> Option<String> {
        let mut ticket: Option<String> = None;
        let mut has_a_place = false;
        for _ in 0..POLLS_MAX {
            let body = ticket
                .as_ref()
                .map_or_else(|| json!({}), |ticket| json!({"ticket": ticket}));
            let request = self.request(path(&self.scene.sale, "waiting-room"), body.to_string());
            let said = self.ask(&request, false).await.said();
            match said.state.as_deref() {
                Some("admitted") => return said.admission,
                Some("waiting") => {
                    if !has_a_place && Instant::now() < self.scene.start {
                        self.scene.people_at_start.fetch_add(1, Ordering::Relaxed);
                    }
                    has_a_place = true;
                    ticket = said.ticket.or(ticket);
                    sleep(Duration::from_secs(said.ask_again_seconds.unwrap_or(2))).await;
                }
                _ => return None,
            }
        }
        None
    }

    async fn token(&self, key: &str) -> Option<String> {
        let mut challenge = serde_json::Value::Null;
        if self.scene.round.proof_of_work {
            let request = self.request(
                "/v1/challenges".to_owned(),
                json!({"sale_id": self.scene.sale}).to_string(),
            );
            challenge = solve(self.ask(&request, false).await.said())?;
        }
        let body = json!({"idempotency_key": key, "challenge": challenge}).to_string();
        let request = self.request(path(&self.scene.sale, "tokens"), body);
        self.ask(&request, false).await.said().token
    }
}
