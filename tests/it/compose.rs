//! The services of the compose file, as far as they run without Docker: their own commands and scripts, on real servers.

use crate::observe::yaml;
use crate::support::app::{Instance, Ran, environment, program, sale, while_unavailable};
use crate::support::crowd::spawn;
use crate::support::poll::eventually;
use crate::support::servers::{FreshPostgres, as_role, free_port, make_roles, own_folder, run_script};
use flashsale::embedded::{PostgresOptions, PostgresServer};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command};

/// The service and the user of each file that the service `secrets` writes for others.
const FILES: [(&str, u32); 8] = [
    ("redis/password", 999),
    ("redis/redis.conf", 999),
    ("postgres/superuser", 999),
    ("postgres/owner", 999),
    ("postgres/app", 999),
    ("migrate/flashsale.toml", 65534),
    ("app/single/flashsale.toml", 65534),
    ("app/cluster/flashsale.toml", 65534),
];

fn services() -> BTreeMap<String, Value> {
    let compose = yaml("docker-compose.yml");
    let services = compose["services"].as_object().unwrap().clone();
    services.into_iter().collect()
}

fn words(list: &Value) -> BTreeSet<&str> {
    let words = list.as_array().into_iter().flatten();
    words.map(|word| word.as_str().unwrap()).collect()
}

#[test]
fn each_service_mounts_the_secrets_that_it_needs_and_reaches_the_networks_that_it_needs() {
    for (name, service) in &services() {
        let mounted: BTreeSet<String> = words(&service["volumes"])
            .into_iter()
            .filter(|volume| volume.split(':').next().unwrap().ends_with("secrets"))
            .map(str::to_owned)
            .collect();
        let read = |volume: &str| BTreeSet::from([format!("{volume}:/secrets:ro")]);
        let (expected, networks) = match name.as_str() {
            "app" => (read("app-secrets"), vec!["default", "data", "observe"]),
            "migrate" => (read("migrate-secrets"), vec!["default", "data"]),
            "postgres" => (read("postgres-secrets"), vec!["data"]),
            redis if redis.starts_with("redis") => (read("redis-secrets"), vec!["data"]),
            "grafana" | "prometheus" => (BTreeSet::new(), vec!["observe"]),
            "secrets" => {
                assert_eq!(service["network_mode"], "none");
                assert_eq!(mounted.len(), 5, "{mounted:?}");
                continue;
            }
            other => panic!("say in this test which secrets {other} needs"),
        };
        assert_eq!(mounted, expected, "{name}");
        assert_eq!(words(&service["networks"]), networks.into_iter().collect(), "{name}");
    }
    assert_eq!(yaml("docker-compose.yml")["networks"]["data"]["internal"], true);
}

#[test]
fn no_service_may_do_more_than_it_needs() {
    for (name, service) in &services() {
        assert_eq!(service["cap_drop"], json!(["ALL"]), "{name}");
        assert_eq!(service["security_opt"], json!(["no-new-privileges:true"]), "{name}");
        // Only files of other owners need more.
        let added = if name == "secrets" {
            json!(["CHOWN"])
        } else {
            Value::Null
        };
        assert_eq!(service["cap_add"], added, "{name}");
        assert_eq!(service["read_only"] == true, name != "grafana", "{name}");
        // The images of the others have a user of their own.
        let user = match name.as_str() {
            "postgres" => json!("postgres"),
            redis if redis.starts_with("redis") => json!("redis"),
            _ => Value::Null,
        };
        assert_eq!(service["user"], user, "{name}");
        // `docker inspect` shows the environment: it has no secret except those that an operator set.
        for (variable, value) in service["environment"].as_object().into_iter().flatten() {
            let value = value.as_str().unwrap();
            let is_unset = value == format!("${{{variable}:-}}");
            let is_secret = ["SECRET", "PASSWORD", "_KEY", "_URL"]
                .iter()
                .any(|it| variable.contains(it));
            assert!(
                is_unset || !is_secret || value.starts_with("/secrets/"),
                "{name}: {variable}"
            );
        }
    }
    assert_eq!(services()["postgres"]["environment"]["POSTGRES_USER"], "postgres");
}

