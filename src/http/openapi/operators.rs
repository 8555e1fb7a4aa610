//! The routes of operators, as the document describes them.

use super::operation::{COOKIE, IS_REPLAYED, KEY, LOCATION, ORDER_ID, Operation, SALE_ID, TAG, Who};
use super::schemas::Schemas;
use super::shoppers::order;
use crate::domain::alert::{Alert, ListedAlert};
use crate::domain::ban::Ban;
use crate::domain::code::Code;
use crate::domain::console::Action;
use crate::domain::dead_letter::{DeadLetter, RefusedMessage};
use crate::domain::guard::GuardChanges;
use crate::domain::order::OwnedOrder;
use crate::domain::payment::RecordedPayment;
use crate::domain::report::Stats;
use crate::domain::sale::SaleRequest;
use crate::http::admin::actions::ActionsQuery;
use crate::http::admin::alerts::AlertsQuery;
use crate::http::admin::bans::{BanBody, BansQuery, LiftBody};
use crate::http::admin::dead_letters::{DeadLettersQuery, RefusedQuery, SettleLetterBody};
use crate::http::admin::guards::Guards;
use crate::http::admin::live::{Point, Sample};
use crate::http::admin::operator::REQUEST_TOKEN;
use crate::http::admin::orders::OrdersQuery;
use crate::http::admin::payments::{PaymentsQuery, SettleBody};
use crate::http::admin::sales::DeletedSale;
use crate::http::admin::session::{SessionView, SignInBody};
use crate::http::admin::stock::{AuditPage, AuditQuery, Preloaded, RebuildAnswer, RebuildQuery, RestockBody};
use crate::http::views::{AdminSale, Page, PageQuery};
use serde_json::{Value, json};

pub fn operations(schemas: &mut Schemas) -> Vec<Operation> {
    let mut all = sales(schemas);
    all.extend(states(schemas));
    all.extend(numbers(schemas));
    all.extend(letters(schemas));
    all.extend(money(schemas));
    all.extend(guards(schemas));
    all.push(trail(schemas));
    all.extend(sessions(schemas));
    all
}

fn sales(schemas: &mut Schemas) -> Vec<Operation> {
    vec![
        Operation::of_operators(["post", "/v1/admin/sales"], "createSale", "Create a sale")
            .says(
                "A new sale is a draft. `ends_at` must be after `starts_at`, and SKUs must be unique. `durability` \
                 `replica` needs a Redis with a replica. The same key with the same body gets the same sale again.",
            )
            .with_key_if_any()
            .reads::<SaleRequest>(schemas, asked())
            .answers::<AdminSale>(schemas, 200, "The sale that this key created.", sale("draft"))
            .with_header(LOCATION)
            .with_header(IS_REPLAYED)
            .with_header(TAG)
            .answers::<AdminSale>(schemas, 201, "The draft.", sale("draft"))
            .with_header(LOCATION)
            .with_header(TAG)
            .leads_to(&[
                ("showSaleToOperator", "id", "/id"),
                ("preloadSale", "id", "/id"),
                ("openSale", "id", "/id"),
                ("getStats", "id", "/id"),
                ("auditSale", "id", "/id"),
                ("buy", "id", "/id"),
            ]),
        Operation::of_operators(["get", "/v1/admin/sales"], "listSalesToOperator", "List sales")
            .says("Newest first.")
            .query::<PageQuery>(&[("limit", 10.into())])
            .answers::<Page<AdminSale>>(
                schemas,
                200,
                "A page of sales.",
                json!({"data": [sale("open")], "has_more": false}),
            ),
        Operation::of_operators(["get", "/v1/admin/sales/{id}"], "showSaleToOperator", "Show a sale")
            .answers::<AdminSale>(schemas, 200, "The sale.", sale("open"))
            .with_header(TAG),
        Operation::of_operators(["put", "/v1/admin/sales/{id}"], "changeSale", "Change a draft")
            .says(
                "Replaces the whole draft, by the same rules as its creation. With `If-Match`, only if the draft has \
                 not changed since, else 409. Once its preload has begun, a sale cannot be changed.",
            )
            .takes(
                "header",
                "If-Match",
                "The `ETag` of the draft to change.",
                false,
                json!({"type": "string", "pattern": "^\"[A-Za-z0-9_-]{22}\"$"}),
                None,
            )
            .reads::<SaleRequest>(schemas, asked())
            .answers::<AdminSale>(schemas, 200, "The draft as it is now.", sale("draft"))
            .with_header(TAG)
            .refuses(&[Code::InvalidTransition]),
        Operation::of_operators(["delete", "/v1/admin/sales/{id}"], "deleteSale", "Delete a draft")
            .says(
                "Deletes it for good. Once its preload has begun, a sale cannot be deleted: close it. The key that \
                 created the draft may create another sale.",
            )
            .answers::<DeletedSale>(schemas, 200, "Deleted.", json!({"id": SALE_ID, "deleted": true}))
            .refuses(&[Code::InvalidTransition]),
    ]
}

