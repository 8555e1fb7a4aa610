//! What always holds, whatever happens: each module is one promise and the ways in which it could be broken.

mod crowd;
mod sharding;
