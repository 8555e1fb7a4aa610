//! The queries in `.sqlx`, which a build uses, fit the migrations.

use crate::support::servers::database;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, SqlSafeStr as _};
use std::path::Path;

#[tokio::test]
async fn every_query_that_a_build_relies_on_fits_the_migrations() {
    let mut connection = PgConnection::connect(&database().await).await.unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".sqlx");
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).unwrap().flatten() {
        let cached: Value = serde_json::from_slice(&std::fs::read(entry.path()).unwrap()).unwrap();
        let query = cached["query"].as_str().unwrap().to_owned();
        let statement = connection.prepare(AssertSqlSafe(query.clone()).into_sql_str()).await;
        let statement = statement.unwrap_or_else(|error| panic!("{query}: {error}; run ./dev queries"));
        let columns = cached["describe"]["columns"].as_array().unwrap();
        let names: Vec<&str> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
        let fresh: Vec<&str> = sqlx::Statement::columns(&statement)
            .iter()
            .map(sqlx::Column::name)
            .collect();
        assert_eq!(names, fresh, "{query}: run ./dev queries");
        seen += 1;
    }
    assert!(seen > 50, "only {seen} queries in {}", folder.display());
}
