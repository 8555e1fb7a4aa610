//! The checker is honest: histories with one fault are rejected by the rule that it breaks, and by no other; unusual but
//! correct ones are accepted.

mod story;

use super::checker::{HANG, Losses, check, losses, rule};
use super::history::{Buyer, History, Reply};
use flashsale::domain::operator::report::Counters;
use std::collections::BTreeSet;
use story::{Story, WINDOW, buy, cancel, done, no, pay, read, restock, sold_out, unavailable};

type Make = fn(Story) -> History;
type Row = (&'static str, &'static [&'static str], Make);

/// The rules that a history breaks.
fn broken(history: &History) -> BTreeSet<&'static str> {
    check(history).iter().map(|it| it.rule).collect()
}

/// Ten shoppers take a unit of A each: all that there is.
fn take_all(it: &mut Story) {
    for n in 0..10 {
        it.buys(&format!("all{n}/k1"), "A", 1);
    }
}

fn stock<'a>(it: &'a mut History, sku: &str, shard: usize) -> &'a mut Counters {
    it.end.shards[shard].items.get_mut(&sku.parse().unwrap()).unwrap()
}

fn payment<'a>(it: &'a mut History, name: &str) -> &'a mut super::history::LedgerPayment {
    it.end.payments.iter_mut().find(|it| it.payment == name).unwrap()
}

/// An order of the ledger is accepted again while a fault lasts.
fn accepts_again(it: &mut Story, fault: &str) {
    it.buys("ada/k1", "A", 1);
    it.again("ada/k1");
    it.last().confirmed = true;
    let from = it.now;
    it.fault(1_000, true);
    it.history.injections.last_mut().unwrap().what = fault.to_owned();
    let until = std::mem::replace(&mut it.now, from + 500_000);
    let (reply, at) = (it.shows(201, "ada/k1", false), it.millis() + 2);
    it.asks(buy("ada/k1", "A", 1), reply);
    (it.last().created_at, it.last().expires_at) = (at, at + WINDOW);
    it.now = until;
}

