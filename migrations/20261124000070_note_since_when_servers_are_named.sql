-- The shard's last drained event when its server got the name in run_id. Later events were drained from that server. A
-- trigger notes it, so that processes of an earlier version do too.
alter table shards
    add column named_epoch bigint not null default 0,
    add column named_seq bigint not null default 0;
update shards set named_epoch = drained_epoch, named_seq = drained_seq;

create function note_naming() returns trigger language plpgsql as $$
begin
    -- A question mark before the name says that the shard has yet to be reconciled on that server.
    if ltrim(old.run_id, '?') is distinct from ltrim(new.run_id, '?') then
        new.named_epoch := new.drained_epoch;
        new.named_seq := new.drained_seq;
    end if;
    return new;
end $$;

create trigger shards_note_naming before update of run_id on shards
    for each row execute function note_naming();
