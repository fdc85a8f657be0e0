"""Metrics, alerts, health."""
