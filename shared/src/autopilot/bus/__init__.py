"""NATS: wake-ups that make things quick, and the stream of run events."""
