//! The lists of orders, of payments and of actions: what their queries have in common, and their exports as tables.

use crate::domain::code::Code;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::order::wanted::{OrdersOf, Stretch};
use crate::flow::Export;
use crate::http::admin::bans;
use crate::http::problem::Problem;
use crate::http::{Api, csv, found};
use actix_web::HttpResponse;
use actix_web::http::Method;
use actix_web::web::Bytes;
use chrono::{DateTime, Utc};
use futures_util::stream::{StreamExt as _, TryStreamExt as _, once, try_unfold};
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// How many exports run at once on an instance. Each one occupies a connection for reports.
const EXPORTS_MAX: usize = 1;
/// How long an export may take. Meanwhile Postgres keeps the versions of rows that it reads.
const EXPORT_MAX: Duration = Duration::from_secs(600);
/// When a client may ask again if another export runs.
const EXPORT_RETRY: Duration = Duration::from_secs(10);
/// A column of an export: its head, and an entry's cell.
pub(super) type Column<T> = (&'static str, fn(&T) -> String);

/// The exports that run on an instance.
pub struct Exports(Arc<Semaphore>);

impl Default for Exports {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(EXPORTS_MAX)))
    }
}

/// Whose orders a query names, if any.
pub(super) fn whose(user: Option<&str>, sale: Option<SaleId>) -> Result<Option<OrdersOf>, Problem> {
    let account = user.map(bans::user).transpose()?;
    Ok(match account {
        Some(user) => Some(OrdersOf::User(user, sale)),
        None => sale.map(OrdersOf::Sale),
    })
}

/// The part of a list between the two times of a query.
pub(super) fn between<I: Default + Ord>(
    from: Option<DateTime<Utc>>,
    to: Option<DateTime<Utc>>,
) -> Result<Stretch<I>, Problem> {
    let [from, to] = times(from, to)?;
    Ok(Stretch::between(from, to))
}

/// The two times of a query.
pub(super) fn times(
    from: Option<DateTime<Utc>>,
    to: Option<DateTime<Utc>>,
) -> Result<[Option<DateTime<Utc>>; 2], Problem> {
    if from.zip(to).is_some_and(|(from, to)| from > to) {
        return Err(Problem::invalid("from must not be later than to"));
    }
    // Postgres has no time long before the first order.
    Ok([from, to].map(|time| time.map(|at| at.max(DateTime::<Utc>::UNIX_EPOCH))))
}

/// Answers with an export of the list with this name as a table, part by part as the client reads it.
pub(super) async fn export<T: 'static>(
    api: &Api,
    method: &Method,
    name: &'static str,
    columns: &'static [Column<T>],
    begin: impl Future<Output = Result<Option<Export<T>>, Problem>>,
) -> Result<HttpResponse, Problem> {
    let place = Arc::clone(&api.exports.0)
        .try_acquire_owned()
        .map_err(|_full| Problem::wait(Code::Overloaded, "another export runs on this instance", EXPORT_RETRY))?;
    let end = Instant::now() + EXPORT_MAX;
    let export = found(begin.await?, "such sale")?;
    let mut answer = csv::answer(name);
    // The server would read the whole body of an answer to HEAD, and send nothing of it.
    if method == Method::HEAD {
        return Ok(answer.finish());
    }
    let mut heads = String::new();
    csv::add_row(&mut heads, columns.iter().map(|(head, _)| head));
    let parts = try_unfold((export, place), move |(mut export, place)| async move {
        let read = timeout_at(end, export.try_next()).await;
        let read = read.unwrap_or_else(|_| Err(Fault::Unavailable("the export took too long".to_owned())));
        let entries = read.inspect_err(|fault| tracing::warn!(%fault, "an export of {name} broke off"))?;
        let part = entries.map(|entries| table(columns, &entries));
        Ok::<_, Fault>(part.map(|part| (Bytes::from(part), (export, place))))
    });
    Ok(answer.streaming(once(ready(Ok(Bytes::from(heads)))).chain(parts)))
}

/// The entries as rows of a table.
fn table<T>(columns: &[Column<T>], entries: &[T]) -> String {
    let mut table = String::new();
    for entry in entries {
        csv::add_row(&mut table, columns.iter().map(|(_, cell)| cell(entry)));
    }
    table
}