fn states(schemas: &mut Schemas) -> Vec<Operation> {
    let step = |schemas: &mut Schemas, path, id, summary, description, state| {
        Operation::of_operators(["post", path], id, summary)
            .says(description)
            .answers::<AdminSale>(schemas, 200, "The sale as it is now.", sale(state))
            .refuses(&[Code::InvalidTransition, Code::Overloaded])
    };
    let mut preloaded = sale("scheduled");
    preloaded["sale_id"] = SALE_ID.into();
    preloaded["shards"] = json!([shard(0), shard(1)]);
    vec![
        Operation::of_operators(
            ["post", "/v1/admin/sales/{id}/preload"],
            "preloadSale",
            "Load a sale's stock into Redis",
        )
        .says(
            "Splits each item's stock over the shards, to the last unit. The sale becomes `scheduled`, or `open` if \
             its start has passed. A second call changes nothing.",
        )
        .answers::<Preloaded>(schemas, 200, "The sale, and what each shard holds.", preloaded)
        .refuses(&[Code::InvalidRequest, Code::Overloaded]),
        step(
            schemas,
            "/v1/admin/sales/{id}/open",
            "openSale",
            "Open a sale now",
            "Also before its start. Opening an open sale is not an error.",
            "open",
        ),
        step(
            schemas,
            "/v1/admin/sales/{id}/pause",
            "pauseSale",
            "Pause a sale",
            "Nothing is sold until it is resumed. Held units can still be paid for and cancelled. A scheduled sale \
             that is paused does not open by itself.",
            "paused",
        ),
        step(
            schemas,
            "/v1/admin/sales/{id}/resume",
            "resumeSale",
            "Resume a sale",
            "Ends a pause. If its start is still ahead, the sale is `scheduled` and opens then.",
            "open",
        ),
        step(
            schemas,
            "/v1/admin/sales/{id}/close",
            "closeSale",
            "Close a sale for good",
            "Held units can still be paid for and cancelled.",
            "closed",
        ),
        Operation::of_operators(
            ["post", "/v1/admin/sales/{id}/restock"],
            "restockSale",
            "Add units to an item, or take unsold ones back",
        )
        .says("A negative quantity takes free units back, all of them or none. The same key is applied once.")
        .with_key("restock-2026-11-22-1")
        .reads::<RestockBody>(schemas, json!({"sku": "TSHIRT-M", "quantity": 100}))
        .answers::<AdminSale>(schemas, 200, "The sale with its new stock.", sale("open"))
        .refuses(&[
            Code::InsufficientStock,
            Code::InvalidTransition,
            Code::IdempotencyKeyReused,
            Code::Overloaded,
        ]),
        Operation::of_operators(
            ["post", "/v1/admin/sales/{id}/rebuild"],
            "rebuildSale",
            "Rebuild a sale's stock in Redis from Postgres",
        )
        .says(
            "Use it after a loss, even while the sale goes on. A shard that is being rebuilt answers 503 \
             `unavailable`, and then sells again by itself. With `dry_run=true` nothing changes: the answer shows \
             what each shard has and what a rebuild would write. The free units of each item are spread evenly.",
        )
        .query::<RebuildQuery>(&[("dry_run", false.into())])
        .answers::<RebuildAnswer>(
            schemas,
            200,
            "The result of the rebuild.",
            json!({"sale_id": SALE_ID, "shards": 2, "orders": 31, "lost_orders": 0}),
        )
        .refuses(&[Code::InvalidTransition, Code::Overloaded]),
    ]
}

