"""What every service is made of: clock, ids, configuration, loops, batches, logs, metrics, health and HTTP."""
