-- A payment is known by its own id. The id of the delivery that told of it was unique as well: another payment under a delivery's
-- id that was known already could not be recorded, and was answered as a duplicate of money that it was not.

alter table payments drop constraint payments_webhook_id_key;