fn numbers(schemas: &mut Schemas) -> Vec<Operation> {
    let stats = json!({
        "sale_id": SALE_ID, "state": "open", "server_time": "2026-11-22T09:00:12.000Z",
        "items": [{"sku": "TSHIRT-M", "total": 100, "available": 69, "held": 30, "sold": 1, "in_transit": 0}],
        "shards": [shard(0), shard(1)], "undrained_events": 0,
        "orders": {"reserved": 30, "paid": 1, "cancelled": 2, "expired": 0, "revoked": 0},
        "alerts": {"dead_letters": 0, "failed_releases": 0, "refunds_due": 0, "unmatched_payments": 0, "lost_orders": 0},
        "stopped": {"window": 12},
    });
    let audit = json!({
        "sale_id": SALE_ID, "balanced": true, "ledger_only": false, "differences": [], "differences_total": 0, "has_more": false,
        "items": [{
            "sku": "TSHIRT-M", "total": 100,
            "stock": {"available": 69, "held": 30, "sold": 1, "revoked": 0, "in_transit": 0, "undrained": 0},
            "ledger": {"held": 30, "sold": 1, "free": 69, "unreleased": 0},
        }],
    });
    vec![
        Operation::of_operators(
            ["get", "/v1/admin/sales/{id}/stats"],
            "getStats",
            "Show a sale in numbers",
        )
        .says("`stopped` counts the requests that each guard has refused.")
        .answers::<Stats>(schemas, 200, "The numbers.", stats),
        Operation::of_operators(
            ["get", "/v1/admin/sales/{id}/live"],
            "followSale",
            "Follow a sale in numbers",
        )
        .says(
            "Endless server-sent events, as the console's live page uses them: first the course of the last \
             minutes, then a sample about once a second. All clients that follow a sale on this instance get the \
             same samples. While Postgres does not answer, `sale` is null and `stock` has the numbers from Redis.",
        )
        .answers_kinds_of_events(
            "The stream.",
            &[
                (
                    "course",
                    "What the plots show of the samples so far.",
                    schemas.written::<Vec<Point>>(),
                ),
                ("sample", "The sale at one moment.", schemas.written::<Sample>()),
                (
                    "signed_out",
                    "The session has ended; the stream ends with it.",
                    json!({"const": true}),
                ),
            ],
            ("sample", &sample()),
        )
        .refuses(&[Code::Overloaded]),
        Operation::of_operators(
            ["get", "/v1/admin/sales/{id}/audit"],
            "auditSale",
            "Count every unit on both sides",
        )
        .says(
            "Counts in Redis and in Postgres, while the sale goes on, with any backlog. `differences` lists what does \
             not balance, sorted by text; each page counts again. One audit of a sale runs at a time on an instance. \
             Requests that arrive meanwhile share the next one, so an answer may take twice as long.",
        )
        .query::<AuditQuery>(&[("limit", 1000.into())])
        .answers::<AuditPage>(schemas, 200, "The count.", audit),
    ]
}

