//! What always holds, whatever happens: each module is one promise and the ways in which it could be broken.

mod cluster;
mod crash;
mod crowd;
mod durability;
mod expiry;
mod ledger;
mod outage;
mod outage_looks;
mod payment_races;
mod recovery;
mod replay;
mod sharding;
mod split;
mod statements;
mod suspension;
mod throng;
mod turns;
