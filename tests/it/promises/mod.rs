//! What always holds, whatever happens: each module is one promise and the ways in which it could be broken.

mod at_rest;
mod cluster;
mod crash;
pub mod crowd;
mod durability;
mod expiry;
mod gaps;
mod kill_switch;
mod ledger;
mod migrations;
mod outage;
mod outage_answers;
mod outage_looks;
mod payment_races;
mod recovery;
mod replay;
mod sharding;
mod split;
mod statements;
mod stock_audit;
mod suspension;
mod throng;
mod transport;
mod trouble;
mod turns;
mod upgrade;
