//! The history of sales: how their purchases were answered, second by second, and what became of their items.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::Sale;
use crate::domain::sale::pulse::Counts;
use crate::domain::sale::report::{ItemReport, unpaid_share};
use crate::ledger::Ledger;
use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use std::collections::HashMap;
use uuid::Uuid;

impl Ledger {
    /// Adds these counts up in the current second of each sale that exists. Sales that are being archived are left out:
    /// the others' counts do not wait for them.
    pub async fn add_history(&self, counted: &[(SaleId, Counts)]) -> Result<(), Fault> {
        let sales: Vec<Uuid> = counted.iter().map(|(sale, _)| sale.0).collect();
        let answers: Vec<Value> = counted.iter().map(|(_, counts)| json!(counts.answers)).collect();
        let latency: Vec<Value> = counted.iter().map(|(_, counts)| json!(counts.latency)).collect();
        sqlx::query!(
            "insert into sale_history as h (sale_id, at, answers, latency) \
             select n.sale_id, date_trunc('second', now()), n.answers, n.latency \
             from unnest($1::uuid[], $2::jsonb[], $3::jsonb[]) as n (sale_id, answers, latency) \
             join sales s on s.sale_id = n.sale_id for key share of s skip locked \
             on conflict (sale_id, at) do update set answers = add_counts(h.answers, excluded.answers), \
                 latency = add_counts(h.latency, excluded.latency)",
            &sales,
            &answers,
            &latency
        )
        .execute(&self.jobs)
        .await?;
        Ok(())
    }

    /// The first and the last second of a sale's history between two times.
    pub async fn history_span(
        &self,
        sale: SaleId,
        from: Option<DateTime<Utc>>,
        to: Option<DateTime<Utc>>,
    ) -> Result<Option<(DateTime<Utc>, DateTime<Utc>)>, Fault> {
        let span = sqlx::query!(
            "select min(at) as first, max(at) as last from sale_history where sale_id = $1 \
             and at >= coalesce($2::timestamptz, '-infinity') and at < coalesce($3::timestamptz, 'infinity')",
            sale.0,
            from,
            to
        );
        let span = span.fetch_one(&self.reports).await?;
        Ok(span.first.zip(span.last))
    }

    /// A sale's history between two times, added up in steps of so many seconds. Steps without an answer are left out.
    pub async fn history(
        &self,
        sale: SaleId,
        from: Option<DateTime<Utc>>,
        to: Option<DateTime<Utc>>,
        step_seconds: i64,
    ) -> Result<Vec<(DateTime<Utc>, Counts)>, Fault> {
        // A sale of a day has two million counts. An aggregate over objects would make a new object for each second.
        let rows = sqlx::query!(
            "with seconds as materialized ( \
                 select floor(extract(epoch from at) / $4::int8) * $4::int8 as began, answers, latency \
                 from sale_history where sale_id = $1 \
                 and at >= coalesce($2::timestamptz, '-infinity') and at < coalesce($3::timestamptz, 'infinity') \
             ), sums as ( \
                 select c.began, c.is_answer, c.key, sum(c.value::int8) as total from ( \
                     select s.began, true as is_answer, a.key, a.value \
                     from seconds s cross join lateral jsonb_each_text(s.answers) a \
                     union all \
                     select s.began, false, l.key, l.value \
                     from seconds s cross join lateral jsonb_each_text(s.latency) l \
                 ) c group by c.began, c.is_answer, c.key \
             ) \
             select to_timestamp(began) as \"began!\", \
                 coalesce(jsonb_object_agg(key, total) filter (where is_answer), '{}') as \"answers!\", \
                 coalesce(jsonb_object_agg(key, total) filter (where not is_answer), '{}') as \"latency!\" \
             from sums group by began order by began",
            sale.0,
            from,
            to,
            step_seconds
        );
        let rows = rows.fetch_all(&self.reports).await?.into_iter();
        let counts = |answers, latency| serde_json::from_value(json!({"answers": answers, "latency": latency}));
        rows.map(|row| {
            let counts = counts(row.answers, row.latency);
            let counts = counts.map_err(|error| Fault::Bug(format!("in the ledger: a sale's history: {error}")))?;
            Ok((row.began, counts))
        })
        .collect()
    }

    /// What became of each item of a sale.
    pub async fn item_reports(&self, sale: &Sale) -> Result<Vec<ItemReport>, Fault> {
        // An item was sold out when no unit was left of those that the sale owned then.
        let rows = sqlx::query!(
            "with moves as ( \
                 select sku, stock - coalesce((select sum(quantity) from restocks r \
                     where r.sale_id = i.sale_id and r.sku = i.sku and r.state = 'applied'), 0) as units, \
                     timestamptz '-infinity' as at from items i where sale_id = $1 \
                 union all \
                 select sku, quantity, decided_at from restocks where sale_id = $1 and state = 'applied' \
                 union all \
                 select sku, -quantity, created_at from orders where sale_id = $1 and state <> 'revoked' \
                 union all \
                 select sku, quantity, resolved_at from orders where sale_id = $1 and state in ('cancelled', 'expired') \
             ), steps as ( \
                 select sku, at, \
                     sum(units) over (partition by sku order by at, units desc rows unbounded preceding) as free \
                 from moves \
             ), sold_out as ( \
                 select sku, min(at) as at from steps where free <= 0 and isfinite(at) group by sku \
             ) \
             select i.sku, i.stock, s.at as sold_out_at, \
                 coalesce(o.sold, 0)::int8 as \"sold!\", coalesce(o.held, 0)::int8 as \"held!\", \
                 coalesce(o.money, 0)::int8 as \"money!\", \
                 coalesce(o.paid, 0) as \"paid!\", coalesce(o.unpaid, 0) as \"unpaid!\" \
             from items i left join sold_out s on s.sku = i.sku left join ( \
                 select sku, sum(quantity) filter (where state = 'paid') as sold, \
                     sum(quantity) filter (where state = 'reserved') as held, \
                     sum(amount_minor) filter (where state = 'paid') as money, \
                     count(*) filter (where state = 'paid') as paid, \
                     count(*) filter (where state in ('cancelled', 'expired')) as unpaid \
                 from orders where sale_id = $1 group by sku \
             ) o on o.sku = i.sku where i.sale_id = $1",
            sale.id.0
        );
        let rows = rows.fetch_all(&self.reports).await?;
        let mut rows: HashMap<String, _> = rows.into_iter().map(|row| (row.sku.clone(), row)).collect();
        let items = sale.items.iter().filter_map(|item| {
            let row = rows.remove(item.sku.as_str())?;
            let after = |at: DateTime<Utc>| (at - sale.starts_at).as_seconds_f64().max(0.0);
            Some(ItemReport {
                sku: item.sku.clone(),
                name: item.name.clone(),
                total: row.stock,
                sold: row.sold,
                held: row.held,
                money_minor: row.money,
                currency: item.currency.clone(),
                sold_out_after_seconds: row.sold_out_at.map(after),
                unpaid_share: unpaid_share(row.paid, row.unpaid),
            })
        });
        Ok(items.collect())
    }
}