/// A command of the file, with Compose's values for unset variables, and another folder for `/secrets`.
fn written(command: &str, secrets: &Path) -> String {
    let mut text = String::new();
    let mut rest = command;
    while let Some((before, after)) = rest.split_once('$') {
        text += before;
        rest = match after.strip_prefix('{') {
            Some(variable) => {
                let (variable, after) = variable.split_once('}').unwrap();
                text += variable.split_once(":-").unwrap().1;
                after
            }
            None => {
                text.push('$');
                after.strip_prefix('$').unwrap()
            }
        };
    }
    (text + rest).replace("/secrets", secrets.to_str().unwrap())
}

/// The last word of a command that a shell runs.
fn shell_script(command: &Value, secrets: &Path) -> String {
    written(command.as_array().unwrap().last().unwrap().as_str().unwrap(), secrets)
}

/// Runs the command of the service `secrets`.
fn draw_secrets(folder: &Path) {
    let mut script = shell_script(&services()["secrets"]["command"], folder);
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        // Only root gives files away.
        script = script.replace("chown ", ": ");
    }
    let ran = Command::new("sh").args(["-euc", &script]).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

fn texts(folder: &Path) -> Vec<String> {
    let read = |(file, _): &(&str, u32)| fs::read_to_string(folder.join(file)).unwrap();
    FILES.iter().map(read).collect()
}

/// The value of a key in a `flashsale.toml`.
fn value(toml: &str, key: &str) -> String {
    let line = toml.lines().find_map(|line| line.strip_prefix(&format!("{key} = ")));
    line.unwrap_or_else(|| panic!("no {key}")).trim_matches('"').to_owned()
}

/// The volumes of the secrets, as they are at the first start.
fn empty_secrets() -> tempfile::TempDir {
    let folder = own_folder();
    for volume in words(&services()["secrets"]["volumes"]) {
        let (_, path) = volume.split_once(":/secrets/").unwrap();
        fs::create_dir(folder.path().join(path)).unwrap();
    }
    folder
}

#[test]
fn secrets_are_drawn_once_and_each_file_has_one_reader() {
    let folder = empty_secrets();
    // An interrupted start has left a file.
    fs::write(folder.path().join("redis/password.new"), "half").unwrap();
    draw_secrets(folder.path());
    let drawn = texts(folder.path());
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    for (file, user) in FILES {
        let found = fs::metadata(folder.path().join(file)).unwrap();
        assert_eq!(found.mode() & 0o777, 0o400, "{file}");
        assert!(!is_root || found.uid() == user, "{file} belongs to {}", found.uid());
    }
    for (file, _) in FILES {
        let around = folder.path().join(file).parent().unwrap().to_owned();
        let names = fs::read_dir(&around).unwrap().map(|it| it.unwrap().file_name());
        assert!(
            names.into_iter().all(|it| !it.to_string_lossy().ends_with(".new")),
            "{around:?}"
        );
    }
    let [redis, conf, superuser, owner, app, migrate, single, cluster] = drawn.as_slice() else {
        panic!("{} files", drawn.len())
    };
    let different = BTreeSet::from([redis, superuser, owner, app]);
    assert_eq!(different.len(), 4);
    assert!(different.iter().all(|it| it.len() == 64), "{different:?}");
    assert_eq!(*conf, format!("requirepass {redis}\nmasterauth {redis}\n"));
    // No URL has the superuser, and each role's service alone has its password.
    assert_eq!(
        *migrate,
        format!("database_url = \"postgres://flashsale_owner:{owner}@postgres:5432/flashsale\"\n")
    );
    for toml in [single, cluster] {
        assert_eq!(
            value(toml, "database_url"),
            format!("postgres://flashsale_app:{app}@postgres:5432/flashsale")
        );
        assert!(!toml.contains(owner.as_str()) && !toml.contains(superuser.as_str()));
    }
    assert_eq!(value(single, "redis_url"), format!("redis://:{redis}@redis:6379"));
    assert!(value(cluster, "redis_url").starts_with(&format!("redis+cluster://:{redis}@redis-1:6379,")));

    // Every start runs it, also on existing files.
    draw_secrets(folder.path());
    assert_eq!(texts(folder.path()), drawn);
}

/// A Redis as a service of the file starts it; it ends when this is dropped.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

