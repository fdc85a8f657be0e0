"""Alerts: events handed to logging, a webhook, a command, and NOTIFY in attached databases."""