fn letters(schemas: &mut Schemas) -> Vec<Operation> {
    let message = json!({"id": 12, "shard": 0, "kind": "resolve", "order_id": ORDER_ID, "order_state": "cancelled",
        "user": "ada", "sku": "TSHIRT-M", "units": 1, "failure": "the shard does not know order 00000001-a3f7-8c21-8e55-0d9b4c6f1a37",
        "since": "2026-11-22T09:20:00.000Z"});
    vec![
        Operation::of_operators(
            ["get", "/v1/admin/sales/{id}/dead-letters"],
            "listDeadLetters",
            "List events that could not be taken into the ledger",
        )
        .says(
            "By shard, then in the order of the events. The order of a dead letter is revoked, if the event names it. \
             `settled=false` leaves out settled ones.",
        )
        .query::<DeadLettersQuery>(&[("settled", false.into()), ("limit", 10.into())])
        .answers::<Page<DeadLetter>>(
            schemas,
            200,
            "A page of dead letters.",
            json!({"data": [dead_letter(false)], "has_more": false}),
        ),
        Operation::of_operators(
            ["post", "/v1/admin/sales/{id}/dead-letters/settle"],
            "settleDeadLetter",
            "Say that such an event is dealt with",
        )
        .says(
            "It is no longer counted, but stays in the list. The same note again gets the same answer; another note \
             is refused.",
        )
        .reads::<SettleLetterBody>(
            schemas,
            json!({"position": "0:1-2", "note": "wrote to ada, who bought again"}),
        )
        .answers::<DeadLetter>(schemas, 200, "The settled dead letter.", dead_letter(true))
        .refuses(&[Code::InvalidTransition]),
        Operation::of_operators(
            ["get", "/v1/admin/sales/{id}/refused-messages"],
            "listRefusedMessages",
            "List decisions of the ledger that shards refuse",
        )
        .says("Oldest first. Rebuilding the sale settles them: it writes the stock as the ledger has decided.")
        .query::<RefusedQuery>(&[("limit", 10.into())])
        .answers::<Page<RefusedMessage>>(
            schemas,
            200,
            "A page of refused messages.",
            json!({"data": [message], "has_more": false}),
        ),
    ]
}

fn dead_letter(is_settled: bool) -> Value {
    let settled_at = is_settled.then_some("2026-11-22T10:00:00.000Z");
    json!({"position": "0:1-2", "shard": 0, "epoch": 1, "seq": 2, "order_id": ORDER_ID,
        "reason": "another order has its place", "bytes": null,
        "event": {"order_id": ORDER_ID, "user": "ada", "idempotency_key": "click-1", "sku": "TSHIRT-M", "quantity": 1,
            "created_at": "2026-11-22T09:00:10.000Z"},
        "created_at": "2026-11-22T09:00:10.050Z", "settled_at": settled_at,
        "note": settled_at.map(|_| "wrote to ada, who bought again")})
}

fn money(schemas: &mut Schemas) -> Vec<Operation> {
    let mut owned = order("reserved");
    owned["user"] = "ada".into();
    owned["confirmed"] = true.into();
    owned["payments"] = json!([]);
    let mut expired = owned.clone();
    expired["state"] = "expired".into();
    expired["payments"] = json!([refund(false)]);
    vec![
        Operation::of_operators(
            ["get", "/v1/admin/orders"],
            "listOrdersToOperator",
            "List anybody's orders",
        )
        .says(
            "The orders of a sale, of an account, or of both; one of the two is required. Sorted by id: those of \
             the newest sale come first. They are read from Postgres, which has an order milliseconds after its \
             purchase.",
        )
        .query::<OrdersQuery>(&[("sale_id", SALE_ID.into()), ("state", "expired".into())])
        .answers::<Page<OwnedOrder>>(
            schemas,
            200,
            "A page of orders, each with its shopper and payments.",
            json!({"data": [expired], "has_more": false}),
        )
        .refuses(&[Code::NotFound]),
        Operation::of_operators(
            ["get", "/v1/admin/orders/{id}"],
            "showOrderToOperator",
            "Show anybody's order",
        )
        .answers::<OwnedOrder>(schemas, 200, "The order, its shopper and payments.", owned),
        Operation::of_operators(
            ["get", "/v1/admin/payments"],
            "listPayments",
            "List payments by what became of them",
        )
        .says(
            "Newest first. `refund_due` is money to pay back, with the reason; `settled=false` leaves out payments \
             that were paid back.",
        )
        .query::<PaymentsQuery>(&[("outcome", "refund_due".into()), ("settled", false.into())])
        .answers::<Page<RecordedPayment>>(
            schemas,
            200,
            "A page of payments.",
            json!({"data": [refund(false)], "has_more": false}),
        ),
        Operation::of_operators(
            ["post", "/v1/admin/payments/settle"],
            "settlePayment",
            "Say that money was paid back",
        )
        .says(
            "For a payment that is `refund_due` or `unmatched`, once the provider has paid it back: it no longer \
             counts as owed. The same reference again gets the same answer; another reference is refused.",
        )
        .reads::<SettleBody>(schemas, json!({"payment_id": "pay_2", "reference": "re_1"}))
        .answers::<RecordedPayment>(schemas, 200, "The payment with its refund's reference.", refund(true))
        .refuses(&[Code::NotFound, Code::InvalidTransition]),
    ]
}