fn start_redis(service: &Value, secrets: &Path, data: &Path, host: &str, port: u16) -> Served {
    let more = service["environment"]["REDIS_MORE"].as_str().unwrap_or_default();
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--", "sh", "-c"])
        .arg(shell_script(&service["command"], secrets))
        .env(
            "REDIS_MORE",
            format!(
                "{more} --port {port} --bind {host} --bind-source-addr {host} --logfile {}/log",
                data.display()
            ),
        )
        .current_dir(data);
    let redis = Served(spawn(command));
    let health = service["healthcheck"]["test"].as_array().unwrap();
    assert_eq!(health[0], "CMD-SHELL");
    let here = format!("redis-cli -h {host} -p {port}");
    let health = written(health[1].as_str().unwrap(), secrets).replace("redis-cli", &here);
    eventually("the Redis is healthy", || {
        Command::new("sh")
            .args(["-c", &health])
            .output()
            .unwrap()
            .status
            .success()
    });
    redis
}

/// The settings in the command of Postgres, by name.
fn settings(command: &Value) -> Vec<(String, String)> {
    let words: Vec<&str> = command
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_str().unwrap())
        .collect();
    assert_eq!(words[0], "postgres");
    let pairs = words[1..].chunks(2).map(|pair| {
        assert_eq!(pair[0], "-c");
        pair[1].split_once('=').unwrap()
    });
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The six nodes of the file, at the addresses that this prefix begins.
fn start_nodes(prefix: &str, port: u16, secrets: &Path, data: &[tempfile::TempDir]) -> Vec<Served> {
    let services = services();
    let start = |(number, data): (usize, &tempfile::TempDir)| {
        let (name, host) = (format!("redis-{}", number + 1), format!("{prefix}{}", number + 1));
        start_redis(&services[&name], secrets, data.path(), &host, port)
    };
    data.iter().enumerate().map(start).collect()
}

