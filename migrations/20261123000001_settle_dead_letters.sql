-- An event that was put aside is counted until an operator has said what was done about it. It stays to be read.

alter table dead_letters
    add column settled_at timestamptz,
    add column note text check (length(note) between 1 and 200),
    add constraint dead_letters_settled_have_note check ((settled_at is null) = (note is null));

-- What is counted, each second while somebody watches, and named by the audit.
create index dead_letters_to_settle on dead_letters (sale_id, shard, epoch, seq) where settled_at is null;