fn refund(is_settled: bool) -> Value {
    let settled_at = is_settled.then_some("2026-11-22T10:00:00.000Z");
    json!({"payment_id": "pay_2", "order_id": ORDER_ID, "amount_minor": 2500, "currency": "EUR", "outcome": "refund_due",
        "reason": "the order was expired already", "received_at": "2026-11-22T09:20:00.000Z", "settled_at": settled_at,
        "settled_reference": settled_at.map(|_| "re_1")})
}

fn guards(schemas: &mut Schemas) -> Vec<Operation> {
    let alert = || {
        json!({"id": 7, "raised_at": "2026-11-22T09:00:10.000Z", "kind": "browsing", "user": "ada",
            "detail": "looked at sales 11 times within a minute"})
    };
    let mut listed = alert();
    listed["delivered_at"] = "2026-11-22T09:00:10.400Z".into();
    listed["given_up_at"] = Value::Null;
    vec![
        Operation::of_operators(["get", "/v1/admin/alerts"], "listAlerts", "List alerts")
            .says("Newest first.")
            .query::<AlertsQuery>(&[("limit", 10.into())])
            .answers::<Page<ListedAlert>>(
                schemas,
                200,
                "A page of guard warnings.",
                json!({"data": [listed], "has_more": false}),
            ),
        Operation::of_operators(["get", "/v1/admin/alerts/stream"], "followAlerts", "Be told of alerts")
            .says(
                "Endless server-sent events: each guard warning after the one that `Last-Event-ID` names, else only \
                 new ones. A comment every 15 seconds shows that the stream is open.",
            )
            .with_last_event()
            .answers_events::<Alert>(schemas, "The stream.", "alert", &alert())
            .refuses(&[Code::Overloaded]),
        Operation::of_operators(["post", "/v1/admin/bans"], "banAccount", "Ban an account")
            .says("The account cannot buy, but keeps its orders. Every instance knows within a second.")
            .reads::<BanBody>(
                schemas,
                json!({"user": "mallory", "reason": "resells", "end_sessions": true}),
            )
            .answers::<Ban>(schemas, 201, "The ban.", ban(None))
            .refuses(&[Code::Overloaded]),
        Operation::of_operators(["get", "/v1/admin/bans"], "listBans", "List bans that hold")
            .says(
                "By account, or with `newest_first` the newest bans first. Then a page begins after the latest \
                 decision on the account in `starting_after`. If that account was banned again meanwhile, the page \
                 begins among the newest bans. With `user`, whether that account is banned.",
            )
            .query::<BansQuery>(&[("limit", 10.into())])
            .answers::<Page<Ban>>(
                schemas,
                200,
                "A page of bans.",
                json!({"data": [ban(None)], "has_more": false}),
            ),
        Operation::of_operators(["post", "/v1/admin/bans/lift"], "liftBan", "Lift an account's ban")
            .reads::<LiftBody>(schemas, json!({"user": "mallory"}))
            .answers::<Ban>(
                schemas,
                200,
                "The ban as it was, and when it was lifted.",
                ban(Some("2026-11-22T10:00:00.000Z")),
            )
            .refuses(&[Code::NotFound, Code::Overloaded]),
        Operation::of_operators(
            ["get", "/v1/admin/guards"],
            "showGuards",
            "Show the guards of an instance",
        )
        .says("`changed` is the same on every instance; `rate` and `in_flight` are those of the one that answers.")
        .answers::<Guards>(schemas, 200, "The guards.", settings()),
        Operation::of_operators(
            ["patch", "/v1/admin/guards"],
            "changeGuards",
            "Change the guards of all instances",
        )
        .says(
            "A JSON merge patch (RFC 7396): `null` restores the configured value, an absent member stays. The \
             settings must fit together: the least rate of an adaptive instance must not exceed its greatest. Every \
             instance follows within seconds.",
        )
        .reads::<GuardChanges>(schemas, json!({"address_rate": 50, "shared_rate": null}))
        .answers::<Guards>(schemas, 200, "The guards of the instance that answers.", settings()),
    ]
}