/// Each begins with an empty history.
const BAD: &[Row] = &[
    ("an order of the ledger is accepted again", &[rule::KEY], |mut it| {
        accepts_again(&mut it, "FailOver");
        it.ends()
    }),
    ("a unit is sold before it is added", &[rule::OVERSOLD], |mut it| {
        take_all(&mut it);
        it.buys("ada/k1", "A", 1);
        it.restocks("r1", "A", 1);
        it.ends()
    }),
    ("a unit is sold before it is given back", &[rule::OVERSOLD], |mut it| {
        take_all(&mut it);
        it.buys("ada/k1", "A", 1);
        it.cancels("all3/k1");
        it.ends()
    }),
    ("a unit is sold after it was withdrawn", &[rule::OVERSOLD], |mut it| {
        it.restocks("w1", "A", -1);
        take_all(&mut it);
        it.ends()
    }),
    ("a paid unit is sold again", &[rule::OVERSOLD], |mut it| {
        take_all(&mut it);
        it.pays("all0/k1");
        it.buys("ada/k1", "A", 1);
        it.ends()
    }),
    ("too many are sold after a loss is over", &[rule::OVERSOLD], |mut it| {
        it.fault(1_000, true);
        it.wait(20_000);
        take_all(&mut it);
        it.buys("ada/k1", "A", 1);
        it.ends()
    }),
    (
        "too many are sold in a loss and are there after it",
        &[rule::OVERSOLD],
        |mut it| {
            it.fault(1_000, true);
            it.now -= 500_000;
            it.history.terms.window_seconds = 60;
            take_all(&mut it);
            it.buys("ada/k1", "A", 1);
            it.history
                .end
                .orders
                .iter_mut()
                .for_each(|order| order.expires_at += 58_000);
            it.history.ops.iter_mut().for_each(|op| {
                if let Reply::Order { order, .. } = &mut op.reply {
                    order.expires_at += 58_000;
                }
            });
            it.ends()
        },
    ),
    (
        "an acknowledged order makes it too many and is not in the ledger",
        &[rule::OVERSOLD, rule::KEPT],
        |mut it| {
            take_all(&mut it);
            it.buys("ada/k1", "A", 1);
            it.history.end.orders.pop();
            it.ends()
        },
    ),
    ("a key is answered 201 twice", &[rule::KEY], |mut it| {
        it.buys("ada/k1", "A", 1);
        let reply = it.shows(201, "ada/k1", false);
        it.now -= 10_000;
        it.asks(buy("ada/k1", "A", 1), reply);
        it.ends()
    }),
    (
        "a key is answered with another shopper's order",
        &[rule::KEY, rule::KEPT],
        |mut it| {
            it.buys("bob/k1", "A", 1);
            let reply = it.shows(200, "bob/k1", false);
            it.asks(buy("ada/k1", "A", 1), reply);
            it.ends()
        },
    ),
    ("a first answer is called a repetition", &[rule::KEY], |mut it| {
        it.buys("ada/k1", "A", 1);
        if let Reply::Order { replayed, .. } = &mut it.history.ops[0].reply {
            *replayed = true;
        }
        it.ends()
    }),
    ("a known key is answered as sold out", &[rule::KEY], |mut it| {
        take_all(&mut it);
        it.asks(buy("all0/k1", "A", 1), sold_out());
        it.ends()
    }),
    (
        "a known key with another body is answered as sold out",
        &[rule::KEY],
        |mut it| {
            take_all(&mut it);
            it.asks(buy("all0/k1", "A", 2), sold_out());
            it.ends()
        },
    ),
    (
        "a known key with another body is sold again",
        &[rule::KEY, rule::KEPT],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.again("ada/k1");
            it.last().quantity = 2;
            it.last().amount = 1_000;
            it.history.ops[1].request = buy("ada/k1", "A", 2);
            it.ends()
        },
    ),
    ("a key that is used once is reused", &[rule::KEY], |mut it| {
        it.asks(buy("ada/k1", "A", 1), no(422, "idempotency_key_reused"));
        it.ends()
    }),
    ("a key is reused that has no order", &[rule::KEY], |mut it| {
        it.asks(buy("ada/k1", "A", 1), unavailable());
        it.asks(buy("ada/k1", "A", 2), no(422, "idempotency_key_reused"));
        it.ends()
    }),
    ("a key is reused with the body of its order", &[rule::KEY], |mut it| {
        it.asks(buy("ada/k1", "A", 2), Reply::None);
        it.accepts("ada/k1", "A", 1);
        it.asks(buy("ada/k1", "A", 1), no(422, "idempotency_key_reused"));
        it.ends()
    }),
    ("an order is refused and yet there", &[rule::KEY], |mut it| {
        take_all(&mut it);
        it.cancels("all0/k1");
        it.accepts("ada/k1", "A", 1);
        it.asks(buy("ada/k1", "A", 1), sold_out());
        it.ends()
    }),
    ("nobody asked for an order", &[rule::KEY], |mut it| {
        it.accepts("ada/k1", "A", 1);
        it.ends()
    }),
    (
        "an order was accepted before it was asked for",
        &[rule::KEY],
        |mut it| {
            it.accepts("ada/k1", "A", 1);
            it.wait(50);
            it.asks(buy("ada/k1", "A", 1), unavailable());
            it.ends()
        },
    ),
    (
        "an order was accepted after its answer",
        &[rule::KEY, rule::REAL_TIME],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.last().created_at += 100;
            it.last().expires_at += 100;
            it.order("ada/k1").created_at += 100;
            it.order("ada/k1").expires_at += 100;
            it.ends()
        },
    ),
    ("more is sold than was asked for", &[rule::KEY], |mut it| {
        it.buys("ada/k1", "A", 2);
        it.history.ops[0].request = buy("ada/k1", "A", 1);
        it.ends()
    }),
    ("a key has two orders in the ledger", &[rule::KEY], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.wait(20);
        it.accepts("ada/k2", "A", 1);
        it.asks(buy("ada/k1", "A", 1), Reply::None);
        it.order("ada/k2").key = "k1".to_owned();
        it.ends()
    }),
    (
        "a copy gets sold out while the other gets the order",
        &[rule::ONE_ANSWER],
        |mut it| {
            for n in 0..9 {
                it.buys(&format!("all{n}/k1"), "A", 1);
            }
            it.buys("ada/k1", "A", 1);
            it.wait(-10);
            it.asks(buy("ada/k1", "A", 1), sold_out());
            it.ends()
        },
    ),
    ("a shopper has more than the limit", &[rule::LIMIT], |mut it| {
        it.buys("ada/k1", "A", 2);
        it.buys("ada/k2", "A", 2);
        it.ends()
    }),
    (
        "a shopper has more than the limit until they cancel",
        &[rule::LIMIT],
        |mut it| {
            it.buys("ada/k1", "A", 3);
            it.buys("ada/k2", "A", 1);
            it.cancels("ada/k1");
            it.ends()
        },
    ),
    ("paid units do not count for the limit", &[rule::LIMIT], |mut it| {
        it.buys("ada/k1", "A", 3);
        it.pays("ada/k1");
        it.wait(60_000);
        it.buys("ada/k2", "A", 1);
        it.ends()
    }),
    ("an acknowledged order is lost", &[rule::KEPT], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.history.end.orders.clear();
        it.ends()
    }),
    (
        "an acknowledged order is in the ledger at another time",
        &[rule::KEPT],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.order("ada/k1").created_at += 1;
            it.order("ada/k1").expires_at += 1;
            it.ends()
        },
    ),
    (
        "an acknowledged order is of another item in the ledger",
        &[rule::KEY, rule::KEPT],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.order("ada/k1").sku = "B".to_owned();
            it.order("ada/k1").amount = 20;
            it.ends()
        },
    ),
    (
        "an order is lost that a fault came after and lost nothing",
        &[rule::KEPT],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.fault(1_000, false);
            it.history.end.orders.clear();
            it.ends()
        },
    ),
    ("an order is lost that came after the fault", &[rule::KEPT], |mut it| {
        it.fault(1_000, true);
        it.wait(20);
        it.buys("ada/k1", "A", 1);
        it.history.end.orders.clear();
        it.ends()
    }),
    ("an order is lost that a replica had", &[rule::KEPT], |mut it| {
        it.history.terms.durability = "replica";
        it.buys("ada/k1", "A", 1);
        it.fault(1_000, true);
        it.history.end.orders.clear();
        it.ends()
    }),
    ("a confirmed order is lost", &[rule::KEPT], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.reads("ada/k1");
        it.fault(1_000, true);
        it.history.end.orders.clear();
        it.ends()
    }),
    ("an order is revoked without a loss", &[rule::KEPT], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.fault(1_000, false);
        let at = it.millis();
        it.decides("ada/k1", "revoked", at);
        it.ends()
    }),
    (
        "an order is revoked that waited for the ledger",
        &[rule::KEPT],
        |mut it| {
            it.history.terms.durability = "postgres";
            it.fault(1_000, true);
            it.buys("ada/k1", "A", 1);
            it.last().confirmed = true;
            let at = it.millis();
            it.decides("ada/k1", "revoked", at);
            it.ends()
        },
    ),
    ("a shopper reads another's order", &[rule::KEPT], |mut it| {
        it.buys("ada/k1", "A", 1);
        let reply = it.shows(200, "ada/k1", true);
        it.asks(read("ada/k1"), reply);
        it.history.ops[1].request = super::history::Request::Read {
            user: "bob".to_owned(),
            order: "ada/k1".to_owned(),
        };
        it.ends()
    }),
    ("an order never ends", &[rule::LEAK], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.wait(WINDOW + 20_000);
        it.rests()
    }),
    ("a unit is gone in Redis", &[rule::LEAK], |it| {
        let mut history = it.ends();
        stock(&mut history, "A", 0).available -= 1;
        stock(&mut history, "A", 0).granted -= 1;
        history
    }),
    ("a unit came from nowhere in Redis", &[rule::LEAK], |it| {
        let mut history = it.ends();
        stock(&mut history, "B", 1).available += 1;
        stock(&mut history, "B", 1).granted += 1;
        history
    }),
    ("one more is sold than was left", &[rule::LEFT], |it| {
        let mut history = it.ends();
        *history.end.sold_afterwards.get_mut("A").unwrap() += 1;
        history
    }),
    ("the rest of the stock cannot be bought", &[rule::LEFT], |it| {
        let mut history = it.ends();
        history.end.sold_afterwards.remove("B");
        history
    }),
    ("four are let through in a second", &[rule::RATE], |mut it| {
        for key in ["ada/k1", "ada/k2", "ada/k3", "ada/k4"] {
            it.buys(key, "B", 1);
        }
        it.ends()
    }),
    (
        "a repeated request makes room in the window",
        &[rule::RATE],
        |mut it| {
            it.buys("ada/k1", "B", 1);
            it.wait(900);
            it.again("ada/k1");
            for key in ["ada/k2", "ada/k3", "ada/k4"] {
                it.buys(key, "B", 1);
            }
            it.ends()
        },
    ),
    ("an order is paid without a payment", &[rule::MONEY], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.asks(pay("p1", "ada/k1", 500), unavailable());
        let at = it.millis();
        it.decides("ada/k1", "paid", at);
        it.ends()
    }),
    ("an order is paid twice", &[rule::MONEY], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.pays("ada/k1");
        it.now -= 10_000;
        it.webhook("p2", "ada/k1", 500, "applied");
        it.ends()
    }),
    (
        "an applied payment does not pay the order",
        &[rule::MONEY, rule::STATE],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.pays("ada/k1");
            it.order("ada/k1").state = "reserved".to_owned();
            it.order("ada/k1").resolved_at = None;
            it.reads("ada/k1");
            it.ends()
        },
    ),
    ("an order is paid with too little", &[rule::MONEY], |mut it| {
        it.buys("ada/k1", "A", 1);
        let at = it.millis();
        it.decides("ada/k1", "paid", at + 2);
        it.webhook("p1", "ada/k1", 499, "applied");
        it.ends()
    }),
    (
        "money is recorded for less than the webhook said",
        &[rule::MONEY],
        |it| {
            let mut it = Story { ..it };
            it.webhook("p1", "nobody/k1", 500, "unmatched");
            let mut history = it.ends();
            payment(&mut history, "p1").amount = 400;
            history
        },
    ),
    (
        "a payment that was answered is not recorded",
        &[rule::MONEY],
        |mut it| {
            it.asks(pay("p1", "nobody/k1", 500), done("unmatched"));
            it.ends()
        },
    ),
    ("a payment that stays pending", &[rule::MONEY], |mut it| {
        it.webhook("p1", "nobody/k1", 500, "pending");
        it.ends()
    }),
    (
        "a payment is recorded otherwise than answered",
        &[rule::MONEY],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.cancels("ada/k1");
            it.webhook("p1", "ada/k1", 500, "refund_due");
            it.history.ops[2].reply = done("unmatched");
            it.ends()
        },
    ),
    (
        "a payment is owed back before the order has ended",
        &[rule::MONEY],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.webhook("p1", "ada/k1", 500, "refund_due");
            it.ends()
        },
    ),
    (
        "a payment is unmatched although its order was known",
        &[rule::MONEY],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.webhook("p1", "ada/k1", 500, "unmatched");
            it.ends()
        },
    ),
    ("a duplicate of nothing", &[rule::MONEY], |mut it| {
        it.webhook("p1", "nobody/k1", 500, "unmatched");
        it.history.ops[0].reply = done("duplicate");
        it.ends()
    }),
    ("a payment is taken in twice", &[rule::MONEY], |mut it| {
        it.webhook("p1", "nobody/k1", 500, "unmatched");
        it.asks(pay("p1", "nobody/k1", 500), done("unmatched"));
        it.ends()
    }),
    (
        "an applied payment finds the order paid before",
        &[rule::MONEY],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            let at = it.millis();
            it.decides("ada/k1", "paid", at);
            it.wait(100);
            it.webhook("p1", "ada/k1", 500, "applied");
            it.ends()
        },
    ),
    ("a payment is in the ledger twice", &[rule::MONEY], |mut it| {
        it.webhook("p1", "nobody/k1", 500, "unmatched");
        let again = it.history.end.payments[0].clone();
        it.history.end.payments.push(again);
        it.ends()
    }),
    ("a payment is recorded without a webhook", &[rule::MONEY], |mut it| {
        it.webhook("p1", "nobody/k1", 500, "unmatched");
        it.history.ops.clear();
        it.ends()
    }),
    ("an order costs something else", &[rule::MONEY], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.order("ada/k1").amount = 499;
        it.last().amount = 499;
        it.ends()
    }),
    ("a later purchase has an earlier event", &[rule::REAL_TIME], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.buys("ada/k2", "A", 1);
        let created = [it.order("ada/k1").created_at, it.order("ada/k2").created_at];
        it.order("ada/k1").seq = 2;
        it.order("ada/k2").seq = 1;
        assert!(created[0] < created[1]);
        it.ends()
    }),
    (
        "a purchase right after another has an earlier event",
        &[rule::REAL_TIME],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.wait(-9);
            it.buys("ada/k2", "A", 1);
            it.history.ops[0].returned = it.history.ops[1].invoked + 1_200;
            it.history.ops[1].invoked += 1_500;
            it.order("ada/k1").seq = 2;
            it.order("ada/k2").seq = 1;
            it.ends()
        },
    ),
    (
        "a 201 shows an order from before it was asked for",
        &[rule::REAL_TIME, rule::KEY],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.history.ops[0].invoked += 4_000;
            it.ends()
        },
    ),
    (
        "an order is cancelled before it was accepted",
        &[rule::HOLD],
        |mut it| {
            it.asks(buy("ada/k1", "A", 1), unavailable());
            it.accepts("ada/k1", "A", 1);
            let at = it.millis();
            it.decides("ada/k1", "cancelled", at);
            it.ends()
        },
    ),
    (
        "the fourth is let through just before the first has left the window",
        &[rule::RATE],
        |mut it| {
            for key in ["ada/k1", "ada/k2", "ada/k3"] {
                it.buys(key, "B", 1);
            }
            it.wait(960);
            it.buys("ada/k4", "B", 1);
            it.ends()
        },
    ),
    (
        "an order of a later generation was accepted before",
        &[rule::REAL_TIME],
        |mut it| {
            it.asks(buy("ada/k1", "A", 1), Reply::None);
            it.accepts("ada/k1", "A", 1);
            it.order("ada/k1").epoch = 2;
            it.wait(10);
            it.asks(buy("ada/k2", "A", 1), Reply::None);
            it.accepts("ada/k2", "A", 1);
            it.epoch = 2;
            it.ends()
        },
    ),
    (
        "an order is shown before it is accepted",
        &[rule::REAL_TIME],
        |mut it| {
            it.asks(buy("ada/k1", "A", 1), unavailable());
            it.wait(100);
            it.accepts("ada/k1", "A", 1);
            it.wait(-50);
            it.reads("ada/k1");
            it.ends()
        },
    ),
    ("a shopper has two homes", &[rule::REAL_TIME], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.buys("ada/k2", "A", 1);
        it.order("ada/k2").shard = 0;
        it.order("ada/k2").seq = 1;
        it.ends()
    }),
    ("sold out is said while units are free", &[rule::SOLD_OUT], |mut it| {
        it.buys("bob/k1", "A", 3);
        it.asks(buy("ada/k1", "A", 2), sold_out());
        it.ends()
    }),
    (
        "sold out is said long after units came back",
        &[rule::SOLD_OUT],
        |mut it| {
            take_all(&mut it);
            it.cancels("all4/k1");
            it.wait(5_100);
            it.asks(buy("ada/k1", "A", 1), sold_out());
            it.ends()
        },
    ),
    ("sold out is said long after a restock", &[rule::SOLD_OUT], |mut it| {
        it.history.terms.items[1].stock = 0;
        it.restocks("r1", "B", 1);
        it.wait(5_100);
        it.asks(buy("ada/k1", "B", 1), sold_out());
        it.ends()
    }),
    ("sold out is said long after a fault", &[rule::SOLD_OUT], |mut it| {
        it.fault(1_000, true);
        it.wait(10_100);
        it.asks(buy("ada/k1", "A", 1), sold_out());
        it.ends()
    }),
    (
        "sold out is said long after units that a fault kept came back",
        &[rule::SOLD_OUT],
        |mut it| {
            take_all(&mut it);
            it.cancels("all0/k1");
            it.fault(1_000, false);
            it.wait(76_000);
            it.asks(buy("ada/k1", "A", 1), sold_out());
            it.ends()
        },
    ),
    (
        "sold out is said although a withdrawal left some",
        &[rule::SOLD_OUT],
        |mut it| {
            it.restocks("w1", "A", -5);
            it.withdrawal_is_refused("w2", "A", -6);
            it.wait(6_000);
            it.asks(buy("ada/k1", "A", 3), sold_out());
            it.ends()
        },
    ),
    ("a limit is said that is not reached", &[rule::LIMIT_TRUE], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.asks(buy("ada/k2", "A", 2), no(409, "purchase_limit_reached"));
        it.ends()
    }),
    (
        "a limit is said long after the units were given back",
        &[rule::LIMIT_TRUE],
        |mut it| {
            it.buys("ada/k1", "A", 3);
            it.cancels("ada/k1");
            it.wait(5_100);
            it.asks(buy("ada/k2", "A", 1), no(409, "purchase_limit_reached"));
            it.ends()
        },
    ),
    ("a rate is said that is not reached", &[rule::RATE_TRUE], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.buys("ada/k2", "A", 1);
        it.asks(buy("ada/k3", "A", 1), no(429, "rate_limited"));
        it.ends()
    }),
    ("repetitions count for the rate", &[rule::RATE_TRUE], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.again("ada/k1");
        it.again("ada/k1");
        it.asks(buy("ada/k2", "A", 1), no(429, "rate_limited"));
        it.ends()
    }),
    ("refused requests count for the rate", &[rule::RATE_TRUE], |mut it| {
        for key in ["ada/k1", "ada/k2", "ada/k3"] {
            it.buys(key, "A", 1);
        }
        it.wait(800);
        for key in ["ada/k4", "ada/k5", "ada/k6"] {
            it.asks(buy(key, "A", 1), no(429, "rate_limited"));
        }
        it.wait(600);
        it.asks(buy("ada/k7", "A", 1), no(429, "rate_limited"));
        it.ends()
    }),
    ("shards do not account for a transfer", &[rule::BALANCE], |it| {
        let mut history = it.ends();
        stock(&mut history, "A", 0).out += 1;
        stock(&mut history, "A", 1).r#in += 1;
        history
    }),
    ("a shard has less than nothing", &[rule::BALANCE], |it| {
        let mut history = it.ends();
        for (shard, units) in [(0, 11), (1, -11)] {
            stock(&mut history, "A", shard).available += units;
            stock(&mut history, "A", shard).granted += units;
        }
        history
    }),
    ("units are withheld without a loss", &[rule::BALANCE], |it| {
        let mut history = it.ends();
        stock(&mut history, "A", 0).available -= 1;
        stock(&mut history, "A", 0).revoked += 1;
        history
    }),
    ("a shard is not there", &[rule::BALANCE], |mut it| {
        it.history.terms.shards = 3;
        let mut history = it.ends();
        history.end.shards.pop();
        history
    }),
    ("a row counts units that were given back", &[rule::BUYER], |mut it| {
        it.buys("ada/k1", "A", 1);
        let mut history = it.ends();
        let row = history.end.buyers.get_mut("ada").unwrap().as_mut().unwrap();
        row.units.insert("A".to_owned(), 1);
        history
    }),
    ("a row does not know how an order ended", &[rule::BUYER], |mut it| {
        it.buys("ada/k1", "A", 1);
        let mut history = it.ends();
        let row = history.end.buyers.get_mut("ada").unwrap().as_mut().unwrap();
        row.orders.insert("ada/k1".to_owned(), "reserved".to_owned());
        history
    }),
    ("a row is gone although an order was paid", &[rule::BUYER], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.pays("ada/k1");
        let mut history = it.ends();
        history.end.buyers.insert("ada".to_owned(), None);
        history
    }),
    (
        "a row has an order that the ledger does not have",
        &[rule::BUYER],
        |it| {
            let mut history = it.ends();
            let row = Buyer {
                units: [("A".to_owned(), 0)].into(),
                orders: [("ada/k1".to_owned(), "expired".to_owned())].into(),
            };
            history.end.buyers.insert("ada".to_owned(), Some(row));
            history
        },
    ),
    (
        "a row does not have a reserved order",
        &[rule::BUYER, rule::LEAK],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            let mut history = it.rests();
            let row = history.end.buyers.get_mut("ada").unwrap().as_mut().unwrap();
            row.orders.clear();
            history
        },
    ),
    ("an event is missing", &[rule::NUMBERS], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.buys("ada/k2", "A", 1);
        it.order("ada/k2").seq = 3;
        it.ends()
    }),
    ("the first event is missing", &[rule::NUMBERS], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.order("ada/k1").seq = 2;
        it.ends()
    }),
    ("an event is missing before the fault", &[rule::NUMBERS], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.order("ada/k1").seq = 2;
        it.fault(1_000, true);
        it.ends()
    }),
    ("two orders have one event", &[rule::NUMBERS], |mut it| {
        it.asks(buy("ada/k1", "A", 1), Reply::None);
        it.asks(buy("ada/k2", "A", 1), Reply::None);
        it.accepts("ada/k1", "A", 1);
        it.accepts("ada/k2", "A", 1);
        it.order("ada/k2").seq = 1;
        it.ends()
    }),
    ("two orders have one event after a loss", &[rule::NUMBERS], |mut it| {
        it.fault(1_000, true);
        it.buys("ada/k1", "A", 1);
        it.buys("cyd/k1", "A", 1);
        it.order("cyd/k1").seq = 1;
        it.history.ops[1].reply = Reply::None;
        it.ends()
    }),
    (
        "an order is of a later generation than its shard",
        &[rule::NUMBERS],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.order("ada/k1").epoch = 2;
            it.ends()
        },
    ),
    ("Postgres has sold more than Redis", &[rule::AGREE], |mut it| {
        it.buys("ada/k1", "A", 1);
        let mut history = it.ends();
        history.end.grants[0].sold += 1;
        history
    }),
    ("grants do not add up to the stock", &[rule::AGREE], |it| {
        let mut history = it.ends();
        history.end.grants[0].granted += 1;
        history
    }),
    ("the shards have sold on the wrong shard", &[rule::AGREE], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.pays("ada/k1");
        let mut history = it.ends();
        for (shard, sold) in [(0, 1), (1, -1)] {
            stock(&mut history, "A", shard).sold += sold;
            stock(&mut history, "A", shard).granted += sold;
        }
        history
    }),
    ("units are on their way", &[rule::AT_REST], |it| {
        let mut history = it.ends();
        history.end.shards[0].in_transit = 1;
        history
    }),
    ("events are not drained", &[rule::AT_REST], |it| {
        let mut history = it.ends();
        history.end.shards[1].undrained = 1;
        history
    }),
    ("messages wait", &[rule::AT_REST], |it| {
        let mut history = it.ends();
        history.end.waiting = 1;
        history
    }),
    ("an event is put aside without a loss", &[rule::AT_REST], |mut it| {
        it.fault(1_000, false);
        it.history.end.dead_letters = 1;
        it.ends()
    }),
    ("the audit does not balance", &[rule::AT_REST], |it| {
        let mut history = it.ends();
        history.end.audit.push("A on shard 0".to_owned());
        history
    }),
    ("a paid order is reserved again", &[rule::STATE], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.pays("ada/k1");
        it.reads("ada/k1");
        it.reads("ada/k1");
        it.last().state = "reserved".to_owned();
        it.ends()
    }),
    ("an order is shown cancelled and expires", &[rule::STATE], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.reads("ada/k1");
        it.last().state = "cancelled".to_owned();
        it.ends()
    }),
    ("a cancelled order is still reserved", &[rule::STATE], |mut it| {
        it.buys("ada/k1", "A", 1);
        let reply = it.shows(200, "ada/k1", true);
        it.asks(cancel("ada/k1"), reply);
        it.ends()
    }),
    (
        "a cancellation is refused before the order has ended",
        &[rule::STATE],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.asks(cancel("ada/k1"), no(409, "order_not_cancellable"));
            it.ends()
        },
    ),
    ("a cancelled order cannot be cancelled", &[rule::STATE], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.cancels("ada/k1");
        it.asks(cancel("ada/k1"), no(409, "order_not_cancellable"));
        it.ends()
    }),
    (
        "a repetition forgets that the order was paid",
        &[rule::STATE],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.pays("ada/k1");
            it.again("ada/k1");
            it.again("ada/k1");
            it.last().state = "reserved".to_owned();
            it.ends()
        },
    ),
    ("an order has no such state", &[rule::STATE, rule::LEAK], |mut it| {
        it.buys("ada/k1", "A", 1);
        let created = it.order("ada/k1").created_at;
        it.order("ada/k1").resolved_at = Some(created);
        it.rests()
    }),
    (
        "a confirmed order is not confirmed any more",
        &[rule::CONFIRMED],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.reads("ada/k1");
            it.reads("ada/k1");
            it.last().confirmed = false;
            it.ends()
        },
    ),
    (
        "an order that waits for the ledger is not confirmed",
        &[rule::CONFIRMED],
        |mut it| {
            it.history.terms.durability = "postgres";
            it.buys("ada/k1", "A", 1);
            it.ends()
        },
    ),
    ("an order is not found any more", &[rule::FOUND], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.asks(read("ada/k1"), no(404, "not_found"));
        it.ends()
    }),
    (
        "an order is not found after a fault that it survived",
        &[rule::FOUND],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.reads("ada/k1");
            it.fault(1_000, true);
            it.asks(cancel("ada/k1"), no(404, "not_found"));
            it.ends()
        },
    ),
    ("an order expires early", &[rule::HOLD], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.expires("ada/k1");
        let order = it.order("ada/k1");
        order.resolved_at = Some(order.expires_at - 2);
        it.ends()
    }),
    ("a deadline comes nearer", &[rule::HOLD], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.order("ada/k1").expires_at += 500;
        it.reads("ada/k1");
        it.reads("ada/k1");
        it.last().expires_at -= 100;
        it.ends()
    }),
    ("a deadline is too near", &[rule::HOLD], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.last().expires_at -= 100;
        it.ends()
    }),
    (
        "a deadline is promised that the ledger does not have",
        &[rule::HOLD],
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.last().expires_at += 100;
            it.ends()
        },
    ),
    ("a restock was answered and refused", &[rule::RESTOCK], |mut it| {
        it.withdrawal_is_refused("w1", "A", -11);
        it.history.ops[0].reply = done("");
        it.ends()
    }),
    ("a restock was answered and is not there", &[rule::RESTOCK], |mut it| {
        it.asks(restock("r1", "A", 1), done(""));
        it.ends()
    }),
    ("a withdrawal was refused and applied", &[rule::RESTOCK], |mut it| {
        it.restocks("w1", "A", -1);
        it.history.ops[0].reply = no(409, "insufficient_stock");
        it.ends()
    }),
    ("a restock was applied twice", &[rule::RESTOCK], |mut it| {
        it.restocks("r1", "A", 1);
        it.writes_down("r1", "A", 1, "applied");
        it.ends()
    }),
    (
        "a restock's key is reused that was used once",
        &[rule::RESTOCK],
        |mut it| {
            it.asks(restock("r1", "A", 1), no(422, "idempotency_key_reused"));
            it.ends()
        },
    ),
    ("nobody asked for a restock", &[rule::RESTOCK], |mut it| {
        it.writes_down("r1", "A", 1, "applied");
        it.ends()
    }),
    ("a restock is never decided", &[rule::RESTOCK], |mut it| {
        it.asks(restock("r1", "A", 1), unavailable());
        it.writes_down("r1", "A", 1, "pending");
        it.ends()
    }),
    (
        "the stock differs from the sum of the restocks",
        &[rule::RESTOCK],
        |mut it| {
            it.restocks("r1", "A", 1);
            let mut history = it.ends();
            history.end.restocks.clear();
            history.ops.clear();
            history
        },
    ),
    ("a server error", &[rule::CONTRACT], |mut it| {
        it.asks(buy("ada/k1", "A", 1), no(500, "internal"));
        it.ends()
    }),
    ("the sale is not found", &[rule::CONTRACT], |mut it| {
        it.asks(buy("ada/k1", "A", 1), no(404, "not_found"));
        it.ends()
    }),
    ("the sale is closed", &[rule::CONTRACT], |mut it| {
        it.asks(buy("ada/k1", "A", 1), no(409, "sale_not_open"));
        it.ends()
    }),
    ("a payment is refused", &[rule::CONTRACT], |mut it| {
        it.asks(pay("p1", "nobody/k1", 1), no(401, "unauthenticated"));
        it.ends()
    }),
    ("a 503 with another code", &[rule::CONTRACT], |mut it| {
        it.asks(read("ada/k1"), no(503, "sold_out"));
        it.ends()
    }),
    ("it does not sell again", &[rule::SELLS], |mut it| {
        it.fault(1_000, false);
        it.asks(buy("bob/k1", "A", 1), unavailable());
        it.wait(2_000);
        it.asks(buy("ada/k1", "A", 1), unavailable());
        it.ends()
    }),
    ("it sells again too late", &[rule::SELLS], |mut it| {
        it.fault(1_000, true);
        it.wait(2_000);
        it.asks(buy("ada/k1", "A", 1), unavailable());
        it.buys("ada/k2", "A", 1);
        it.history.sold_again = Some(it.now);
        it.ends()
    }),
    ("a request hangs", &[rule::HANG], |mut it| {
        it.asks(buy("ada/k1", "A", 1), Reply::None);
        it.history.ops[0].returned += HANG;
        it.ends()
    }),
    ("a request hangs long after the fault", &[rule::HANG], |mut it| {
        it.fault(1_000, true);
        it.wait(10_100);
        it.asks(read("ada/k1"), unavailable());
        it.history.ops[0].returned += HANG;
        it.ends()
    }),
    ("a payment hangs", &[rule::HANG], |mut it| {
        it.buys("ada/k1", "A", 1);
        it.pays("ada/k1");
        it.history.ops[1].returned += 5_000_000;
        it.ends()
    }),
];

