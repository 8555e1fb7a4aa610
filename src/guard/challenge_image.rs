//! Draws challenges: a picture of letters, or a proof of work. Stores nothing and never waits. A drawing takes the
//! processor for milliseconds, so it needs a thread of its own. Only a cheap proof of work does not.

use crate::domain::sale::guards::ChallengeKind;
use altcha::{CreateChallengeOptions, Solution, SolveChallengeOptions, create_challenge, solve_challenge};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use captcha::Captcha;
use captcha::filters::{Dots, Grid, Noise, Wave};
use serde::Deserialize;

/// The letters of a picture. No two resemble each other, in either case. Five wider letters would not fit; narrower
/// ones would not fill the middle.
const LETTERS: &str = "347ABEFGHJKMNPQRTXYabdehkmnprwxy";
const LENGTH: u32 = 5;
/// The size of the picture in pixels.
const SIZE: (u32, u32) = (260, 110);
/// The most attempts that a proof takes. The average is half of them.
const ATTEMPTS_MAX: u32 = 256;

/// The letters of a picture in capitals, and the picture as PNG. None if it cannot be drawn.
pub fn captcha() -> Option<(String, Vec<u8>)> {
    let letters: Vec<char> = LETTERS.chars().collect();
    let mut image = Captcha::new();
    image
        .set_chars(&letters)
        .add_chars(LENGTH)
        .apply_filter(Noise::new(0.2))
        .apply_filter(Grid::new(12, 12))
        .apply_filter(Wave::new(2.0, 9.0).horizontal())
        .apply_filter(Wave::new(2.0, 7.0).vertical())
        .view(SIZE.0, SIZE.1)
        .apply_filter(Dots::new(8).min_radius(2).max_radius(5));
    let (answer, png) = image.as_tuple()?;
    Some((answer.to_ascii_uppercase(), png))
}

/// The key of a proof of work in hex, and the challenge for ALTCHA's widget (version 2, SHA-256). The solver tries
/// counters, each for `cost` hashes, until one gives a key with the prefix in the challenge. The rest of that key
/// proves the work. Drawing a challenge costs two attempts; checking an answer costs none.
pub fn proof_of_work(cost: u32, expires_at: i64) -> Option<(String, altcha::Challenge)> {
    let counter = rand::random_range(0..ATTEMPTS_MAX);
    let challenge = create_challenge(CreateChallengeOptions {
        algorithm: "SHA-256".to_owned(),
        cost,
        counter: Some(counter),
        expires_at: Some(expires_at),
        ..CreateChallengeOptions::default()
    });
    let challenge = challenge.ok()?;
    let solution = solve_challenge(SolveChallengeOptions {
        counter_start: counter,
        timeout_ms: 0,
        ..SolveChallengeOptions::new(&challenge)
    });
    let solution = solution.ok()??;
    Some((solution.derived_key, challenge))
}

/// The part of the ALTCHA widget's payload that we read.
#[derive(Deserialize)]
struct Payload {
    solution: Solution,
}

/// The comparable form of an answer. Letters: in capitals, without spaces around them. The widget's payload: its key.
/// An unreadable answer becomes empty, which is never right.
pub fn read_answer(kind: ChallengeKind, given: &str) -> String {
    match kind {
        ChallengeKind::ProofOfWork => {
            let payload = STANDARD.decode(given.trim()).unwrap_or_default();
            let payload = serde_json::from_slice::<Payload>(&payload);
            payload.map_or_else(|_| String::new(), |it| it.solution.derived_key.to_ascii_lowercase())
        }
        ChallengeKind::Captcha | ChallengeKind::None => given.trim().to_ascii_uppercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_letter_looks_like_another_and_each_is_drawn() {
        let mut seen = BTreeSet::new();
        for _ in 0..300 {
            let (answer, png) = captcha().unwrap();
            assert_eq!(answer.len(), 5, "{answer}");
            assert!(
                png.starts_with(b"\x89PNG\r\n\x1a\n") && png.len() < 20_000,
                "{}",
                png.len()
            );
            // IHDR: width and height.
            assert_eq!(png[16..24], [0, 0, 1, 4, 0, 0, 0, 110]);
            seen.extend(answer.chars());
        }
        let all: BTreeSet<char> = LETTERS.to_ascii_uppercase().chars().collect();
        assert_eq!(seen, all);
        for alike in ["0OQ", "1IL", "2Z", "5S", "6G", "8B", "UV", "CG", "9G"] {
            let of_them = alike.chars().filter(|letter| all.contains(letter)).count();
            assert!(of_them <= 1, "{alike}");
        }
    }

    #[test]
    fn two_images_of_the_same_letters_differ() {
        let images: BTreeSet<Vec<u8>> = (0..20).map(|_| captcha().unwrap().1).collect();
        assert_eq!(images.len(), 20);
    }

    #[test]
    fn a_proof_is_found_by_trying_and_leads_to_the_key() {
        for cost in [1, 10] {
            let (key, challenge) = proof_of_work(cost, 0).unwrap();
            let parameters = &challenge.parameters;
            assert_eq!((parameters.algorithm.as_str(), parameters.cost), ("SHA-256", cost));
            assert!(key.starts_with(&parameters.key_prefix) && key.len() == 2 * parameters.key_prefix.len());
            let solution = solve_challenge(SolveChallengeOptions::new(&challenge))
                .unwrap()
                .unwrap();
            assert!(solution.counter < ATTEMPTS_MAX && solution.derived_key == key);
            let shown = serde_json::to_string(&challenge).unwrap();
            assert!(!shown.contains(&key), "{shown}");
            let payload = serde_json::json!({"challenge": challenge, "solution": solution}).to_string();
            assert_eq!(read_answer(ChallengeKind::ProofOfWork, &STANDARD.encode(payload)), key);
        }
    }

    #[test]
    fn letters_are_compared_without_regard_to_case_or_spaces_around_them() {
        assert_eq!(read_answer(ChallengeKind::Captcha, " aB3xy\n"), "AB3XY");
        assert_ne!(read_answer(ChallengeKind::Captcha, "a B3xy"), "AB3XY");
    }

    proptest! {
        #[test]
        fn what_is_no_payload_is_an_empty_answer(text in "\\PC{0,200}") {
            prop_assert_eq!(read_answer(ChallengeKind::ProofOfWork, &text), "");
            prop_assert_eq!(read_answer(ChallengeKind::ProofOfWork, &STANDARD.encode(&text)), "");
        }
    }
}
