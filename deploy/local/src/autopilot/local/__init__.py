"""The embedded stack: Postgres, NATS and the four services on one machine."""
