-- The ids of payments that `sale archive` has moved to a file. The provider may send one of them again: it is a duplicate.

create table archived_payments (
    payment_id text primary key check (octet_length(payment_id) between 1 and 255)
);
