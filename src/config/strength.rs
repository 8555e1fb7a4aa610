//! Refuses secrets that are easy to guess.

/// How many characters a secret needs that nothing before them predicts. A random key of 16 characters has about 13.
const SURPRISES_MIN: usize = 4;
/// A secret may not be the repetition of a word of up to this many characters.
const REPEATED_MAX: usize = 15;
/// The same limit for secrets that are only checked for repetition.
const SHORT_REPEATED_MAX: usize = 8;
/// Rows and diagonals of keyboards, the digits and the alphabet, with spaces in between, which no checked pair has.
const RUNS: &str = "\
    01234567890 abcdefghijklmnopqrstuvwxyz qwertyuiop qwertzuiop azertyuiop asdfghjkl zxcvbnm \
    1qaz2wsx3edc4rfv5tgb6yhn7ujm8ik9ol0p 1q2w3e4r5t6y7u8i9o0p";
/// Placeholders for secrets in documents, and common passwords. A word comes before the words that it contains.
const WORDS: &str = "\
    administrator changethis changeit changeme flashsale placeholder development production p@ssw0rd passw0rd \
    password passwort iloveyou football baseball princess sunshine trustno1 operator insecure default example dragon \
    letmein master monkey private replace s3cret secret secure shadow superman sample string webhook welcome please \
    change admin super token value here with root test user your jwt key me my";

/// Refuses a secret of one character or of one short word, repeated.
pub fn check_repetition(secret: &str) -> Result<(), String> {
    let letters: Vec<char> = secret.chars().collect();
    if is_repetition(&letters, SHORT_REPEATED_MAX) {
        return Err("is easy to guess: it repeats itself".to_owned());
    }
    Ok(())
}

fn is_repetition(letters: &[char], longest: usize) -> bool {
    let repeats = |length: usize| letters.get(length..).is_some_and(|rest| letters.starts_with(rest));
    (1..=longest.min(letters.len() / 2)).any(repeats)
}

/// Refuses a secret that consists only of one character, a repeated word, neighbouring keys or common words.
pub fn check(secret: &str) -> Result<(), String> {
    let letters = uncommon(secret);
    if surprises(&letters) < SURPRISES_MIN || is_repetition(&letters, REPEATED_MAX) {
        return Err("is easy to guess: it repeats itself, or is made of common words or neighbouring keys".to_owned());
    }
    Ok(())
}

/// The characters of a secret without common words and punctuation.
fn uncommon(secret: &str) -> Vec<char> {
    let mut rest = secret.to_lowercase();
    for word in WORDS.split_whitespace() {
        // A dash takes its place, so that the characters around it form no new word.
        rest = rest.replace(word, "-");
    }
    rest.chars().filter(|c| !"-_ .!".contains(*c)).collect()
}

/// How many characters nothing before them predicts: pairs that are no run and did not occur before.
fn surprises(letters: &[char]) -> usize {
    let mut seen = Vec::new();
    let mut count = usize::from(!letters.is_empty());
    for pair in letters.windows(2) {
        if !is_run(pair) && !seen.contains(&pair) {
            count += 1;
        }
        seen.push(pair);
    }
    count
}

/// Whether the second character equals the first, or is its neighbour.
fn is_run(pair: &[char]) -> bool {
    let forwards: String = pair.iter().collect();
    let backwards: String = pair.iter().rev().collect();
    pair.first() == pair.last() || RUNS.contains(&forwards) || RUNS.contains(&backwards)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    #[test]
    fn secrets_that_everybody_tries_first_are_refused() {
        for weak in [
            "aaaaaaaaaaaaaaaa",
            "0000000000000001",
            "abababababababab",
            "secretsecretsecretsecret",
            "changeme-changeme-changeme",
            "ADMIN_KEY_CHANGE_ME",
            "flashsale-admin1",
            "flashsale-admin-key",
            "0123456789abcdef",
            "0123456789abcdef0123456789abcdef",
            "fedcba9876543210",
            "1234567890123456",
            "qwertyuiopasdfghjklzxcvbnm",
            "1qaz2wsx3edc4rfv",
            "1q2w3e4r5t6y7u8i",
            "Password123456789!",
            "p@ssw0rdp@ssw0rd",
            "administrator123",
            "hunter2hunter2hunter2",
            "your-secret-key-here",
            "my-super-secret-jwt-key-change-me",
            "supersecretjwtsecretkeychangeme!",
            "replace-me-with-secret",
            "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        ] {
            assert!(check(weak).is_err(), "{weak:?}: {}", surprises(&uncommon(weak)));
        }
    }

    #[test]
    fn random_secrets_and_sentences_pass() {
        for strong in [
            "canary-admin-key-7c1f",
            "correct horse battery staple",
            "k7Hq2ZpX9vLm4RtY",
            "3f9a1c77be204d58",
        ] {
            assert!(check(strong).is_ok(), "{strong:?}: {}", surprises(&uncommon(strong)));
        }
        for _ in 0..10_000 {
            let key = rand::random::<[u8; 16]>();
            let hex = format!("{:032x}", u128::from_be_bytes(key));
            for random in [hex, STANDARD.encode(key)] {
                assert!(check(&random).is_ok(), "{random:?}: {}", surprises(&uncommon(&random)));
            }
        }
    }
}
