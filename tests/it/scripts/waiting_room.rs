//! The waiting room of one shard, against a reference that knows the rules and nothing of Redis.

use super::{END, NOW, START, Shop, user};
use crate::support::raw::arg;
use flashsale::domain::fault::Fault;
use flashsale::domain::order::purchase::Refusal;
use flashsale::domain::sale::{Lifecycle, Sale, SaleState};
use flashsale::domain::shopper::waiting_room::{Member, Place};
use flashsale::domain::time::Millis;
use flashsale::stock::door::room::RoomAnswer::{self, Admitted, Full, NotOpen};
use flashsale::stock::door::room::Waiting;
use flashsale::stock::script::WAITING_ROOM;
use futures_util::future::join_all;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const LATE: i64 = 1 << 40;

/// Shopper number `n`, whose lot is the same number.
fn member(n: u64) -> Member {
    let mut id = [0; 12];
    id[..8].copy_from_slice(&n.to_be_bytes());
    Member { id, lot: n }
}

/// Shopper number `n` asks: three come in a second, a minute each, and there are a hundred units.
fn asking(n: u64, now: Millis) -> Waiting {
    Waiting {
        member: member(n),
        rate: 3.0,
        stay_ms: 60_000,
        free: 100.0,
        room_max: 1000,
        place: None,
        now: Some(now),
    }
}

async fn ask(shop: &Shop, waiting: &Waiting) -> RoomAnswer {
    let user = user(&format!("shopper-{}", waiting.member.lot));
    shop.stock.wait(shop.key, &user, waiting).await.unwrap()
}

fn place_of(answer: RoomAnswer) -> Place {
    match answer {
        RoomAnswer::Waiting { place, .. } => place,
        other => panic!("{other:?}"),
    }
}