/// Runs the command of the service `redis-cluster` for nodes at these addresses.
fn make_cluster(prefix: &str, port: u16, secrets: &Path) {
    // Names and addresses stand for those of the containers.
    let script = shell_script(&services()["redis-cluster"]["command"], secrets)
        .replace("getent hosts redis-", &format!("echo {prefix}"))
        .replace("redis-cli -h redis-", &format!("redis-cli -p {port} -h {prefix}"))
        .replace("6379", &port.to_string());
    let ran = Command::new("timeout")
        .args(["60", "sh", "-euc", &script])
        .output()
        .unwrap();
    let said = [ran.stdout, ran.stderr].concat();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[tokio::test]
async fn the_six_redis_services_become_a_cluster_that_sells_also_at_other_addresses() {
    let secrets = empty_secrets();
    draw_secrets(secrets.path());
    let passwords = secrets.path().join("redis");
    let password = fs::read_to_string(passwords.join("password")).unwrap();
    let toml = fs::read_to_string(secrets.path().join("app/cluster/flashsale.toml")).unwrap();
    let (data, port) = ([(); 6].map(|()| own_folder()), free_port());
    // The whole of 127.0.0.0/8 is this machine.
    let block = rand::random_range(1..250);
    let ask = |prefix: &str, question: &[&str]| {
        let mut asked = Command::new("redis-cli");
        asked
            .args(["-h", &format!("{prefix}1"), "-p", &port.to_string()])
            .args(question);
        String::from_utf8(asked.env("REDISCLI_AUTH", &password).output().unwrap().stdout).unwrap()
    };
    let is_whole = |prefix: &str| {
        let nodes = ask(prefix, &["cluster", "nodes"]);
        let are_here = nodes.matches(&format!(" {prefix}")).count() == 6;
        let nodes: Vec<Vec<&str>> = nodes.lines().map(|node| node.split(' ').collect()).collect();
        let replicas = nodes.iter().filter(|node| ["slave", "myself,slave"].contains(&node[2]));
        let are_reached = nodes.iter().all(|node| node[7] == "connected");
        are_here
            && are_reached
            && replicas.count() == 3
            && ask(prefix, &["cluster", "info"]).contains("cluster_state:ok")
    };
    let place = |prefix: &str| {
        let mut url = value(&toml, "redis_url");
        for number in 1..=3 {
            url = url.replace(&format!("redis-{number}:6379"), &format!("{prefix}{number}:{port}"));
        }
        url
    };

    let first = format!("127.{block}.1.");
    let nodes = start_nodes(&first, port, &passwords, &data);
    make_cluster(&first, port, &passwords);
    eventually("the cluster is whole", || is_whole(&first));
    let postgres = FreshPostgres::start().await;
    let instance = Instance::start(&environment(&place(&first), &postgres.url()), "all");
    let id = instance.load_sale(&sale()).await;
    let order = instance.buy("ada", &id, "k", 1).await.ok(201);
    // A node that already belongs to the cluster changes nothing.
    make_cluster(&first, port, &passwords);
    assert!(is_whole(&first));
    drop((instance, nodes));

    // The containers come back with other addresses.
    let second = format!("127.{block}.2.");
    let _nodes = start_nodes(&second, port, &passwords, &data);
    make_cluster(&second, port, &passwords);
    eventually("the cluster is whole at its new addresses", || is_whole(&second));
    let instance = Instance::start(&environment(&place(&second), &postgres.url()), "all");
    assert_eq!(instance.order("ada", &order.id()).await.ok(200).text("id"), order.id());
    let bought = while_unavailable(|| instance.buy("bob", &id, "k", 1)).await;
    bought.ok(201);
    instance.assert_balanced(&id).await;
}

#[tokio::test]
async fn the_services_work_together_with_their_own_passwords_and_roles() {
    let (secrets, data) = (empty_secrets(), own_folder());
    draw_secrets(secrets.path());
    let services = services();
    let port = free_port();
    let redis_secrets = secrets.path().join("redis");
    let _redis = start_redis(&services["redis"], &redis_secrets, data.path(), "127.0.0.1", port);
    let ping = Command::new("redis-cli")
        .args(["-p", &port.to_string(), "ping"])
        .output();
    let said = String::from_utf8(ping.unwrap().stdout).unwrap();
    assert!(said.contains("NOAUTH"), "without the password: {said}");

    // The superuser's name is that of our own servers; all others have to show their password.
    let rules = data.path().join("pg_hba.conf");
    fs::write(&rules, "local all flashsale trust\nlocal all all scram-sha-256\n").unwrap();
    let service = &services["postgres"];
    let mut settings = settings(&service["command"]);
    settings.push(("hba_file".to_owned(), rules.display().to_string()));
    let options = PostgresOptions {
        durable: false,
        settings,
        ..PostgresOptions::default()
    };
    let postgres = PostgresServer::start(data.path(), &options).unwrap();
    let mut superuser = PgConnection::connect(&as_role(&postgres.url(), "flashsale"))
        .await
        .unwrap();
    let as_asked = "select current_setting('max_wal_size') || ' ' || current_setting('data_checksums') || ' ' || datcollate \
                    from pg_database where datname = current_database()";
    let as_asked: String = sqlx::query_scalar(as_asked).fetch_one(&mut superuser).await.unwrap();
    assert_eq!(as_asked, "4GB on C");
    let arguments = service["environment"]["POSTGRES_INITDB_ARGS"].as_str().unwrap();
    let here = "--data-checksums --locale=C.UTF-8 --lc-collate=C";
    assert_eq!(arguments, here, "what initdb got here");
    make_roles(&postgres.url(), &secrets.path().join("postgres"));

    let toml = |file: &str| fs::read_to_string(secrets.path().join(file)).unwrap();
    // The servers of the file, at their addresses here.
    let database = |file: &str| {
        let url = value(&toml(file), "database_url");
        let login = url.strip_prefix("postgres://").unwrap();
        let (role, rest) = login.split_once(':').unwrap();
        let (password, place) = rest.split_once('@').unwrap();
        assert_eq!(place, "postgres:5432/flashsale");
        as_role(&postgres.url(), &format!("{role}&password={password}"))
    };
    let (owner, app) = (
        database("migrate/flashsale.toml"),
        database("app/single/flashsale.toml"),
    );
    let wrong = app.replace("password=", "password=0");
    assert!(
        PgConnection::connect(&wrong).await.is_err(),
        "a wrong password is taken"
    );

    let migrate = BTreeMap::from([("FLASHSALE_DATABASE_URL".to_owned(), owner.clone())]);
    Ran::of(program(&migrate, &["migrate"]).output().unwrap()).ended(0);
    let redis =
        value(&toml("app/single/flashsale.toml"), "redis_url").replace("redis:6379", &format!("127.0.0.1:{port}"));
    let instance = Instance::start(&environment(&redis, &app), "all");
    let id = instance.load_sale(&sale()).await;
    let order = instance.buy("ada", &id, "k", 1).await.ok(201);
    instance.wait_for_order("ada", &order.id(), "reserved").await;
    assert_eq!(instance.pay("pay_1", &order.body).await, "applied");
    instance.assert_balanced(&id).await;

    // The role of the app may change rows, and nothing else.
    let mut as_app = PgConnection::connect(&app).await.unwrap();
    for forbidden in [
        "create table mine (id int)",
        "create temporary table mine (id int)",
        "create schema mine",
        "alter table orders add mine int",
        "drop table orders",
        "truncate payments",
        "create index mine on orders (id)",
        "drop trigger protect_operator_actions on operator_actions",
        "alter table operator_actions disable trigger all",
        "set session_replication_role = replica",
        "create or replace function check_grants_add_up() returns trigger language plpgsql as 'begin return new; end'",
        "copy orders to program 'cat'",
        "select pg_read_file('/etc/hostname')",
        "create role mine superuser",
        "set role flashsale_owner",
    ] {
        let refused = sqlx::raw_sql(forbidden).execute(&mut as_app).await.err();
        let refused = refused.unwrap_or_else(|| panic!("{forbidden} is allowed"));
        let code = refused
            .as_database_error()
            .and_then(|it| it.code())
            .unwrap_or_default()
            .into_owned();
        assert_eq!(code, "42501", "{forbidden}: {refused}");
    }
    // And those of tables that a later migration makes.
    let mut as_owner = PgConnection::connect(&owner).await.unwrap();
    let later = "create table later (id bigserial primary key)";
    sqlx::raw_sql(later).execute(&mut as_owner).await.unwrap();
    sqlx::raw_sql("insert into later default values; delete from later")
        .execute(&mut as_app)
        .await
        .unwrap();
}

/// Who may log in and as what, who owns what, and the rights of others.
async fn rights(database: &str) -> BTreeSet<String> {
    let mut connection = PgConnection::connect(database).await.unwrap();
    let query = "
        select format('role %s %s %s', rolname, rolsuper, rolcanlogin) from pg_roles where oid >= 16384 or rolsuper
        union all select format('database %s', datacl) from pg_database where datname = current_database()
        union all select format('schema %s', nspacl) from pg_namespace where nspname = 'public'
        union all select format('default %s %s', defaclobjtype, defaclacl) from pg_default_acl
        union all select format('%s %s %s', relname, relowner::regrole, relacl) from pg_class
            where relnamespace = 'public'::regnamespace
        union all select format('%s %s %s', proname, proowner::regrole, proacl) from pg_proc
            where pronamespace = 'public'::regnamespace";
    let found: Vec<String> = sqlx::query_scalar(query).fetch_all(&mut connection).await.unwrap();
    found.into_iter().collect()
}

#[tokio::test]
async fn a_database_whose_one_role_was_the_superuser_is_moved_to_the_roles() {
    let secrets = empty_secrets();
    draw_secrets(secrets.path());
    let passwords = secrets.path().join("postgres");
    let options = PostgresOptions {
        durable: false,
        ..PostgresOptions::default()
    };
    let (made, moved) = (own_folder(), own_folder());
    let made = PostgresServer::start(made.path(), &options).unwrap();
    make_roles(&made.url(), &passwords);
    let migrated = flashsale::ledger::migrate(&as_role(&made.url(), "flashsale_owner")).await;
    migrated.unwrap();

    let moved = PostgresServer::start(moved.path(), &options).unwrap();
    flashsale::ledger::migrate(&moved.url()).await.unwrap();
    run_script("one-role.sql", &moved.url(), &passwords);
    assert!(PgConnection::connect(&moved.url()).await.is_err(), "flashsale is left");
    let found = rights(&as_role(&moved.url(), "postgres")).await;
    // Only the superuser's name is another: it is that of our own servers.
    let found: BTreeSet<String> = found.iter().map(|it| it.replace("postgres", "flashsale")).collect();
    assert!(found.len() > 50, "{found:?}");
    assert_eq!(found, rights(&made.url()).await);
}
