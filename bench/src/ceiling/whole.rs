//! The whole program over HTTP: an empty endpoint, purchases, refusals, and latency below the peak.

use super::{Round, SHARE_OF_PEAK, Stage};
use crate::cost::Micros;
use crate::load::{self, ACCEPTED, Outcome, Tally};
use crate::program::Program;
use crate::shoppers::Question;
use crate::world::Terms;
use anyhow::Result;

const HEALTHY: Outcome<'static> = (200, "");
const SOLD_OUT: Outcome<'static> = (409, "sold_out");
/// Connections of the load below the peak.
const CONNECTIONS: usize = 256;

/// The arrival of requests.
#[derive(Clone, Copy)]
enum Pace {
    /// So many clients, each as fast as it gets replies.
    Closed(usize),
    /// Requests a second.
    Open(f64),
}

impl Stage<'_> {
    pub(super) fn measure_whole(&self, round: &mut Round, number: usize) -> Result<()> {
        let program = self.home.all.start()?;
        let most = Pace::Closed(self.clients_max());
        self.step(number, "the empty endpoint")?;
        let (tally, micros) = self.endpoint(&program, most)?;
        (round.endpoint, round.endpoint_micros) = (tally.rate(HEALTHY), micros);
        for clients in &self.crowds {
            let what = format!("purchases of {clients} clients");
            self.step(number, &what)?;
            let (tally, micros) = self.sale(&program, ACCEPTED, Pace::Closed(*clients), &what)?;
            let it = tally.percentiles(ACCEPTED);
            round.accepted.push(tally.rate(ACCEPTED));
            round.accepted_p50_ms.push(it.p50_ms);
            round.accepted_p99_ms.push(it.p99_ms);
            round.micros = micros;
        }
        self.step(number, "refusals of a sold-out sale")?;
        let (tally, micros) = self.sale(&program, SOLD_OUT, most, "a sold-out sale")?;
        (round.sold_out, round.sold_out_micros) = (tally.rate(SOLD_OUT), micros);
        self.step(number, "latency below the peak")?;
        if let Some(rate) = round.peak().map(|peak| peak * SHARE_OF_PEAK) {
            let what = format!("{rate:.0} purchases a second");
            let (tally, micros) = self.sale(&program, ACCEPTED, Pace::Open(rate), &what)?;
            let it = tally.percentiles(ACCEPTED);
            (round.at_share_rate, round.at_share_micros) = (tally.rate(ACCEPTED), micros);
            (round.at_share_p50_ms, round.at_share_p99_ms) = (it.p50_ms, it.p99_ms);
        }
        program.stop();
        Ok(())
    }

    async fn load(&self, question: &Question<'_>, pace: Pace) -> Result<Tally> {
        let (server, stop) = (self.home.all.address, &self.bench.stop);
        match pace {
            Pace::Closed(clients) => load::closed(server, question, clients, self.window, stop).await,
            Pace::Open(rate) => load::open(server, question, rate, CONNECTIONS, self.window, stop).await,
        }
    }

    /// Requests of `GET /healthz`.
    fn endpoint(&self, program: &Program, pace: Pace) -> Result<(Tally, Micros)> {
        self.calm()?;
        let question = Question::get(self.home.all.address, "/healthz");
        let servers = (&[self.world.redis.pid()?][..], program);
        let load = self.load(&question, pace);
        let measured = self.world.measure(self.bench, servers, HEALTHY, load, || Ok(()))?;
        self.bench.note(&measured.0, HEALTHY, "the empty endpoint");
        Ok(measured)
    }

    /// Requests to buy from a new sale, which has a single unit if they must be refused. The cost of a purchase
    /// includes its drain.
    fn sale(&self, program: &Program, wanted: Outcome<'_>, pace: Pace, what: &str) -> Result<(Tally, Micros)> {
        let mut terms = Terms::default();
        if wanted == SOLD_OUT {
            terms.stock = 1;
        }
        let (bench, world, home) = (self.bench, self.world, &self.home);
        let sale = world.sale(bench, home.all.address, &home.database, &terms)?;
        self.calm()?;
        let question = Question::purchases(home.all.address, &sale.id.to_string(), self.shoppers, self.salt());
        let servers = (&[world.redis.pid()?][..], program);
        let settle = || {
            if wanted == ACCEPTED {
                world.redis.drained(bench, &sale)?;
            }
            Ok(())
        };
        let measured = world.measure(bench, servers, wanted, self.load(&question, pace), settle)?;
        bench.note(&measured.0, wanted, what);
        world.close(bench, home.all.address, &[sale])?;
        Ok(measured)
    }
}
