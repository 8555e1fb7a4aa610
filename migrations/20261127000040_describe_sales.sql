-- What pages show of a sale and its items besides names: texts, pictures, and which items are variants of one thing. Null
-- is none. A nullable column without a default rewrites no row.

alter table sales add column description text, add column image_url text;

-- `group` is a word of SQL.
alter table items
    add column description text,
    add column image_url text,
    add column variant_group text,
    add column variant_option text;
