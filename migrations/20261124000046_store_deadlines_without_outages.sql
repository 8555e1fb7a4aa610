-- Earlier versions wrote outages into the deadlines of reserved orders. Queries add them now, so that the stored deadline has none.
update orders set expires_at = orders.created_at + make_interval(secs => sales.payment_window_seconds)
from sales
where sales.sale_id = orders.sale_id and orders.state = 'reserved'
    and orders.expires_at > orders.created_at + make_interval(secs => sales.payment_window_seconds);
