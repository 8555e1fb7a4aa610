//! A pooler between the program and Postgres: through one in session mode everything works, with the limits of the
//! ledger. One whose clients share sessions is refused at the start, whatever it lets through.

use crate::support::app::{Instance, Ran, environment, program, sale_with};
use crate::support::crowd::spawn;
use crate::support::poll::{self, PATIENCE};
use crate::support::servers::{FreshPostgres, free_port, redis};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use std::fs::{self, Permissions};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::{Child, Command, Stdio};

/// Where Debian's package has it: users' search paths lack this folder.
const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// A pooler of the test's own. It ends when this is dropped.
struct Pooler {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Pooler {
    /// Starts one before this Postgres with these lines in its configuration.
    fn start(postgres: &FreshPostgres, settings: &str) -> Self {
        assert!(
            fs::exists(PROGRAM).unwrap(),
            "the tests of poolers need PgBouncer: apt-get install --no-install-recommends pgbouncer"
        );
        let (url, port) = (postgres.url(), free_port());
        let (_, sockets) = url.split_once("host=").unwrap();
        let (sockets, _) = sockets.split_once('&').unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let file = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={sockets} user=flashsale\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\ndefault_pool_size = 80\nmax_client_conn = 400\n{settings}\n"
        );
        fs::write(&file, text).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        // It does not run as root, and only the user of Postgres may enter the folder of its socket.
        let user = fs::metadata(format!("/proc/{}", postgres.server().pid())).unwrap();
        if fs::metadata("/proc/self").unwrap().uid() == 0 {
            command.arg(format!("--reuid={}", user.uid()));
            command.arg(format!("--regid={}", user.gid())).arg("--clear-groups");
        }
        command.arg("--").arg(PROGRAM).arg(&file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let pooler = Self {
            child: spawn(command),
            port,
            _folder: folder,
        };
        poll::eventually("the pooler answers", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        pooler
    }

    fn url(&self) -> String {
        format!("postgres://flashsale@127.0.0.1:{}/flashsale", self.port)
    }

    /// Runs a command that uses Postgres through it.
    fn run(&self, args: &[&str]) -> Ran {
        Ran::of(program(&environment(&redis(), &self.url()), args).output().unwrap())
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_is_sold_through_a_pooler_in_session_mode_under_the_limits_of_the_ledger() {
    let postgres = FreshPostgres::start().await;
    let pooler = Pooler::start(&postgres, "pool_mode = session");
    pooler.run(&["migrate"]).ended(0);
    let instance = Instance::start(&environment(&redis(), &pooler.url()), "all");
    let id = instance.load_sale(&sale_with(&json!({"durability": "postgres"}))).await;
    for (user, answer) in instance.buy_at_once(&id, "u", 3).await {
        let order = answer.ok(201);
        assert_eq!(instance.pay(&format!("pay-{user}"), &order.body).await, "applied");
        instance.wait_for_order(&user, &order.id(), "paid").await;
    }
    instance.assert_balanced(&id).await;
    // The pooler knows nothing of the limits, and they stand: no statement waits for a lock for long.
    let mut other = PgConnection::connect(&postgres.url()).await.unwrap();
    let mut watch = PgConnection::connect(&postgres.url()).await.unwrap();
    sqlx::raw_sql("begin; lock table orders in access exclusive mode")
        .execute(&mut other)
        .await
        .unwrap();
    let waits = "select pid, query_start::text from pg_stat_activity where wait_event_type = 'Lock'";
    let waiting = poll::once_within(PATIENCE, "a statement waits", async || {
        sqlx::query_as(waits).fetch_optional(&mut watch).await.unwrap()
    });
    let (_answer, waiting): (_, (i32, String)) = tokio::join!(instance.buy("eve", &id, "k", 1), waiting);
    poll::within(PATIENCE, "it has ended", async || {
        let waiters: Vec<(i32, String)> = sqlx::query_as(waits).fetch_all(&mut watch).await.unwrap();
        !waiters.contains(&waiting)
    })
    .await;
}

#[tokio::test]
async fn a_pooler_whose_clients_share_sessions_is_refused_with_what_to_do() {
    let postgres = FreshPostgres::start().await;
    for settings in [
        "pool_mode = transaction",
        "pool_mode = transaction\nserver_round_robin = 1",
        // As its guides advise for programs that it refuses.
        "pool_mode = transaction\nignore_startup_parameters = extra_float_digits, options",
        "pool_mode = statement",
    ] {
        let pooler = Pooler::start(&postgres, settings);
        for args in [&["migrate"][..], &["serve"]] {
            let refused = pooler.run(args).ended(2);
            let line = format!(
                "flashsale: FLASHSALE_DATABASE_URL names a pooler at 127.0.0.1:{} whose clients share sessions \
                 (transaction mode); name one in session mode, or Postgres itself\n",
                pooler.port
            );
            assert!(refused.stderr.ends_with(&line), "{settings}: {refused:?}");
        }
    }
}
