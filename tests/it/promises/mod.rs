//! What always holds, whatever happens: each module is one promise and the ways in which it could be broken.

mod at_rest;
mod cluster;
mod cluster_cut;
mod crash;
pub mod crowd;
mod durability;
mod expiry;
mod fairness_of_jobs;
mod gaps;
mod kill_switch;
mod ledger;
mod ledger_cost;
mod lock_order;
mod migrations;
mod outage;
mod outage_answers;
mod outage_looks;
mod payment_races;
mod recovery;
mod replay;
mod sharding;
mod split;
mod stock_audit;
mod suspension;
mod transport;
mod trouble;
mod upgrade;
