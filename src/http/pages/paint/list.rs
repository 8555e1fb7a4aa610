//! The list of sales.

use super::format::{DAY_SECONDS, moment};
use super::{lowest_price, picture, seconds_left, state_word};
use crate::domain::sale::SaleState;
use crate::domain::shop::language::Language;
use crate::http::views::{Availability, PublicSale};
use maud::{Markup, html};

/// Sales in the script's order.
pub(super) fn in_order(sales: &[PublicSale]) -> Vec<&PublicSale> {
    let mut sorted: Vec<&PublicSale> = sales.iter().collect();
    sorted.sort_by_key(|sale| (rank(sale.state), sale.starts_at));
    sorted
}

pub fn list(language: Language, sales: &[PublicSale]) -> Markup {
    let sorted = in_order(sales);
    html! {
        @if sorted.is_empty() {
            li class="muted" { (language.say("noSales")) }
        }
        @for sale in sorted {
            @let is_sold_out = is_sold_out(sale);
            li class="sale" {
                (picture(sale.image_url.as_deref()))
                div class="item-head" {
                    h2 { a href={ "/sales/" (sale.id) } { (sale.name) } }
                    @if is_sold_out {
                        span class="pill" { (language.say("left_sold_out")) }
                    } @else {
                        span class={ "pill is-" (sale.state) } { (language.say(&state_word(sale))) }
                    }
                }
                p class="muted" { (timing(language, sale)) }
                p class="muted" { (lowest_price(language, sale.items.iter())) }
            }
        }
    }
}

/// Open sales come first.
const fn rank(state: SaleState) -> u8 {
    match state {
        SaleState::Open => 0,
        SaleState::Paused => 1,
        SaleState::Scheduled => 2,
        SaleState::Closed | SaleState::Draft => 3,
    }
}

fn is_sold_out(sale: &PublicSale) -> bool {
    let mut items = sale.items.iter();
    sale.state == SaleState::Open && items.all(|item| item.availability == Availability::SoldOut)
}

/// The time until the sale starts or ends. For a closed sale, the date when it started.
fn timing(language: Language, sale: &PublicSale) -> String {
    let (word, date, until) = match sale.state {
        SaleState::Scheduled => ("startsIn", "startsOn", sale.starts_at),
        SaleState::Open | SaleState::Paused => ("endsIn", "endsOn", sale.ends_at),
        SaleState::Draft | SaleState::Closed => return moment(language, sale.starts_at),
    };
    let seconds = seconds_left(sale, until);
    // More than a day ahead, the date says more than the hours left.
    if seconds > DAY_SECONDS {
        return language.say_with(date, "time", &moment(language, until));
    }
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let word = language.say(word);
    if hours > 0 {
        format!("{word} {hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{word} {minutes}:{seconds:02}")
    }
}
