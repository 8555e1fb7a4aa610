//! The shoppers: their tokens, the keys of their requests, and the requests as bytes.

use super::resp::Commands;
use anyhow::{Context as _, Result};
use chrono::Utc;
use flashsale::domain::ids::{IdempotencyKey, OrderId, UserId};
use flashsale::domain::sale::Sale;
use flashsale::domain::sale::shard::home_shard;
use flashsale::domain::shopper::token;
use flashsale::stock::keys::ShardKey;
use std::net::SocketAddr;
use uuid::Uuid;

/// The lifetime of tokens in seconds, longer than any run.
const TOKEN_LASTS: i64 = 86_400;

/// The SKU of an item by its position.
pub fn sku(item: usize) -> String {
    format!("ITEM-{item}")
}

/// A shopper's id, as long and as random as most real ones. Ordered ids would fill indexes page by page, and that costs
/// less than a real sale.
pub fn name(n: usize) -> String {
    uuid(scatter(n as u64), scatter(!(n as u64)))
}

/// An idempotency key, as long and as random as most real ones; each salt gives another key.
pub fn key(salt: u32, n: usize) -> String {
    let n = scatter(n as u64);
    uuid(scatter(n ^ u64::from(salt)), n)
}

/// Maps each number to another one that looks random: the last steps of splitmix64.
const fn scatter(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

fn uuid(head: u64, tail: u64) -> String {
    Uuid::from_u64_pair(head, tail).to_string()
}

/// Shoppers with their tokens, signed before the clock starts.
pub struct Shoppers {
    tokens: Vec<String>,
}

impl Shoppers {
    /// Signs tokens for this many shoppers, for a server with this secret.
    pub fn of(count: usize, secret: &str) -> Result<Self> {
        let now = Utc::now().timestamp();
        let sign = |n| token::issue(secret, &name(n), now, now + TOKEN_LASTS);
        let tokens = (0..count).map(sign).collect::<Result<_, _>>();
        Ok(Self {
            tokens: tokens.context("tokens cannot be signed")?,
        })
    }

    pub fn count(&self) -> usize {
        self.tokens.len()
    }

    /// The token of one shopper; `None` past the last.
    pub fn token(&self, n: usize) -> Option<&str> {
        self.tokens.get(n).map(String::as_str)
    }
}

/// A request to buy one unit, without the shopper's token and the key.
pub struct Purchase {
    head: Vec<u8>,
    body: Vec<u8>,
}

impl Purchase {
    /// A purchase of this item of this sale.
    pub fn of(server: SocketAddr, sale: &str, item: usize) -> Self {
        let body = format!("{{\"sku\":\"{}\",\"quantity\":1}}", sku(item));
        let head = format!(
            "POST /v1/sales/{sale}/orders HTTP/1.1\r\nHost: {server}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nAuthorization: Bearer ",
            body.len()
        );
        Self {
            head: head.into_bytes(),
            body: body.into_bytes(),
        }
    }

    /// Writes the request of the shopper with this token.
    pub fn write(&self, token: &str, key: &str, request: &mut Vec<u8>) {
        request.clear();
        request.extend_from_slice(&self.head);
        request.extend_from_slice(token.as_bytes());
        request.extend_from_slice(b"\r\nIdempotency-Key: ");
        request.extend_from_slice(key.as_bytes());
        request.extend_from_slice(b"\r\n\r\n");
        request.extend_from_slice(&self.body);
    }
}

/// The request that the load generator repeats.
pub enum Question<'a> {
    Same(Vec<u8>),
    /// Each request comes from the next shopper, starting at `from`, and buys the next of these purchases in rotation.
    Purchases {
        of: Vec<Purchase>,
        shoppers: &'a Shoppers,
        from: usize,
        salt: u32,
    },
}

impl<'a> Question<'a> {
    /// A `GET` of a public path.
    pub fn get(server: SocketAddr, path: &str) -> Self {
        Self::Same(format!("GET {path} HTTP/1.1\r\nHost: {server}\r\n\r\n").into_bytes())
    }

    /// Purchases of the first item of a sale.
    pub fn purchases(server: SocketAddr, sale: &str, shoppers: &'a Shoppers, salt: u32) -> Self {
        Self::Purchases {
            of: vec![Purchase::of(server, sale, 0)],
            shoppers,
            from: 0,
            salt,
        }
    }

    /// Writes the `n`th request; `false` if no shopper is left.
    pub fn write(&self, n: usize, request: &mut Vec<u8>) -> bool {
        match self {
            Self::Same(same) => {
                request.clone_from(same);
                true
            }
            Self::Purchases {
                of,
                shoppers,
                from,
                salt,
            } => {
                let who = from + n;
                let (Some(purchase), Some(token)) = (of.get(n % of.len().max(1)), shoppers.token(who)) else {
                    return false;
                };
                purchase.write(token, &key(*salt, who), request);
                true
            }
        }
    }
}

/// Calls of the purchase script as the application makes them; each shopper buys one unit of the sale's first item.
/// `script` may be another script with the same keys and arguments. Fails when the sale has no item.
pub fn script_calls(script: &str, sale: &Sale, shoppers: std::ops::Range<usize>, salt: u32) -> Result<Commands> {
    let item = sale.items.first().context("the sale has no item")?;
    let mut commands = Commands::default();
    for n in shoppers {
        let (user, key): (UserId, IdempotencyKey) = (name(n).parse()?, self::key(salt, n).parse()?);
        let shard = ShardKey {
            sale: sale.id,
            shard: home_shard(&sale.secret.0, &user, sale.shards),
        };
        let order = OrderId::derive(sale.number, &sale.secret.0, &user, &key);
        let identity = format!("{}\n{}", key.as_str(), user.as_str());
        commands.add(&[
            b"EVALSHA",
            script.as_bytes(),
            b"4",
            shard.shard().as_bytes(),
            shard.item(&item.sku).as_bytes(),
            shard.buyer(&user).as_bytes(),
            shard.events().as_bytes(),
            order.0.as_bytes(),
            b"1",
            identity.as_bytes(),
        ]);
    }
    Ok(commands)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_and_keys_are_as_long_as_uuids_and_differ() {
        assert_eq!((name(7).len(), key(1, 7).len()), (36, 36));
        assert_ne!(key(1, 7), key(2, 7));
        assert!(sku(3).parse::<flashsale::domain::ids::Sku>().is_ok());
        let names: HashSet<String> = (0..10_000).map(name).collect();
        assert_eq!(names.len(), 10_000);
        let rising = (0..10_000).filter(|n| name(*n) < name(n + 1)).count();
        assert!((4_500..5_500).contains(&rising), "they are in order: {rising}");
    }

    #[test]
    fn a_purchase_is_one_request_and_ends_with_the_shoppers() {
        let server = "127.0.0.1:1".parse().unwrap();
        let shoppers = Shoppers::of(2, "0123456789abcdef0123456789abcdef").unwrap();
        let question = Question::purchases(server, "SALE", &shoppers, 9);
        let mut request = Vec::new();
        assert!(question.write(1, &mut request));
        let text = String::from_utf8(request.clone()).unwrap();
        assert!(text.starts_with("POST /v1/sales/SALE/orders HTTP/1.1\r\n"), "{text}");
        assert!(
            text.contains(&format!(
                "\r\nIdempotency-Key: {}\r\n\r\n{{\"sku\":\"ITEM-0\"",
                key(9, 1)
            )),
            "{text}"
        );
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{text}");
        assert!(!question.write(2, &mut request));
    }
}
