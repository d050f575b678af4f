"""Autopilot's shared packages: domain, storage, bus, engine, kit."""
