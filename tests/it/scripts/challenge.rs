use super::user;
use crate::support::poll;
use crate::support::raw::{Raw, arg};
use crate::support::servers;
use flashsale::domain::fault::Fault;
use flashsale::domain::ids::{SaleId, UserId};
use flashsale::domain::shopper::challenge::{Challenge, LASTS, Solving};
use flashsale::stock::Stock;
use flashsale::stock::script::SOLVE_CHALLENGE;
use std::time::Duration;
use uuid::Uuid;

/// A challenge for ada and a sale, and a Redis to read it.
struct Posed {
    stock: Stock,
    raw: Raw,
    id: Uuid,
    sale: SaleId,
    ada: UserId,
}

impl Posed {
    async fn lasting(lasts: Duration) -> Self {
        let url = servers::redis();
        let posed = Self {
            stock: Stock::connect(&url).await.unwrap(),
            raw: Raw::connect(&url),
            id: Uuid::new_v4(),
            sale: SaleId(Uuid::new_v4()),
            ada: user("ada"),
        };
        posed
            .stock
            .pose_challenge(&posed.challenge(), "RIGHT", lasts)
            .await
            .unwrap();
        posed
    }

    async fn new() -> Self {
        Self::lasting(LASTS).await
    }

    const fn challenge(&self) -> Challenge<'_> {
        Challenge {
            id: self.id,
            sale: self.sale,
            user: &self.ada,
        }
    }

    fn key(&self) -> String {
        format!("{{challenge:{}}}:answer", self.challenge().name().simple())
    }

    async fn answer(&self, answer: &str, request: &str) -> Solving {
        self.answer_to(&self.challenge(), answer, request).await
    }

    async fn answer_to(&self, challenge: &Challenge<'_>, answer: &str, request: &str) -> Solving {
        let request = request.parse().unwrap();
        self.stock.solve_challenge(challenge, answer, &request).await.unwrap()
    }

    fn number(&self, command: &str) -> i64 {
        self.raw.call(redis::cmd(command).arg(self.key()))
    }

    fn script(&self, args: &[Vec<u8>]) -> String {
        self.raw.script(&SOLVE_CHALLENGE, &[self.key()], args)
    }
}

#[tokio::test]
async fn a_right_answer_solves_a_challenge_for_one_request_as_often_as_that_asks() {
    let posed = Posed::new().await;
    for _ in 0..3 {
        assert_eq!(posed.answer("RIGHT", "k").await, Solving::Solved);
    }
    for (answer, request) in [("RIGHT", "l"), ("RIGHT", "k "), ("WRONG", "k"), ("", "k")] {
        assert_eq!(posed.answer(answer, request).await, Solving::Used, "{answer} {request}");
    }
    assert_eq!(
        posed.answer("RIGHT", "k").await,
        Solving::Solved,
        "after any attempts of others"
    );
}

#[tokio::test]
async fn a_wrong_answer_is_the_only_one() {
    for wrong in ["WRONG", "", "right", "RIGHT "] {
        let posed = Posed::new().await;
        assert_eq!(posed.answer(wrong, "k").await, Solving::Wrong, "{wrong:?}");
        assert_eq!(posed.number("EXISTS"), 0);
        for answer in ["RIGHT", wrong] {
            assert_eq!(posed.answer(answer, "k").await, Solving::Unknown);
        }
    }
}

#[tokio::test]
async fn of_many_requests_at_once_one_has_it() {
    let posed = Posed::new().await;
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    let answers = futures_util::future::join_all(keys.iter().map(|key| posed.answer("RIGHT", key))).await;
    let solved = answers.iter().filter(|it| **it == Solving::Solved).count();
    let used = answers.iter().filter(|it| **it == Solving::Used).count();
    assert_eq!((solved, used), (1, 19));
}

#[tokio::test]
async fn another_shopper_sale_or_id_has_no_such_challenge_and_takes_nothing_from_it() {
    let posed = Posed::new().await;
    let (bob, mine) = (user("bob"), posed.challenge());
    let others = [
        Challenge { user: &bob, ..mine },
        Challenge {
            sale: SaleId(Uuid::new_v4()),
            ..mine
        },
        Challenge {
            id: Uuid::new_v4(),
            ..mine
        },
    ];
    for solved in [false, true] {
        for other in &others {
            for answer in ["RIGHT", "WRONG"] {
                let solving = posed.answer_to(other, answer, "k").await;
                assert_eq!(solving, Solving::Unknown, "{other:?} {solved}");
            }
        }
        assert_eq!(posed.answer("RIGHT", "k").await, Solving::Solved);
    }
}

#[tokio::test]
async fn a_challenge_keeps_its_time_whether_it_is_solved_or_not_and_is_gone_after_it() {
    let posed = Posed::new().await;
    assert!((299_000..=300_000).contains(&posed.number("PTTL")));
    let _sooner: i64 = posed.raw.call(redis::cmd("PEXPIRE").arg(posed.key()).arg(50_000));
    let expires_at = posed.number("PEXPIRETIME");
    for _ in 0..2 {
        assert_eq!(posed.answer("RIGHT", "k").await, Solving::Solved);
        assert_eq!(posed.number("PEXPIRETIME"), expires_at);
    }
    assert_eq!(posed.number("STRLEN"), 33);

    for is_solved in [false, true] {
        let posed = Posed::new().await;
        if is_solved {
            posed.answer("RIGHT", "k").await;
        }
        let _soon: i64 = posed.raw.call(redis::cmd("PEXPIRE").arg(posed.key()).arg(1));
        poll::answer("it expires", || async { (posed.number("EXISTS") == 0).then_some(()) }).await;
        assert_eq!(posed.answer("RIGHT", "k").await, Solving::Unknown);
    }
}

#[tokio::test]
async fn neither_answer_nor_request_may_be_missing_too_short_or_too_long() {
    let posed = Posed::new().await;
    let digest = arg(&posed.challenge().digest("RIGHT"));
    let wrong: [&[Vec<u8>]; 6] = [
        &[],
        std::slice::from_ref(&digest),
        &[arg("RIGHT"), arg("k")],
        &[[digest.as_slice(), b"k"].concat(), arg("k")],
        &[digest.clone(), arg("")],
        &[digest.clone(), arg("k".repeat(65))],
    ];
    for args in wrong {
        assert_eq!(posed.script(args), "ERR BADARG solve_challenge", "{args:?}");
    }
    assert_eq!(posed.number("STRLEN"), 32, "nothing was taken");
    assert_eq!(posed.script(&[digest, arg("k".repeat(64))]), "SOLVED");
}

#[tokio::test]
async fn a_key_that_is_cut_off_or_foreign_is_noticed() {
    let posed = Posed::new().await;
    let _cut: Option<String> = posed.raw.call(redis::cmd("SET").arg(posed.key()).arg("short"));
    let digest = arg(&posed.challenge().digest("RIGHT"));
    let said = posed.script(&[digest, arg("k")]);
    assert!(said.starts_with("ERR INVARIANT solve_challenge"), "{said}");
    let _gone: i64 = posed.raw.call(redis::cmd("DEL").arg(posed.key()));
    let _foreign: i64 = posed.raw.call(redis::cmd("SADD").arg(posed.key()).arg("x"));
    let request = "k".parse().unwrap();
    let fault = posed.stock.solve_challenge(&posed.challenge(), "RIGHT", &request).await;
    assert!(matches!(fault, Err(Fault::Bug(_))), "{fault:?}");
}