fn ahead(answer: RoomAnswer) -> i64 {
    match answer {
        RoomAnswer::Waiting { ahead, .. } => ahead,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn before_the_start_the_lot_counts_and_after_it_the_order_of_coming() {
    let shop = Shop::open(|_| {}).await;
    for (n, now) in [(7, START - 9), (3, START - 8), (5, START - 1)] {
        let place = place_of(ask(&shop, &asking(n, now)).await);
        assert_eq!(place.place, i64::try_from(n).unwrap());
        assert_eq!(place.room, START - 9, "the line is called by its beginning");
    }
    assert_eq!(
        ahead(ask(&shop, &asking(5, START - 1)).await),
        1,
        "coming again is the same place"
    );
    // Nobody is let in meanwhile, because nothing is free.
    let late = |n, now| Waiting {
        free: 0.0,
        ..asking(n, now)
    };
    assert_eq!(place_of(ask(&shop, &late(1, START)).await).place, LATE);
    assert_eq!(ahead(ask(&shop, &late(2, START + 5)).await), 4);
    assert_eq!(
        ahead(ask(&shop, &late(0, START + 4)).await),
        4,
        "a later shopper stands behind an earlier one"
    );
    assert_eq!(ahead(ask(&shop, &late(2, START + 6)).await), 5);
    // One at a time: the bucket holds no more than a second's worth.
    for n in [3, 5, 7] {
        let until = START + 2000 + 60_000;
        assert_eq!(ask(&shop, &asking(n, START + 2000)).await, Admitted { until });
    }
    assert_eq!(ahead(ask(&shop, &asking(1, START + 2000)).await), 0);
}

#[tokio::test]
async fn nobody_is_let_in_before_the_start_or_in_a_pause_or_while_nothing_is_free() {
    let shop = Shop::open(|_| {}).await;
    assert_eq!(ahead(ask(&shop, &asking(1, START - 1)).await), 0);
    shop.stock
        .set_state(
            &Sale {
                lifecycle: Lifecycle::Paused,
                state_version: 2,
                ..shop.sale.clone()
            },
            0,
        )
        .await
        .unwrap();
    assert_eq!(ahead(ask(&shop, &asking(1, START + 5)).await), 0, "paused");
    shop.stock
        .set_state(
            &Sale {
                state_version: 3,
                ..shop.sale.clone()
            },
            0,
        )
        .await
        .unwrap();
    let none = Waiting {
        free: 0.0,
        ..asking(1, START + 6)
    };
    assert_eq!(ahead(ask(&shop, &none).await), 0, "nothing is free");
    let a_bit = Waiting {
        free: 0.001,
        ..asking(1, START + 7)
    };
    let until = START + 7 + 60_000;
    assert_eq!(
        ask(&shop, &a_bit).await,
        Admitted { until },
        "the last unit of some other shard"
    );
    assert_eq!(ask(&shop, &asking(2, END)).await, NotOpen(SaleState::Closed));
}

#[tokio::test]
async fn an_admission_ends_to_the_millisecond_and_a_missed_one_rejoins_at_the_end() {
    let shop = Shop::open(|_| {}).await;
    let first = asking(1, START + 1000);
    let until = START + 61_000;
    assert_eq!(ask(&shop, &first).await, Admitted { until });
    let again = asking(1, until - 1);
    assert_eq!(ask(&shop, &again).await, Admitted { until });
    for n in 2..9 {
        ask(
            &shop,
            &Waiting {
                free: 0.0,
                ..asking(n, until - 1)
            },
        )
        .await;
    }
    let again = Waiting {
        free: 0.0,
        place: Some(Place {
            room: START + 1000,
            place: 1,
        }),
        ..asking(1, until)
    };
    assert_eq!(
        ahead(ask(&shop, &again).await),
        7,
        "a ticket of this line has been used"
    );
    let lost = Waiting {
        place: Some(Place { room: 17, place: 1 }),
        ..Waiting {
            free: 0.0,
            ..asking(10, until)
        }
    };
    assert_eq!(ahead(ask(&shop, &lost).await), 0, "one of a line that was lost counts");
}

#[tokio::test]
async fn a_shopper_who_has_bought_makes_room_once() {
    let shop = Shop::open(|_| {}).await;
    let two = |n, now| Waiting {
        free: 2.0,
        rate: 100.0,
        ..asking(n, now)
    };
    for (n, now) in [(1, START + 1000), (2, START + 1500)] {
        assert!(matches!(ask(&shop, &two(n, now)).await, Admitted { .. }), "{n}");
    }
    assert_eq!(
        ahead(ask(&shop, &two(3, START + 2000)).await),
        0,
        "two units, two admitted shoppers"
    );
    assert!(shop.stock.leave_room(shop.key, &member(1)).await.unwrap());
    assert!(!shop.stock.leave_room(shop.key, &member(1)).await.unwrap());
    assert!(!shop.stock.leave_room(shop.key, &member(9)).await.unwrap());
    let one = Waiting {
        free: 1.0,
        ..two(3, START + 2000)
    };
    assert_eq!(
        ahead(ask(&shop, &one).await),
        0,
        "one unit is left, and one admitted shopper"
    );
    assert!(matches!(ask(&shop, &two(3, START + 2000)).await, Admitted { .. }));
    let counted = shop.stock.count_room(shop.key).await.unwrap();
    assert_eq!((counted.waiting, counted.admitted), (0, 2));
}

#[tokio::test]
async fn a_full_room_takes_nobody_and_keeps_who_is_there() {
    let shop = Shop::open(|_| {}).await;
    let small = |n| Waiting {
        room_max: 2,
        ..asking(n, START - 5)
    };
    for n in [1, 2] {
        place_of(ask(&shop, &small(n)).await);
    }
    assert_eq!(ask(&shop, &small(3)).await, Full);
    place_of(ask(&shop, &small(2)).await);
    assert_eq!(shop.stock.count_room(shop.key).await.unwrap().waiting, 2);
}

#[tokio::test]
async fn a_shard_that_is_not_there_is_noticed_and_what_cannot_be_asked_is_refused() {
    let shop = Shop::open(|_| {}).await;
    let shard = shop.key.shard();
    let keys = [
        shard.clone(),
        shop.key.room(),
        shop.key.admitted(),
        shop.key.door(),
        shop.key.returned(),
        shop.key.buyer(&user("ada")),
    ];
    for (rate, id) in [("0", "abcdefghijkl"), ("nan", "abcdefghijkl"), ("1", "short")] {
        let args = [
            arg(id),
            arg("1"),
            arg(rate),
            arg("1"),
            arg("1"),
            arg("1"),
            arg(""),
            arg(""),
            arg(NOW),
        ];
        let refused = shop.raw.script(&WAITING_ROOM, &keys, &args);
        assert!(refused.contains("BADARG"), "{rate} {id}: {refused}");
    }
    let _gone: i64 = shop.raw.call(redis::cmd("DEL").arg(&shard));
    let missing = shop.stock.wait(shop.key, &user("ada"), &asking(1, NOW)).await;
    assert!(matches!(missing, Err(Fault::Incomplete(_))), "{missing:?}");
    let written: i64 = shop.raw.call(redis::cmd("EXISTS").arg(&keys[1..]));
    assert_eq!(written, 0);
}

#[tokio::test]
async fn a_reading_of_a_long_line_is_exact_at_its_head_and_close_behind() {
    let shop = Shop::open(|_| {}).await;
    // A rush that ebbs away, so places are not evenly spread.
    let place = |n: i64| LATE + n * n;
    let mut add = redis::cmd("ZADD");
    add.arg(shop.key.room());
    for n in 0..6000 {
        add.arg(place(n)).arg(&member(n.cast_unsigned()).id);
    }
    let _added: i64 = shop.raw.call(&mut add);
    let lines = shop.stock.read_lines(&shop.sale, Duration::from_secs(5)).await.unwrap();
    let line = &lines[usize::from(shop.key.shard)];
    assert_eq!(line.waiting, 6000);
    // The cost does not follow the length.
    assert!(line.samples.len() < 1100, "{}", line.samples.len());
    let mut last = 0;
    for n in 0..=6000 {
        let before = line.before(place(n));
        let error = (before - n).abs();
        assert!(error * 100 <= n && (n > 256 || error == 0), "{before} for {n}");
        assert!(before >= last, "who comes later is not shown before");
        last = before;
    }
}

/// One more than a power of two: the table of the sorted set has just doubled, so a member takes the most that it ever takes.
#[tokio::test]
async fn a_shopper_who_waits_takes_120_bytes_at_most_however_many_there_are() {
    let shop = Shop::open(|_| {}).await;
    let count = (1u64 << 14) + 1;
    let numbers: Vec<u64> = (0..count).collect();
    for some in numbers.chunks(500) {
        let waiting = some.iter().map(|n| {
            // Lots and ids as they are drawn: of any bits.
            let drawn = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut member = member(drawn);
            member.id[8..].copy_from_slice(&drawn.to_le_bytes()[..4]);
            member.lot = drawn >> 24;
            Waiting {
                member,
                room_max: 1_000_000,
                ..asking(*n, START - 1)
            }
        });
        let waiting: Vec<_> = waiting.collect();
        for answer in join_all(waiting.iter().map(|waiting| ask(&shop, waiting))).await {
            assert!(matches!(answer, RoomAnswer::Waiting { .. }), "{answer:?}");
        }
    }
    let of_line = [
        shop.key.room(),
        shop.key.admitted(),
        shop.key.door(),
        shop.key.returned(),
    ];
    let mut bytes = 0;
    for key in of_line {
        let usage: Option<i64> = shop
            .raw
            .call(redis::cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0));
        bytes += usage.unwrap_or(0);
    }
    let waiting: i64 = shop.raw.call(redis::cmd("ZCARD").arg(shop.key.room()));
    assert_eq!(waiting, i64::try_from(count).unwrap());
    let each = bytes / waiting;
    println!("bytes of Redis for each shopper who waits: {each}");
    assert!((40..=120).contains(&each), "{each}");
}

#[tokio::test]
async fn a_line_that_is_asked_about_all_the_time_moves_as_fast_as_any() {
    let shop = Shop::open(|_| {}).await;
    let mut let_in = 0;
    for n in 0..10 {
        ask(
            &shop,
            &Waiting {
                free: 0.0,
                ..asking(n, START - 1)
            },
        )
        .await;
    }
    // Four thousand times, every three milliseconds: twelve seconds, at one in four seconds.
    for now in (START..START + 12_000).step_by(3) {
        let slow = Waiting {
            rate: 0.25,
            ..asking(9, now)
        };
        ask(&shop, &slow).await;
        let_in = shop.stock.count_room(shop.key).await.unwrap().admitted;
    }
    assert_eq!(let_in, 3, "the one that the bucket held, and two more");
}

#[tokio::test]
async fn a_pause_takes_nobodys_time_and_a_ban_lets_nobody_in() {
    let shop = Shop::open(|_| {}).await;
    let until = START + 61_000;
    assert_eq!(ask(&shop, &asking(1, START + 1000)).await, Admitted { until });
    let paused = Sale {
        lifecycle: Lifecycle::Paused,
        state_version: 2,
        ..shop.sale.clone()
    };
    shop.stock.set_state(&paused, 0).await.unwrap();
    let later = START + 600_000;
    ask(&shop, &asking(2, later)).await;
    assert_eq!(
        ask(&shop, &asking(1, later)).await,
        Admitted { until: later + 60_000 },
        "the whole admission lies ahead"
    );
    let banned_until = later + 60_000;
    shop.ban("shopper-3", banned_until);
    let banned = RoomAnswer::Banned(Refusal::Banned {
        until: Some(banned_until),
    });
    assert_eq!(ask(&shop, &asking(3, later)).await, banned);
    assert_eq!(shop.stock.count_room(shop.key).await.unwrap().waiting, 1);
}

#[tokio::test]
async fn an_admitted_shopper_who_does_not_come_makes_room_after_a_minute() {
    let shop = Shop::open(|_| {}).await;
    let long = |n, now| Waiting {
        stay_ms: 600_000,
        free: 1.0,
        ..asking(n, now)
    };
    for n in 1..=2 {
        ask(&shop, &long(n, START - 5)).await;
    }
    // The call of the second one admits the first.
    assert_eq!(ahead(ask(&shop, &long(2, START)).await), 0);
    assert_eq!(ahead(ask(&shop, &long(2, START + 60_000)).await), 0);
    let until = START + 60_001 + 600_000;
    assert_eq!(ask(&shop, &long(2, START + 60_001)).await, Admitted { until });
    // A shopper who comes within the minute has the full time.
    let shop = Shop::open(|_| {}).await;
    for n in 1..=2 {
        ask(&shop, &long(n, START - 5)).await;
    }
    ask(&shop, &long(2, START)).await;
    let until = START + 59_999 + 600_000;
    assert_eq!(ask(&shop, &long(1, START + 59_999)).await, Admitted { until });
}

/// The rules, implemented a second time.
struct Reference {
    room: Option<Millis>,
    at: Millis,
    /// In millionths.
    level: f64,
    bought: i64,
    gone: i64,
    line: BTreeMap<(i64, [u8; 12]), ()>,
    /// Until when, and whether they know it.
    admitted: BTreeMap<[u8; 12], (Millis, bool)>,
    returned: BTreeSet<[u8; 12]>,
}

impl Reference {
    const fn new() -> Self {
        Self {
            room: None,
            at: 0,
            level: 1_000_000.0,
            bought: 0,
            gone: 0,
            line: BTreeMap::new(),
            admitted: BTreeMap::new(),
            returned: BTreeSet::new(),
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "small numbers"
    )]
    fn ask(&mut self, waiting: &Waiting) -> (Option<Millis>, Option<(i64, i64)>) {
        let now = waiting.now.unwrap();
        let id = waiting.member.id;
        let room = *self.room.get_or_insert(now);
        if self.at == 0 {
            self.at = now;
        }
        let is_in_line = self.line.keys().any(|(_, other)| *other == id);
        match self.admitted.get_mut(&id) {
            Some((until, knows)) if *until > now => {
                if !*knows {
                    (*until, *knows) = (now + waiting.stay_ms, true);
                }
            }
            _ if is_in_line => {}
            _ => {
                let place = match waiting.place {
                    Some(place) if place.room != room && self.returned.insert(id) => place.place,
                    _ if now < START => i64::try_from(waiting.member.lot).unwrap(),
                    _ => LATE + now - START,
                };
                self.line.insert((place, id), ());
            }
        }
        let come = (now - self.at).max(0) as f64 * waiting.rate * 1000.0;
        let mut level = (self.level + come).min(waiting.rate.max(1.0) * 1_000_000.0);
        self.at = now;
        if now >= START {
            let before = self.admitted.len();
            // A shopper who does not know it yet has half a millisecond more.
            self.admitted
                .retain(|_, (until, knows)| *until > now || (*until == now && !*knows));
            self.gone += i64::try_from(before - self.admitted.len()).unwrap();
        }
        if now >= START && waiting.free > 0.0 {
            let share = ((self.bought + 1) as f64 / (self.bought + self.gone + 1) as f64).max(0.02);
            let wanted = (waiting.free / share).ceil() as i64 - i64::try_from(self.admitted.len()).unwrap();
            for _ in 0..wanted.min((level / 1_000_000.0).floor() as i64).max(0) {
                let Some(((_, next), ())) = self.line.pop_first() else {
                    break;
                };
                let (stay, knows) = if next == id {
                    (waiting.stay_ms, true)
                } else {
                    (waiting.stay_ms.min(60_000), false)
                };
                self.admitted.insert(next, (now + stay, knows));
                level -= 1_000_000.0;
            }
        }
        self.level = level;
        match self.admitted.get(&id).filter(|(until, _)| *until > now) {
            Some((until, _)) => (Some(*until), None),
            None => {
                let ahead = self.line.keys().position(|(_, other)| *other == id).unwrap();
                let waiting = self.line.len();
                (
                    None,
                    Some((i64::try_from(ahead).unwrap(), i64::try_from(waiting).unwrap())),
                )
            }
        }
    }

    fn leave(&mut self, member: &Member) -> bool {
        let was_there = self.admitted.remove(&member.id).is_some();
        self.bought += i64::from(was_there);
        was_there
    }
}

#[tokio::test]
async fn in_any_order_of_calls_the_line_moves_by_the_rules() {
    let step = (
        0u64..12,
        prop_oneof![0i64..4, 0i64..4000],
        prop_oneof![Just(0.0), Just(0.4), Just(3.0), Just(50.0)],
        any::<bool>(),
    );
    let steps = prop::collection::vec(step, 1..40);
    let mut runner = TestRunner::deterministic();
    for case in 0..40 {
        let shop = Shop::open(|_| {}).await;
        let mut reference = Reference::new();
        let mut now = START - 20_000;
        let steps = steps.new_tree(&mut runner).unwrap().current();
        for (number, (n, pause, free, leaves)) in steps.iter().enumerate() {
            now += pause;
            let said = format!("case {case}, step {number} of {steps:?}");
            if *leaves && now > START {
                let left = shop.stock.leave_room(shop.key, &member(*n)).await.unwrap();
                assert_eq!(left, reference.leave(&member(*n)), "{said}");
                continue;
            }
            let waiting = Waiting {
                rate: 0.75,
                stay_ms: 5000,
                free: *free,
                place: (n % 5 == 0).then_some(Place {
                    room: 3,
                    place: LATE + 5,
                }),
                ..asking(*n, now)
            };
            let answer = match ask(&shop, &waiting).await {
                Admitted { until } => (Some(until), None),
                RoomAnswer::Waiting { ahead, waiting, .. } => (None, Some((ahead, waiting))),
                other => panic!("{other:?}"),
            };
            assert_eq!(answer, reference.ask(&waiting), "{said}");
        }
    }
}
