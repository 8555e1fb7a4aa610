//! The items of a sale, on its page.

use super::format::{moment, money};
use super::{lowest_price, picture};
use crate::domain::sale::SaleState;
use crate::domain::shop::language::Language;
use crate::http::views::{Availability, PublicItem, PublicSale};
use chrono::{DateTime, TimeDelta, Utc};
use maud::{Markup, html};
use std::collections::BTreeMap;

/// Above this limit, the script shows a field in place of a list of quantities.
const CHOICE_MAX: u32 = 10;
/// Within this time, the script writes no day.
const NEAR: TimeDelta = TimeDelta::hours(12);

/// The items in their order; those of one group together, at the place of the first.
pub fn items(language: Language, sale: &PublicSale) -> Markup {
    let mut places = BTreeMap::<&str, usize>::new();
    let mut parts: Vec<Vec<&PublicItem>> = Vec::new();
    for one in &sale.items {
        let place = match &one.group {
            Some(group) => *places.entry(group).or_insert(parts.len()),
            None => parts.len(),
        };
        match parts.get_mut(place) {
            Some(part) => part.push(one),
            None => parts.push(vec![one]),
        }
    }
    html! {
        @for part in &parts {
            @match (part.as_slice(), &part[0].group) {
                ([_, _, ..], Some(name)) => { (group(language, sale, name, part)) }
                _ => { (item(language, sale, part[0])) }
            }
        }
    }
}

fn may_queue(sale: &PublicSale) -> bool {
    sale.state == SaleState::Scheduled && sale.guards.waiting_room
}

/// Variants of one thing, of which the shopper chooses one.
fn group(language: Language, sale: &PublicSale, name: &str, items: &[&PublicItem]) -> Markup {
    let is_open = sale.state == SaleState::Open;
    let image = items.iter().find_map(|item| item.image_url.as_deref());
    let text = items.iter().find_map(|item| item.description.as_deref());
    html! {
        li class="item group" {
            (picture(image))
            h3 { (name) }
            p class="price" { (lowest_price(language, items.iter().copied())) }
            fieldset {
                legend class="muted small" { (language.say("choose")) }
                div class="options" {
                    @for item in items {
                        @let left = left_of(item);
                        @let is_marked = is_open && item.availability != Availability::Available;
                        label class={ "option is-" (left) } {
                            input type="radio" disabled;
                            span { (item.option.as_ref().unwrap_or(&item.name)) }
                            small hidden[!is_marked] {
                                @if is_marked { (language.say(&format!("left_{left}"))) }
                            }
                        }
                    }
                }
            }
            div class="variants" {}
            (description(text))
        }
    }
}

const fn left_of(item: &PublicItem) -> &'static str {
    match item.availability {
        Availability::Available => "available",
        Availability::Low => "low",
        Availability::SoldOut => "sold_out",
    }
}

fn item(language: Language, sale: &PublicSale, item: &PublicItem) -> Markup {
    let may_queue = may_queue(sale);
    let is_open = sale.state == SaleState::Open;
    let is_selling = is_open || may_queue;
    let hold = match sale.state {
        SaleState::Open | SaleState::Paused => hold_words(language, sale, item),
        _ => String::new(),
    };
    let word = match sale.state {
        SaleState::Paused => "pausedButton",
        SaleState::Closed => "closedButton",
        _ if !is_selling => "notYet",
        _ if item.availability == Availability::SoldOut && !may_queue => {
            if item.on_hold == Some(true) {
                "keepTrying"
            } else {
                "left_sold_out"
            }
        }
        _ if sale.guards.waiting_room => "enterRoom",
        _ => "buy",
    };
    let may_choose = item.per_user_limit > 1 && !matches!(sale.state, SaleState::Paused | SaleState::Closed);
    let left = left_of(item);
    html! {
        li class="item" {
            (picture(item.image_url.as_deref()))
            div class="item-head" {
                h3 { (item.name) }
                span class={ "pill is-" (left) } hidden[!is_open || (word == "enterRoom" && left == "available")] { (language.say(&format!("left_{left}"))) }
            }
            p class="price" { (money(language, item.price_minor, &item.currency)) }
            p class="muted small" { (language.say_with("limitNote", "n", &item.per_user_limit.to_string())) }
            p class="small hold" hidden[hold.is_empty()] { (hold) }
            div class="buying scripted" {
                div class="choice" hidden[!may_choose] {
                    label { (language.say("quantity")) }
                    @if item.per_user_limit > CHOICE_MAX {
                        input type="number" value="1" disabled;
                    } @else {
                        select disabled { option { "1" } }
                    }
                }
                button class="strong buy" type="button" disabled aria-disabled="true" { (language.say(word)) }
            }
            (description(item.description.as_deref()))
        }
    }
}

/// Whether units of a sold-out item may come back, and when.
fn hold_words(language: Language, sale: &PublicSale, item: &PublicItem) -> String {
    let next = item.next_release_at.as_deref();
    let next = next.and_then(|next| next.parse::<DateTime<Utc>>().ok());
    match (item.on_hold, next) {
        (None, _) => String::new(),
        (Some(false), _) => language.say("noneOnHold").to_owned(),
        (Some(true), Some(next)) => {
            let is_today = next.date_naive() == sale.server_time.date_naive();
            let time = if is_today || next - sale.server_time < NEAR {
                next.format("%H:%M UTC").to_string()
            } else {
                moment(language, next)
            };
            language.say_with("onHoldUntil", "time", &time)
        }
        (Some(true), None) => language.say("onHold").to_owned(),
    }
}

fn description(text: Option<&str>) -> Markup {
    html! {
        @if let Some(text) = text {
            p class="description" { (text) }
        }
    }
}
