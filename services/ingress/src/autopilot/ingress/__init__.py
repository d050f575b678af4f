"""Takes provider webhooks: authenticates, persists, admits and answers."""
