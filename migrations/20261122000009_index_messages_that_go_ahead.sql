-- What an operator has done goes ahead of what has been decided about orders: he is answered when the shards know it, and a
-- wave of holds that end leaves a hundred thousand messages. Few are in this index at any time.
create index outbox_ahead on outbox (not_before, outbox_id)
    where failure is null and message ->> 'kind' <> 'resolve';