/// Histories without a violation.
const GOOD: &[(&str, Make)] = &[
    ("nothing happened", Story::ends),
    ("a little of everything", |_| Story::good().ends()),
    ("everything sold, to the last unit", |mut it| {
        take_all(&mut it);
        it.asks(buy("ada/k1", "A", 1), sold_out());
        for n in 0..10 {
            it.pays(&format!("all{n}/k1"));
        }
        it.ends()
    }),
    (
        "unknown answers: one bought, one did not, one bought later",
        |mut it| {
            it.asks(buy("ada/k1", "A", 1), Reply::None);
            it.accepts("ada/k1", "A", 1);
            it.asks(buy("bob/k1", "A", 1), unavailable());
            it.asks(buy("cyd/k1", "A", 1), Reply::None);
            it.wait(3_000);
            it.accepts("cyd/k1", "A", 1);
            it.wait(10);
            it.again("ada/k1");
            it.again("cyd/k1");
            it.ends()
        },
    ),
    ("a unit changes hands within a millisecond", |mut it| {
        take_all(&mut it);
        let at = it.millis() + 2;
        it.decides("all0/k1", "cancelled", at);
        it.buys("ada/k1", "A", 1);
        it.ends()
    }),
    ("a shopper cancels within a millisecond", |mut it| {
        it.buys("ada/k1", "A", 3);
        let at = it.millis() + 2;
        it.decides("ada/k1", "cancelled", at);
        it.buys("ada/k2", "A", 3);
        it.ends()
    }),
    (
        "a restock is sold in the millisecond in which it was asked for",
        |mut it| {
            take_all(&mut it);
            it.wait(-1);
            it.restocks("r1", "A", 1);
            it.wait(-11);
            it.buys("ada/k1", "A", 1);
            it.ends()
        },
    ),
    (
        "a purchase comes between the beginning of a withdrawal and its end",
        |mut it| {
            for n in 0..9 {
                it.buys(&format!("all{n}/k1"), "A", 1);
            }
            it.asks(restock("w1", "A", -1), unavailable());
            it.writes_down("w1", "A", -1, "applied");
            it.buys("ada/k1", "A", 1);
            it.cancels("all0/k1");
            it.ends()
        },
    ),
    ("a refused withdrawal takes units for a moment", |mut it| {
        it.asks(restock("w1", "A", -11), unavailable());
        it.writes_down("w1", "A", -11, "refused");
        it.asks(buy("ada/k1", "A", 1), sold_out());
        it.ends()
    }),
    ("units come back a while after the decision", |mut it| {
        take_all(&mut it);
        it.cancels("all0/k1");
        it.wait(4_000);
        it.asks(buy("ada/k1", "A", 1), sold_out());
        it.asks(buy("all1/k2", "A", 3), no(409, "purchase_limit_reached"));
        it.buys("bob/k1", "A", 1);
        it.ends()
    }),
    ("a hold is extended by an outage", |mut it| {
        it.buys("ada/k1", "A", 1);
        it.reads("ada/k1");
        it.fault(8_000, false);
        it.order("ada/k1").expires_at += 8_000;
        it.reads("ada/k1");
        it.again("ada/k1");
        it.last().expires_at -= 8_000;
        it.ends()
    }),
    ("the same request twice at once", |mut it| {
        it.buys("ada/k1", "A", 1);
        it.wait(-11);
        it.again("ada/k1");
        it.ends()
    }),
    ("two bodies at once under one key", |mut it| {
        it.asks(buy("ada/k1", "A", 1), no(422, "idempotency_key_reused"));
        it.wait(-9);
        it.buys("ada/k1", "A", 2);
        it.ends()
    }),
    ("a refused key succeeds later and counts once", |mut it| {
        take_all(&mut it);
        it.asks(buy("ada/k1", "A", 1), sold_out());
        it.wait(900);
        it.cancels("all0/k1");
        it.buys("ada/k1", "A", 1);
        it.wait(90);
        for key in ["ada/k2", "ada/k3"] {
            it.buys(key, "B", 1);
        }
        it.asks(buy("ada/k4", "B", 1), no(429, "rate_limited"));
        it.wait(25);
        it.buys("ada/k4", "B", 1);
        it.ends()
    }),
    ("a unit comes back between two copies of a request", |mut it| {
        take_all(&mut it);
        it.asks(buy("ada/k1", "A", 1), sold_out());
        it.history.ops.last_mut().unwrap().returned += 30_000;
        it.cancels("all0/k1");
        it.buys("ada/k1", "A", 1);
        it.ends()
    }),
    ("three in a second, and three in the next", |mut it| {
        for key in ["ada/k1", "ada/k2", "ada/k3"] {
            it.buys(key, "B", 1);
        }
        it.asks(buy("ada/k4", "B", 1), no(429, "rate_limited"));
        it.wait(960);
        it.buys("ada/k4", "B", 1);
        it.ends()
    }),
    ("payments twice, too late, too little, for nobody, pending", |mut it| {
        it.buys("ada/k1", "A", 1);
        it.webhook("p1", "ada/k1", 499, "refund_due");
        it.pays("ada/k1");
        it.webhook("p2", "ada/k1", 500, "refund_due");
        it.asks(pay("p2", "ada/k1", 500), done("duplicate"));
        it.buys("bob/k1", "A", 1);
        it.webhook("p3", "bob/k1", 500, "applied");
        let at = it.millis();
        it.decides("bob/k1", "paid", at);
        let last = it.history.ops.len() - 1;
        it.history.ops[last].reply = done("pending");
        it.webhook("p4", "not an order", 7, "unmatched");
        it.asks(pay("p5", "ada/k1", 500), unavailable());
        it.ends()
    }),
    (
        "a webhook without an answer paid the order, the next is a duplicate",
        |mut it| {
            it.buys("ada/k1", "A", 1);
            it.pays("ada/k1");
            it.history.ops[1].reply = unavailable();
            it.asks(pay("pay-ada/k1", "ada/k1", 500), done("duplicate"));
            it.ends()
        },
    ),
    ("Redis learns of a payment later than a reader", |mut it| {
        it.buys("ada/k1", "A", 1);
        let before = it.shows(200, "ada/k1", false);
        it.pays("ada/k1");
        it.reads("ada/k1");
        it.asks(buy("ada/k1", "A", 1), before);
        it.ends()
    }),
    ("Postgres is away and Redis answers", |mut it| {
        it.buys("ada/k1", "A", 1);
        it.reads("ada/k1");
        it.fault(1_000, false);
        it.reads("ada/k1");
        it.last().confirmed = false;
        it.ends()
    }),
    ("the replaced side accepts an order that the other has", |mut it| {
        accepts_again(&mut it, "TwoPrimaries");
        it.ends()
    }),
    ("two primaries accept a key at the same moment", |mut it| {
        let from = it.now;
        it.fault(1_000, true);
        it.history.injections[0].what = "TwoPrimaries".to_owned();
        let until = std::mem::replace(&mut it.now, from + 500_000);
        it.buys("ada/k1", "A", 1);
        let other = it.history.ops[0].clone();
        it.history.ops.push(other);
        it.now = until;
        it.ends()
    }),
    ("orders are lost, revoked and bought again in a loss", |mut it| {
        it.buys("ada/k1", "A", 1);
        it.buys("bob/k1", "A", 1);
        it.history.end.orders.clear();
        it.fault(1_000, true);
        it.asks(read("ada/k1"), no(404, "not_found"));
        it.asks(buy("bob/k1", "A", 1), unavailable());
        it.epoch = 2;
        it.buys("bob/k1", "A", 1);
        it.buys("cyd/k1", "A", 1);
        let at = it.millis();
        it.decides("cyd/k1", "revoked", at);
        it.history.end.dead_letters = 1;
        it.ends()
    }),
    ("a loss leaves a gap and withholds units", |mut it| {
        it.buys("ada/k1", "A", 1);
        it.fault(1_000, true);
        it.buys("ada/k2", "A", 1);
        it.order("ada/k2").seq = 4;
        let mut history = it.ends();
        stock(&mut history, "A", 1).revoked = 1;
        stock(&mut history, "A", 0).available -= 1;
        stock(&mut history, "A", 0).granted -= 1;
        stock(&mut history, "A", 1).granted += 1;
        history
    }),
    (
        "too many are accepted in a loss, and taken in once others have expired",
        |mut it| {
            take_all(&mut it);
            it.fault(1_000, true);
            it.wait(-500);
            it.buys("ada/k1", "A", 1);
            it.ends()
        },
    ),
    (
        "an order is refused by the ledger, and its key is sold out for ever",
        |mut it| {
            it.history.terms.durability = "postgres";
            it.fault(1_000, true);
            it.wait(-10);
            it.asks(buy("ada/k1", "A", 1), sold_out());
            it.wait(-10);
            it.accepts("ada/k1", "A", 1);
            it.wait(10);
            let at = it.millis();
            it.decides("ada/k1", "revoked", at);
            it.wait(20_000);
            it.asks(buy("ada/k1", "A", 1), sold_out());
            it.ends()
        },
    ),
    ("a sale that waits for the ledger", |mut it| {
        it.history.terms.durability = "postgres";
        it.buys("ada/k1", "A", 1);
        it.last().confirmed = true;
        it.pays("ada/k1");
        it.ends()
    }),
    ("a shard is rebuilt, which loses nothing", |mut it| {
        it.buys("ada/k1", "A", 1);
        it.fault(1_000, false);
        it.epoch = 2;
        it.buys("ada/k2", "A", 1);
        it.again("ada/k1");
        it.history.sold_again = Some(it.now);
        it.ends()
    }),
    ("slow answers and wrong refusals in a fault", |mut it| {
        it.asks(read("ada/k1"), Reply::None);
        it.history.ops[0].returned += 7_000_000;
        it.wait(1_000);
        it.fault(3_000, false);
        it.asks(buy("ada/k1", "A", 1), sold_out());
        it.asks(buy("ada/k2", "A", 1), no(409, "purchase_limit_reached"));
        it.asks(buy("ada/k3", "A", 1), no(429, "rate_limited"));
        it.ends()
    }),
    ("nobody bought after the faults, because all was sold", |mut it| {
        take_all(&mut it);
        (0..10).for_each(|n| it.pays(&format!("all{n}/k1")));
        it.fault(1_000, false);
        it.asks(buy("ada/k1", "A", 1), unavailable());
        it.asks(buy("ada/k1", "A", 1), sold_out());
        it.ends()
    }),
    (
        "units that a fault kept from coming back come a minute later",
        |mut it| {
            take_all(&mut it);
            it.cancels("all0/k1");
            it.fault(1_000, false);
            it.wait(60_000);
            it.asks(buy("ada/k1", "A", 1), sold_out());
            it.ends()
        },
    ),
    ("a withdrawal's late call takes as many units again", |mut it| {
        it.fault(1_000, false);
        it.restocks("w1", "A", -5);
        it.wait(20_000);
        it.asks(buy("ada/k1", "A", 1), sold_out());
        it.ends()
    }),
    ("old orders are in the ledger alone", |mut it| {
        it.buys("ada/k1", "A", 1);
        it.cancels("ada/k1");
        it.buys("bob/k1", "A", 1);
        let mut history = it.ends();
        let row = history.end.buyers.get_mut("ada").unwrap().as_mut().unwrap();
        row.orders.clear();
        history.end.buyers.insert("bob".to_owned(), None);
        history
    }),
    ("restocks without an answer, and one asked for twice", |mut it| {
        it.asks(restock("r1", "A", 5), Reply::None);
        it.restocks("r2", "A", 5);
        it.asks(restock("r2", "A", 5), done(""));
        it.asks(restock("r2", "A", 6), no(422, "idempotency_key_reused"));
        it.asks(restock("r3", "A", 7), unavailable());
        it.writes_down("r3", "A", 7, "applied");
        it.ends()
    }),
];