fn trail(schemas: &mut Schemas) -> Operation {
    let opened = json!({"id": 12, "begun_at": "2026-11-22T09:00:00.000Z", "ended_at": "2026-11-22T09:00:00.020Z",
        "actor": "api_key", "session_id": null, "operator": "ada", "address": "203.0.113.7", "action": "sales.open",
        "sale_id": SALE_ID, "detail": {}, "outcome": "done"});
    Operation::of_operators(["get", "/v1/admin/actions"], "listActions", "List what operators did")
        .says(
            "The audit log, newest first: each action with its operator, address, times and outcome, which is null \
             until it is known. `operator` is the name that the operator gave (`X-Operator`). It is not verified.",
        )
        .query::<ActionsQuery>(&[("sale_id", SALE_ID.into()), ("limit", 10.into())])
        .answers::<Page<Action>>(
            schemas,
            200,
            "A page of the audit log.",
            json!({"data": [opened], "has_more": false}),
        )
}

fn sessions(schemas: &mut Schemas) -> Vec<Operation> {
    let session = json!({"signed_in": true, "session_id": "019ac1f2-9a10-7c55-8d02-61f3c0a7be42", "name": "ada",
        "expires_at": "2026-11-22T21:00:00.000Z", "request_token": "q1m2…", "request_token_header": REQUEST_TOKEN});
    let nobody = || json!({"signed_in": false});
    vec![
        Operation::of_sessions(Who::Console, "get", "showSession", "Show the console's session")
            .says("No session is not an error.")
            .answers::<SessionView>(schemas, 200, "The session, if there is one.", nobody()),
        Operation::of_sessions(Who::Anybody, "post", "signIn", "Sign in at the console")
            .says(
                "Exchanges the operators' key for a cookie, which the browser keeps and sends. Only a page of this \
                 instance may ask. Programs need no session: they send the key.",
            )
            .reads::<SignInBody>(schemas, json!({"key": KEY, "name": "ada"}))
            .answers::<SessionView>(schemas, 201, "The session.", session)
            .with_header(COOKIE)
            .refuses(&[Code::Unauthenticated, Code::ConsoleTokenRequired, Code::RateLimited]),
        Operation::of_sessions(Who::Session, "delete", "signOut", "Sign out of the console")
            .says("Ends the session on every instance.")
            .answers::<SessionView>(schemas, 200, "It has ended.", nobody())
            .with_header(COOKIE)
            .refuses(&[Code::Unauthenticated, Code::ConsoleTokenRequired, Code::InvalidRequest]),
    ]
}

