"""Creates one event for each STOCK argument, with one product of that quota, and prints token and events as JSON."""

import json
import sys
from datetime import timedelta

import django

django.setup()

from django.utils.timezone import now
from django_scopes import scopes_disabled
from pretix.base.models import Event, Organizer, Team

with scopes_disabled():
    organizer = Organizer.objects.create(name="Peers", slug="peers", plugins="pretix.plugins.banktransfer")
    team = Team.objects.create(
        organizer=organizer, name="API", all_events=True, all_event_permissions=True, all_organizer_permissions=True
    )
    events = {}
    for number, stock in enumerate(sys.argv[1:]):
        event = Event.objects.create(
            organizer=organizer,
            name=f"Event {number}",
            slug=f"event{number}",
            currency="EUR",
            date_from=now() + timedelta(days=30),
            plugins="pretix.plugins.banktransfer",
            live=True,
        )
        event.settings.set("payment_banktransfer__enabled", True)
        item = event.items.create(name="Ticket", default_price=10, admission=True)
        quota = event.quotas.create(name="Tickets", size=int(stock))
        quota.items.add(item)
        events[event.slug] = item.pk
    print(json.dumps({"token": team.tokens.create(name="peers").token, "events": events}))
