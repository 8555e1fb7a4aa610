//! Private Redis and Postgres servers as child processes.
