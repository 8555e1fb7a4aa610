-- Redis processes from which a promoted replica has taken over, by run id. What they tell of themselves forgets that
-- after a while (repl-backlog-ttl), and nothing may be reconciled on one of them until it has been a replica in its turn.

create table superseded_servers (
    run_id text primary key,
    superseded_at timestamptz not null default now()
);