#[test]
fn each_bad_history_is_rejected_by_the_rule_that_it_breaks() {
    let mut wrong = Vec::new();
    for (name, rules, make) in BAD {
        let history = make(Story::new());
        let expected: BTreeSet<_> = rules.iter().copied().collect();
        if broken(&history) != expected {
            wrong.push(format!("{name}: should break {expected:?}, and {:#?}", check(&history)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_good_history_is_rejected() {
    let mut wrong = Vec::new();
    for (name, make) in GOOD {
        let found = check(&make(Story::new()));
        if !found.is_empty() {
            wrong.push(format!("{name}: {found:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_rule_is_broken_by_some_history() {
    let broken: BTreeSet<_> = BAD.iter().flat_map(|(_, rules, _)| rules.iter().copied()).collect();
    assert_eq!(broken, rule::ALL.iter().copied().collect());
}

#[test]
fn losses_are_counted_by_orders() {
    let lossy = |name: &str| GOOD.iter().find(|(it, _)| *it == name).unwrap().1(Story::new());
    let history = lossy("orders are lost, revoked and bought again in a loss");
    assert_eq!(losses(&history), Losses { lost: 2, revoked: 1 });
    assert_eq!(losses(&Story::good().ends()), Losses::default());
}

#[test]
fn only_the_first_violations_of_a_rule_are_listed() {
    let mut it = Story::new();
    for n in 0..50 {
        it.asks(buy(&format!("ada/k{n}"), "A", 1), no(500, "internal"));
    }
    let found = check(&it.ends());
    assert_eq!(found.len(), 21, "{found:#?}");
    assert_eq!(found[20].what, "and 30 more");
}