fn sample() -> Value {
    let well = json!({"milliseconds": 0.4, "fault": null});
    json!({
        "point": {"at": 1_795_338_012_500_i64, "seconds": 1.0, "accepted": 30, "answers": {"reserved": 30, "sold_out": 2},
            "p50": 1.4, "p95": 3.1, "p99": 6.2},
        "instances": [{"name": "a", "silent_seconds": null}], "others_fault": null,
        "health": {"redis": well, "postgres": well},
        "sale": {"state": "open", "starts_at": "2026-11-22T09:00:00.000Z", "ends_at": "2026-11-22T10:00:00.000Z",
            "server_time": "2026-11-22T09:00:12.000Z",
            "items": [{"sku": "TSHIRT-M", "total": 100, "available": 69, "held": 30, "sold": 1, "in_transit": 0}],
            "shards": [{"shard": 0, "epoch": 1, "undrained_events": 0, "units": [69, 30, 1, 0, 0, 0],
                "items": {"TSHIRT-M": [69, 30, 1, 0, 0, 0]}}],
            "undrained_events": 0, "orders": {"reserved": 30, "paid": 1, "cancelled": 2, "expired": 0, "revoked": 0},
            "alerts": {"dead_letters": 0, "failed_releases": 0, "refunds_due": 0, "unmatched_payments": 0, "lost_orders": 0},
            "stopped": {"window": 12}, "expiry_lag_seconds": 0.0},
        "stock": null, "fault": null,
    })
}

fn asked() -> Value {
    json!({
        "name": "Winter drop", "starts_at": "2026-11-22T09:00:00Z", "ends_at": "2036-11-22T10:00:00Z", "shards": 2,
        "items": [{"sku": "TSHIRT-M", "name": "T-shirt, medium", "price_minor": 2500, "currency": "EUR", "stock": 100,
            "per_user_limit": 2}],
    })
}

fn sale(state: &str) -> Value {
    let mut sale = asked();
    sale["id"] = SALE_ID.into();
    sale["state"] = state.into();
    sale["starts_at"] = "2026-11-22T09:00:00.000Z".into();
    sale["ends_at"] = "2036-11-22T10:00:00.000Z".into();
    sale["created_at"] = "2026-11-22T08:00:00.000Z".into();
    sale["server_time"] = "2026-11-22T09:00:00.120Z".into();
    sale["payment_window_seconds"] = 900.into();
    sale["purchase_rate"] = json!({"limit": 5, "window_ms": 60000});
    sale["durability"] = "redis".into();
    sale["guards"] = json!({"purchase_token": false, "challenge": "none", "proof_cost": 1000, "captcha_proof_cost": 0, "holds_max": 0,
        "unpaid_cooldown_seconds": 0, "waiting_room": false, "admissions_per_second": 100, "admission_seconds": 300});
    sale
}

fn shard(number: u16) -> Value {
    json!({"shard": number, "epoch": 1, "available": {"TSHIRT-M": 50}, "held": {"TSHIRT-M": 0}, "sold": {"TSHIRT-M": 0},
        "sent": {"TSHIRT-M": 0}, "received": {"TSHIRT-M": 0}, "in_transit": {"TSHIRT-M": 0}, "undrained_events": 0})
}

fn ban(lifted_at: Option<&str>) -> Value {
    json!({"user": "mallory", "reason": "resells", "banned_by": "operator", "banned_at": "2026-11-22T09:30:00.000Z",
        "banned_until": null, "lifted_at": lifted_at, "sessions_from": "2026-11-22T09:30:00.000Z"})
}

fn settings() -> Value {
    let set = |address_rate: u32| {
        json!({"address_rate": address_rate, "account_rate": 20, "instance_rate": 0, "shared_rate": 0, "adaptive_min_rate": 10,
            "adaptive_max_rate": 0, "adaptive_latency_ms": 200, "adaptive_in_flight": 64, "browsing_alert_above": 0,
            "browsing_ban_above": 0, "browsing_ban_seconds": 86400})
    };
    json!({"configured": set(0), "changed": {"address_rate": 50}, "effective": set(50), "rate": 0, "in_flight": 0})
}
