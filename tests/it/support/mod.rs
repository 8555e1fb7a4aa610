//! The base of the tests: servers, connections, instances of the program, waiting, a world with shoppers.

pub mod app;
pub mod authority;
pub mod backlog;
pub mod collector;
pub mod crowd;
pub mod document;
pub mod doubled;
pub mod lua;
pub mod network;
pub mod poll;
pub mod raw;
pub mod servers;
pub mod window;

use std::path::Path;

/// The folder of the repository.
pub fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = package.ancestors();
    folders.find(|it| it.join("lua").is_dir()).unwrap()
}
