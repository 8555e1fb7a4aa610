-- Whoever restocks asks until every shard has its part, also behind a hundred thousand messages of other kinds.
create index outbox_restocks on outbox ((message ->> 'id')) where message ->> 'kind' = 'restock';
